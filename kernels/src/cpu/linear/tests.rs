use super::*;
use crate::{
    Error, ErrorKind, Ledger, ReadAt, TensorType, WeightData, WeightSource,
    cpu::{Isa, Region, Team},
    formats,
};
use half::f16;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Xorshift numbers.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In -1..1.
    fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Where a block has its f16 fields.
fn half_fields(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::F32 | TensorType::BF16 => &[],
        TensorType::F16 | TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q6_K => &[208],
    }
}

/// Random codes and sub-scales, with scales of moderate size.
fn random_bytes(ty: TensorType, elements: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..ty.bytes_of(elements).unwrap())
        .map(|_| random.bits() as u8)
        .collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &at in half_fields(ty) {
            let value = f16::from_f32(random.value() * 2f32.powi(-((random.bits() % 8) as i32)));
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        match ty {
            TensorType::F32 => block.copy_from_slice(&random.value().to_le_bytes()),
            TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(random.value()).to_le_bytes()),
            _ => {}
        }
    }
    bytes
}

fn source(ty: TensorType, rows: usize, cols: usize, data: Vec<u8>) -> WeightSource {
    WeightSource {
        name: format!("{ty:?}"),
        ty,
        rows,
        cols,
        data: data.into(),
    }
}

fn random_source(ty: TensorType, rows: usize, cols: usize, random: &mut Random) -> WeightSource {
    let data = random_bytes(ty, rows * cols, random);
    source(ty, rows, cols, data)
}

fn all(source: &WeightSource) -> Vec<u8> {
    let mut bytes = vec![0; source.data.len()];
    source.read(0, &mut bytes).unwrap();
    bytes
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::available()
}

/// Column counts to try: whole super-blocks, odd groups, and odd columns where blocks allow them.
fn cols_of(ty: TensorType) -> &'static [usize] {
    match ty.block_len() {
        1 => &[1, 15, 16, 256, 777],
        32 => &[32, 96, 256, 544, 768],
        _ => &[256, 512, 768],
    }
}

struct Bench {
    team: Team,
    ledger: Ledger,
}

impl Bench {
    fn new(threads: usize) -> Self {
        let ledger = Ledger::default();
        Self {
            team: Team::new(threads, &ledger).unwrap(),
            ledger,
        }
    }

    fn pack(&self, source: &WeightSource) -> PackedWeight {
        PackedWeight::load(
            source,
            &self.ledger,
            &mut Region::default(),
            &self.team,
            &mut |_| Ok(()),
        )
        .unwrap()
    }

    fn product(&self, isa: Isa, weight: &PackedWeight, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / weight.cols();
        let mut scratch = QuantizedRows::new(&self.ledger, "test", rows, weight.cols()).unwrap();
        let mut out = vec![f32::NAN; rows * weight.rows()];
        let mut products = [Product {
            weight,
            bias,
            out: &mut out,
        }];
        linear(&self.team, isa, &mut scratch, x, rows, &mut products).unwrap();
        out
    }
}

/// The product in f64 of exactly dequantised weights, and for each output the sum of |weight| times the largest
/// activation of the weight's group: what the errors are measured by.
fn exact(source: &WeightSource, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (rows, cols) = (source.rows, source.cols);
    let mut weights = vec![0f32; rows * cols];
    formats::dequantize(source.ty, &all(source), &mut weights).unwrap();
    let mut result = (Vec::new(), Vec::new());
    for x in x.chunks_exact(cols) {
        for w in weights.chunks_exact(cols) {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for (w, x) in w.chunks(32).zip(x.chunks(32)) {
                let largest = x.iter().fold(0f64, |most, &x| most.max(f64::from(x.abs())));
                for (&w, &x) in w.iter().zip(x) {
                    sum += f64::from(w) * f64::from(x);
                    magnitude += f64::from(w.abs()) * largest;
                }
            }
            result.0.push(sum);
            result.1.push(magnitude);
        }
    }
    result
}

/// An activation's error is at most half a code of 1/32767 of its group's largest; the rest is f32 rounding,
/// also of the minimums' terms, which may be larger than the sum.
const BOUND: f64 = 2e-5;

