use super::*;
use crate::Activation;

/// Applies `f` to 16 values on one instruction set.
struct Map<F>([f32; LANES], F);

trait Function {
    fn apply<S: Simd>(&self, s: S, x: S::V) -> S::V;
}

impl<F: Function> Kernel for Map<F> {
    type Out = [f32; LANES];
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; LANES] {
        s.to_array(self.1.apply(s, s.load(&self.0)))
    }
}

struct Exp;
impl Function for Exp {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, x: S::V) -> S::V {
        exp(s, x)
    }
}

struct Softcap(f32);
impl Function for Softcap {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, x: S::V) -> S::V {
        softcap(s, x, self.0)
    }
}

impl Function for Activation {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, x: S::V) -> S::V {
        activate(s, *self, x)
    }
}

/// `count` values from `low` to `high`, 16 at a time.
fn sweep(low: f32, high: f32, count: usize) -> impl Iterator<Item = [f32; LANES]> {
    (0..count / LANES).map(move |i| {
        std::array::from_fn(|lane| low + (high - low) * (i * LANES + lane) as f32 / (count - 1) as f32)
    })
}

#[test]
fn exp_has_a_relative_error_below_2e_7() {
    for isa in Isa::available() {
        for x in sweep(-87.3, 88.3, 1 << 20) {
            for (x, y) in x.into_iter().zip(isa.run(Map(x, Exp))) {
                let exact = f64::from(x).exp();
                let error = (f64::from(y) - exact).abs() / exact;
                assert!(error < 2e-7, "{isa:?}: exp({x}) = {y}, off by {error:e}");
            }
        }
    }
}

#[test]
fn exp_of_extremes() {
    for isa in Isa::available() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[f32::NEG_INFINITY, f32::NAN, f32::INFINITY, -1e30, -0.0, -88.0]);
        let y = isa.run(Map(x, Exp));
        assert_eq!([y[0], y[3], y[4], y[5]], [0.0, 0.0, 1.0, 0.0], "{isa:?}");
        assert!(y[1].is_nan(), "{isa:?}");
        assert!(y[2] > 1e38, "{isa:?}");
    }
}

#[test]
fn activations_and_softcap_are_close_to_their_definitions() {
    let sigmoid = |y: f64| 1.0 / (1.0 + (-y).exp());
    let silu = |x: f64| x * sigmoid(x);
    let gelu = |x: f64| x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x));
    let close = |isa: Isa, x: f32, y: f32, exact: f64, floor: f64| {
        let error = (f64::from(y) - exact).abs();
        assert!(
            error <= 1e-6 * exact.abs() + floor,
            "{isa:?}: {x} gives {y}, not {exact}"
        );
    };
    for isa in Isa::available() {
        for x in sweep(-30.0, 30.0, 1 << 16) {
            let (silus, gelus) = (
                isa.run(Map(x, Activation::Silu)),
                isa.run(Map(x, Activation::GeluTanh)),
            );
            let capped = isa.run(Map(x, Softcap(5.0)));
            for (lane, x) in x.into_iter().enumerate() {
                close(isa, x, silus[lane], silu(f64::from(x)), 1e-9);
                // Its exponent is as large as 2000, which amplifies a rounding; the value there is below 1e-5.
                close(
                    isa,
                    x,
                    gelus[lane],
                    gelu(f64::from(x)),
                    1e-9 + 1e-6 * f64::from(x.abs().min(1.0)),
                );
                close(isa, x, capped[lane], 5.0 * (f64::from(x) / 5.0).tanh(), 1e-6);
            }
        }
    }
}

#[test]
fn f16_conversions_are_exact_and_round_to_nearest_even() {
    struct Widen<'a>(&'a [f16; LANES]);
    impl Kernel for Widen<'_> {
        type Out = [f32; LANES];
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; LANES] {
            s.to_array(s.load_f16(self.0))
        }
    }
    struct Narrow([f32; LANES]);
    impl Kernel for Narrow {
        type Out = [f16; LANES];
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f16; LANES] {
            let mut out = [f16::ZERO; LANES];
            s.store_f16(s.load(&self.0), &mut out);
            out
        }
    }
    for isa in Isa::available() {
        for high in 0..4096u16 {
            let halves: [f16; LANES] = std::array::from_fn(|low| f16::from_bits(high << 4 | low as u16));
            let wide = isa.run(Widen(&halves));
            for (half, wide) in halves.into_iter().zip(wide) {
                assert!(
                    wide == half.to_f32_const() || half.is_nan() && wide.is_nan(),
                    "{isa:?} {half:?}"
                );
            }
            // Halfway to the next f16, and a little to either side.
            for nudge in [-1i32, 0, 1] {
                let between =
                    wide.map(|x| f32::from_bits((x.to_bits() + (1 << 12)).wrapping_add_signed(nudge)));
                for (x, y) in between.into_iter().zip(isa.run(Narrow(between))) {
                    let exact = f16::from_f32_const(x);
                    assert!(
                        y.to_bits() == exact.to_bits() || x.is_nan(),
                        "{isa:?} {x} {y} {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn low_halves_are_in_the_order_of_the_lanes() {
    struct LowHalves([f32; LANES]);
    impl Kernel for LowHalves {
        type Out = [u32; LANES / 2];
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Out {
            s.low_halves(s.load(&self.0))
        }
    }
    let low = |lane: usize| (lane as u32 * 0x9E37) & 0xFFFF;
    let x = std::array::from_fn(|lane| f32::from_bits(0x4B40_0000 | low(lane)));
    let expected: [u32; LANES / 2] = std::array::from_fn(|i| low(2 * i) | low(2 * i + 1) << 16);
    for isa in Isa::available() {
        assert_eq!(isa.run(LowHalves(x)), expected, "{isa:?}");
    }
}

#[test]
fn every_lane_counts_in_a_sum_and_in_the_largest() {
    struct Folds([f32; LANES]);
    impl Kernel for Folds {
        type Out = (f32, f32);
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Out {
            let v = s.load(&self.0);
            (s.sum(v), s.max_lane(v))
        }
    }
    let powers: [f32; LANES] = std::array::from_fn(|lane| (1 << lane) as f32);
    for isa in Isa::available() {
        for turn in 0..LANES {
            let mut x = powers;
            x.rotate_left(turn);
            assert_eq!(isa.run(Folds(x)), (65535.0, 32768.0), "{isa:?}");
        }
    }
}
