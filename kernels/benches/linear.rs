//! Speed of the linear layers beside the machine's limits: `cargo bench -p met-kernels --bench linear
//! [TYPE | ISA | THREADS ...]`. Only what every argument matches is run.
//!
//! Decode reads weights of 128 MiB in all, so that no cache holds them, in matrices of a small model's size.

use half::f16;
use met_kernels::{
    Ledger, TensorType, WeightSource,
    cpu::{
        Isa, Region, Team,
        isa::Level,
        linear::{PackedWeight, Product, QuantizedRows, linear},
    },
};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

const COLS: usize = 576;
const OUTPUTS: usize = 1536;
const DECODE_BYTES: usize = 128 << 20;

fn main() {
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let wanted =
        |name: &str| filters.is_empty() || filters.iter().all(|filter| name.contains(filter.as_str()));
    for threads in [1, 2] {
        let team = Team::new(threads, &Ledger::default()).expect("a team");
        let read = read_bandwidth(&team);
        println!("{threads} threads: read {:.1} GB/s", read / 1e9);
        for isa in Isa::available() {
            let peak = multiply_peak(&team, isa);
            println!(
                "{threads} threads {isa}: i16 multiply-add peak {:.0} GMAC/s",
                peak / 1e9
            );
            for ty in TensorType::ALL {
                let name = format!("{threads} threads {isa} {}", ty.name());
                if wanted(&name) {
                    report(&name, &team, isa, ty, read, peak);
                }
            }
        }
    }
}

fn report(name: &str, team: &Team, isa: Isa, ty: TensorType, read: f64, peak: f64) {
    let ledger = Ledger::default();
    let source = random_source(ty);
    let bytes = ty.bytes_of(OUTPUTS * COLS).expect("whole blocks");
    let start = processor_time();
    let mut region = Region::default();
    let weights: Vec<PackedWeight> = (0..DECODE_BYTES.div_ceil(bytes))
        .map(|_| PackedWeight::load(&source, &ledger, &mut region, team, &mut |_| Ok(())).expect("packed"))
        .collect();
    let packing = (bytes * weights.len()) as f64 / ((processor_time() - start) / team.size() as f64);
    let mut line = format!("{name:28} pack {:5.2} GB/s", packing / 1e9);
    for rows in [1, 2, 4, 8, 16, 512] {
        let mut scratch = QuantizedRows::new(&ledger, "scratch", rows, COLS).expect("scratch");
        let x: Vec<f32> = (0..rows * COLS).map(|i| (i as f32).sin()).collect();
        let mut out = vec![0f32; rows * OUTPUTS];
        let used = if rows > 16 { 1 } else { weights.len() };
        let time = median(team.size(), Duration::from_millis(500), || {
            for weight in &weights[..used] {
                let mut products = [Product {
                    weight,
                    bias: None,
                    out: &mut out,
                }];
                linear(team, isa, &mut scratch, &x, rows, &mut products).expect("a product");
            }
        });
        let rate = |amount: usize| (amount * used) as f64 / time;
        let (gb, mac) = (rate(bytes), rate(rows * OUTPUTS * COLS));
        line += &match rows {
            1 => format!(" | {:5.1} GB/s {:3.0} %", gb / 1e9, gb / read * 100.0),
            _ => format!(" | {rows}: {:5.1} GMAC/s {:3.0} %", mac / 1e9, mac / peak * 100.0),
        };
        scratch.release().expect("released");
    }
    println!("{line}");
}

/// Median seconds of a call, over at least five calls and `enough` time. Measured in processor time a thread,
/// so that what else runs on the machine counts little.
fn median(threads: usize, enough: Duration, mut call: impl FnMut()) -> f64 {
    call();
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 5 || start.elapsed() < enough {
        let before = processor_time();
        call();
        times.push((processor_time() - before) / threads as f64);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Seconds that the threads of this process have run.
fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is good for one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn random_source(ty: TensorType) -> WeightSource {
    let mut state = 1u64;
    let half = f16::from_f32(0.01).to_le_bytes();
    let data: Vec<u8> = (0..ty.bytes_of(OUTPUTS * COLS).expect("whole blocks"))
        .map(|i| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            // Float types are all 0.01 or thereabouts: nothing overflows, and nothing is denormal.
            match ty {
                TensorType::F32 | TensorType::BF16 | TensorType::F16 => half[i % 2],
                _ => (state >> 56) as u8,
            }
        })
        .collect();
    WeightSource {
        name: "weight".into(),
        ty,
        rows: OUTPUTS,
        cols: COLS,
        data: data.into(),
    }
}

/// Bytes a second that the team reads from memory.
fn read_bandwidth(team: &Team) -> f64 {
    let words = vec![1u64; 256 << 17];
    let time = median(team.size(), Duration::from_secs(1), || {
        team.split(words.len(), 1 << 16, |range| {
            let sum = words[range]
                .as_chunks::<8>()
                .0
                .iter()
                .fold([0u64; 8], |mut sum, words| {
                    for (sum, word) in sum.iter_mut().zip(words) {
                        *sum ^= word;
                    }
                    sum
                });
            black_box(sum);
        })
        .expect("read");
    });
    (words.len() * 8) as f64 / time
}

/// Multiply-adds of i16 pairs a second, from registers.
fn multiply_peak(team: &Team, isa: Isa) -> f64 {
    const ROUNDS: usize = 100_000;
    const CHAINS: usize = 12;
    let lanes = match isa.level() {
        Level::Avx512 => 16,
        Level::Avx2 => 8,
        Level::Portable => 4,
    };
    let time = median(team.size(), Duration::from_millis(300), || {
        team.run(&|_| match isa.level() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `main` has asked for what the machine has.
            Level::Avx512 => unsafe { x86::avx512::<CHAINS>(ROUNDS) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { x86::avx2::<CHAINS>(ROUNDS) },
            #[cfg(target_arch = "x86_64")]
            Level::Portable => x86::sse2::<CHAINS>(ROUNDS),
            #[cfg(not(target_arch = "x86_64"))]
            _ => {}
        })
        .expect("multiply");
    });
    (team.size() * ROUNDS * CHAINS * lanes * 2) as f64 / time
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{arch::x86_64::*, hint::black_box};

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub unsafe fn avx512<const CHAINS: usize>(rounds: usize) {
        let x = black_box(_mm512_set1_epi16(3));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            sums = sums.map(|sum| _mm512_dpwssd_epi32(sum, x, x));
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2<const CHAINS: usize>(rounds: usize) {
        let x = black_box(_mm256_set1_epi16(3));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..rounds {
            let y = black_box(x);
            sums = sums.map(|sum| _mm256_add_epi32(sum, _mm256_madd_epi16(y, sum)));
        }
        black_box(sums);
    }

    pub fn sse2<const CHAINS: usize>(rounds: usize) {
        // SAFETY: SSE2 is part of the target.
        unsafe {
            let x = black_box(_mm_set1_epi16(3));
            let mut sums = [_mm_setzero_si128(); CHAINS];
            for _ in 0..rounds {
                let y = black_box(x);
                sums = sums.map(|sum| _mm_add_epi32(sum, _mm_madd_epi16(y, sum)));
            }
            black_box(sums);
        }
    }
}