#[test]
fn every_type_set_and_shape_is_near_the_exact_product() {
    let bench = Bench::new(2);
    let mut random = Random(1);
    let mut worst = 0f64;
    for ty in TensorType::ALL {
        for (&cols, outputs) in cols_of(ty).iter().zip([1, 16, 37, 48, 5]) {
            let source = random_source(ty, outputs, cols, &mut random);
            let weight = bench.pack(&source);
            let bias: Vec<f32> = (0..outputs).map(|_| random.value()).collect();
            for rows in [1, 2, 3, 7, 8, 9, 16, 17, 33] {
                let x: Vec<f32> = (0..rows * cols).map(|_| random.value().powi(5) * 100.0).collect();
                let (sums, magnitudes) = exact(&source, &x);
                for isa in isas() {
                    let out = bench.product(isa, &weight, Some(&bias), &x);
                    for (i, (&out, (sum, magnitude))) in
                        out.iter().zip(sums.iter().zip(&magnitudes)).enumerate()
                    {
                        let error = (f64::from(out) - sum - f64::from(bias[i % outputs])).abs();
                        let allowed = magnitude + f64::from(bias[i % outputs].abs());
                        worst = worst.max(error / allowed);
                        assert!(
                            error <= BOUND * allowed,
                            "{ty:?} {isa} {rows}x{cols}x{outputs}[{i}]: {out} for {sum}, {}",
                            error / allowed
                        );
                    }
                }
            }
        }
    }
    println!("worst error {worst:e}");
}

#[test]
fn a_rows_result_depends_on_nothing_but_the_row() {
    let (alone, several) = (Bench::new(1), Bench::new(3));
    let mut random = Random(2);
    for ty in TensorType::ALL {
        let (outputs, cols) = (333, cols_of(ty)[3.min(cols_of(ty).len() - 1)]);
        let source = random_source(ty, outputs, cols, &mut random);
        let weight = alone.pack(&source);
        assert_eq!(
            alone.ledger.owned_by("derived weights").0,
            weight.footprint().derived
        );
        let x: Vec<f32> = (0..33 * cols).map(|_| random.value()).collect();
        let mut of_sets = Vec::new();
        for isa in isas() {
            let singly: Vec<u32> = x
                .chunks_exact(cols)
                .flat_map(|x| alone.product(isa, &weight, None, x))
                .map(f32::to_bits)
                .collect();
            for rows in [2, 3, 7, 8, 9, 16, 17, 33] {
                for bench in [&alone, &several] {
                    let out = bench.product(isa, &weight, None, &x[..rows * cols]);
                    let same = out.iter().zip(&singly).all(|(a, b)| a.to_bits() == *b);
                    assert!(same, "{ty:?} {isa} {rows} rows, {} threads", bench.team.size());
                }
            }
            if isa != Isa::PORTABLE {
                of_sets.push(singly);
            }
        }
        assert!(
            of_sets.windows(2).all(|sets| sets[0] == sets[1]),
            "{ty:?}: instruction sets differ"
        );
    }
}

#[test]
fn unpacking_a_row_equals_dequantising_it() {
    let bench = Bench::new(1);
    let mut random = Random(3);
    for ty in TensorType::ALL {
        for &cols in cols_of(ty) {
            // Any bytes, so scales are NaN, infinite and denormal, too.
            let data: Vec<u8> = (0..ty.bytes_of(19 * cols).unwrap())
                .map(|_| random.bits() as u8)
                .collect();
            let weight = bench.pack(&source(ty, 19, cols, data.clone()));
            let mut all = vec![0f32; 19 * cols];
            formats::dequantize(ty, &data, &mut all).unwrap();
            let mut row = vec![0f32; cols];
            for (index, expected) in all.chunks_exact(cols).enumerate() {
                weight.row_into(index, &mut row).unwrap();
                for (a, b) in row.iter().zip(expected) {
                    assert!(
                        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
                        "{ty:?} row {index}: {a} for {b}"
                    );
                }
            }
            assert_eq!(
                weight.row_into(19, &mut row).unwrap_err().kind,
                ErrorKind::Invalid
            );
            assert_eq!(
                weight.row_into(0, &mut row[1..]).unwrap_err().kind,
                ErrorKind::Invalid
            );
        }
    }
}

#[test]
fn special_activations() {
    let bench = Bench::new(1);
    let mut random = Random(4);
    for ty in TensorType::ALL {
        let (outputs, cols) = (17, 256);
        let source = random_source(ty, outputs, cols, &mut random);
        let weight = bench.pack(&source);
        for isa in isas() {
            for value in [
                0.0,
                -0.0,
                1.0,
                -3.25,
                1e30,
                -1e30,
                1e-29,
                1e-35,
                f32::MIN_POSITIVE / 8.0,
            ] {
                let x = vec![value; cols];
                let (sums, magnitudes) = exact(&source, &x);
                for ((&out, sum), magnitude) in bench
                    .product(isa, &weight, None, &x)
                    .iter()
                    .zip(sums)
                    .zip(magnitudes)
                {
                    // Groups below 1e-30 count as zero.
                    let allowed = BOUND * magnitude + 1e-30 * magnitude / f64::from(value.abs()).max(1e-300);
                    assert!(
                        (f64::from(out) - sum).abs() <= allowed,
                        "{ty:?} {isa} {value:e}: {out:e} for {sum:e}"
                    );
                }
            }
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![0.5; 3 * cols];
                x[cols + 77] = value;
                let out = bench.product(isa, &weight, None, &x);
                for (index, out) in out.chunks_exact(outputs).enumerate() {
                    let finite = index != 1;
                    assert!(
                        out.iter().all(|out| out.is_finite() == finite),
                        "{ty:?} {isa} {value} {index}: {out:?}"
                    );
                }
            }
            // Finite, and larger than what its square fits in.
            let out = bench.product(isa, &weight, None, &vec![f32::MAX; cols]);
            assert_eq!(out.len(), outputs);
        }
    }
}

#[test]
fn products_of_one_input_share_a_call() {
    let bench = Bench::new(2);
    let mut random = Random(5);
    let cols = 256;
    let sources = [TensorType::Q4_1, TensorType::F16, TensorType::Q6_K]
        .map(|ty| random_source(ty, 100, cols, &mut random));
    let weights = sources.each_ref().map(|source| bench.pack(source));
    let x: Vec<f32> = (0..5 * cols).map(|_| random.value()).collect();
    for isa in isas() {
        let mut scratch = QuantizedRows::new(&bench.ledger, "test", 5, cols).unwrap();
        let mut outs = [0; 3].map(|_| vec![0f32; 5 * 100]);
        let mut products: Vec<_> = weights
            .iter()
            .zip(&mut outs)
            .map(|(weight, out)| Product {
                weight,
                bias: None,
                out,
            })
            .collect();
        linear(&bench.team, isa, &mut scratch, &x, 5, &mut products).unwrap();
        for (weight, out) in weights.iter().zip(outs) {
            assert_eq!(out, bench.product(isa, weight, None, &x));
        }
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let bench = Bench::new(1);
    let isa = Isa::best();
    let pack = |source: &WeightSource| {
        PackedWeight::load(
            source,
            &bench.ledger,
            &mut Region::default(),
            &bench.team,
            &mut |_| Ok(()),
        )
        .map(|_| ())
        .unwrap_err()
        .kind
    };
    assert_eq!(
        pack(&source(TensorType::Q4_0, 2, 33, vec![0; 40])),
        ErrorKind::Invalid
    );
    assert_eq!(
        pack(&source(TensorType::Q4_0, 2, 32, vec![0; 35])),
        ErrorKind::Invalid
    );
    assert_eq!(
        pack(&source(TensorType::Q4_0, usize::MAX, 32, vec![0; 18])),
        ErrorKind::Invalid
    );
    assert_eq!(pack(&source(TensorType::F32, 0, 32, vec![])), ErrorKind::Invalid);
    let limited = Ledger::with_limit(100);
    let refused = PackedWeight::load(
        &source(TensorType::Q4_0, 2, 32, vec![0; 36]),
        &limited,
        &mut Region::default(),
        &bench.team,
        &mut |_| Ok(()),
    );
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Exhausted);

    let mut weight = bench.pack(&source(TensorType::Q4_0, 2, 32, vec![0; 36]));
    let mut scratch = QuantizedRows::new(&bench.ledger, "test", 1, 32).unwrap();
    let mut call = |weight: &PackedWeight, x: usize, rows: usize, bias: usize, out: usize| {
        let bias = vec![0f32; bias];
        let mut out = vec![0f32; out];
        let product = Product {
            weight,
            bias: (!bias.is_empty()).then_some(&bias[..]),
            out: &mut out,
        };
        linear(
            &bench.team,
            isa,
            &mut scratch,
            &vec![0.0; x],
            rows,
            &mut [product],
        )
        .map_err(|error| error.kind)
    };
    assert_eq!(call(&weight, 32, 1, 2, 2), Ok(()));
    assert_eq!(call(&weight, 0, 0, 0, 0), Ok(()));
    assert_eq!(call(&weight, 31, 1, 0, 2), Err(ErrorKind::Invalid));
    assert_eq!(call(&weight, 32, 1, 3, 2), Err(ErrorKind::Invalid));
    assert_eq!(call(&weight, 32, 1, 0, 1), Err(ErrorKind::Invalid));
    assert_eq!(call(&weight, 32, usize::MAX, 0, 2), Err(ErrorKind::Invalid));
    assert_eq!(call(&weight, 64, 2, 0, 4), Err(ErrorKind::Bug));

    let bytes = weight.footprint().derived;
    assert!(bytes > 0);
    assert_eq!(weight.release().unwrap(), bytes);
    assert_eq!(weight.release().unwrap(), 0);
    assert_eq!(call(&weight, 32, 1, 0, 2), Err(ErrorKind::Bug));
    assert_eq!(
        weight.row_into(0, &mut [0.0; 32]).unwrap_err().kind,
        ErrorKind::Bug
    );
    assert_eq!(scratch.release().unwrap(), 21 * 4);
    assert_eq!(bench.ledger.total(), (0, 0));
}

#[test]
fn tiles_cover_the_rows_in_order() {
    for highest in [1, 4, 8] {
        for rows in 0..50 {
            let tiles = quantize::Tiles::new(rows, highest);
            let mut next = 0;
            for tile in (0..tiles.count()).map(|index| tiles.get(index)) {
                assert_eq!(tile.first, next);
                assert!(tile.height <= highest && tile.height.is_power_of_two());
                next += tile.height;
            }
            assert_eq!(next, rows);
        }
    }
}

#[test]
fn a_long_load_reports_progress_and_can_be_stopped() {
    let bench = Bench::new(2);
    let (rows, cols) = (40_000, 1024);
    let bytes = TensorType::Q4_0.bytes_of(rows * cols).unwrap();
    let large = source(TensorType::Q4_0, rows, cols, vec![7; bytes]);
    let mut reports = Vec::new();
    let pack = |progress: &mut crate::Progress<'_>| {
        PackedWeight::load(
            &large,
            &bench.ledger,
            &mut Region::default(),
            &bench.team,
            progress,
        )
    };
    let weight = pack(&mut |done| {
        reports.push(done);
        Ok(())
    });
    assert!(
        reports.len() >= 3 && reports.is_sorted() && reports[0] == 0,
        "{reports:?}"
    );
    let mut row = vec![0.0; cols];
    let mut expected = vec![0.0; cols];
    formats::dequantize(TensorType::Q4_0, &all(&large)[..bytes / rows], &mut expected).unwrap();
    for index in [0, rows / 2, rows - 1] {
        weight.as_ref().unwrap().row_into(index, &mut row).unwrap();
        assert_eq!(row, expected);
    }
    drop(weight);

    let stopped = pack(&mut |done| match done {
        0 => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled, "enough")),
    });
    assert_eq!(stopped.unwrap_err().kind, ErrorKind::Cancelled);
    assert_eq!(bench.ledger.owned_by("derived weights"), (0, 0));
}

#[test]
fn a_read_that_fails_on_any_thread_is_the_loads_error_and_leaves_nothing() {
    struct FailingAt {
        bytes: Vec<u8>,
        reads: AtomicUsize,
        fail_at: usize,
    }
    impl ReadAt for FailingAt {
        fn read_at(&self, offset: u64, out: &mut [u8]) -> crate::Result<()> {
            if self.reads.fetch_add(1, Ordering::Relaxed) == self.fail_at {
                return Err(Error::invalid("the disk is gone"));
            }
            self.bytes.read_at(offset, out)
        }
    }
    let bench = Bench::new(3);
    for ty in [TensorType::Q4_0, TensorType::F16] {
        // Nine mebibytes: two rounds, and many pieces.
        let cols = 4096;
        let rows = (9 << 20) / ty.bytes_of(cols).unwrap();
        let bytes = random_bytes(ty, rows * cols, &mut Random(9));
        let load = |fail_at| {
            let reader = Arc::new(FailingAt {
                bytes: bytes.clone(),
                reads: AtomicUsize::new(0),
                fail_at,
            });
            let whole = source(ty, rows, cols, Vec::new());
            let source = WeightSource {
                data: WeightData::new(reader.clone(), 0..bytes.len()),
                ..whole
            };
            let region = &mut Region::default();
            let loaded = PackedWeight::load(&source, &bench.ledger, region, &bench.team, &mut |_| Ok(()));
            (loaded, reader.reads.load(Ordering::Relaxed))
        };
        let (whole, reads) = load(usize::MAX);
        assert!(whole.is_ok() && reads > 8, "{reads}");
        drop(whole);
        let before = bench.ledger.total();
        for fail_at in [0, 1, reads / 2, reads - 1] {
            let error = load(fail_at).0.unwrap_err();
            assert_eq!(error.message, format!("{ty:?}: the disk is gone"));
            assert_eq!(bench.ledger.total(), before);
        }
    }
}
