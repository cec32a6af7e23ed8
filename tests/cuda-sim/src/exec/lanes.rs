//! The macros that turn an expression over one lane into an instruction over a warp.

/// Declares a function with the vector features that [`super::is_supported`] has checked.
macro_rules! vector_fn {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident $(<$(const $generic:ident: $kind:ty),+>)?
     ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
        $visibility unsafe fn $name $(<$(const $generic: $kind),+>)? ($($argument: $type),*) $body
    };
}

/// `each!(r <- a r, b r => expression)`: an instruction whose destination has class `r` (32 bits),
/// `q` (64 bits) or `p` (predicate), and whose value in a lane is the expression over the lane's sources.
macro_rules! each {
    ($d:ident <- $a:ident $ac:ident => $e:expr) => {{
        vector_fn! { fn run(w: &mut $crate::exec::Warp, i: &$crate::exec::Inst, mask: u32) {
            let x = source!($ac, w, i.a);
            result!($d, w, i, mask, lane, { let $a = value!($ac, x, lane); $e });
        } }
        run as $crate::exec::Run
    }};
    ($d:ident <- $a:ident $ac:ident, $b:ident $bc:ident => $e:expr) => {{
        vector_fn! { fn run(w: &mut $crate::exec::Warp, i: &$crate::exec::Inst, mask: u32) {
            let (x, y) = (source!($ac, w, i.a), source!($bc, w, i.b));
            result!($d, w, i, mask, lane, { let ($a, $b) = (value!($ac, x, lane), value!($bc, y, lane)); $e });
        } }
        run as $crate::exec::Run
    }};
    ($d:ident <- $a:ident $ac:ident, $b:ident $bc:ident, $c:ident $cc:ident => $e:expr) => {{
        vector_fn! { fn run(w: &mut $crate::exec::Warp, i: &$crate::exec::Inst, mask: u32) {
            let (x, y, z) = (source!($ac, w, i.a), source!($bc, w, i.b), source!($cc, w, i.c));
            result!($d, w, i, mask, lane, {
                let ($a, $b, $c) = (value!($ac, x, lane), value!($bc, y, lane), value!($cc, z, lane));
                $e
            });
        } }
        run as $crate::exec::Run
    }};
    ($d:ident <- $a:ident $ac:ident, $b:ident $bc:ident, $c:ident $cc:ident, $f:ident $fc:ident => $e:expr) => {{
        vector_fn! { fn run(w: &mut $crate::exec::Warp, i: &$crate::exec::Inst, mask: u32) {
            let (x, y, z) = (source!($ac, w, i.a), source!($bc, w, i.b), source!($cc, w, i.c));
            let t = source!($fc, w, i.more[0]);
            result!($d, w, i, mask, lane, {
                let ($a, $b, $c) = (value!($ac, x, lane), value!($bc, y, lane), value!($cc, z, lane));
                let $f = value!($fc, t, lane);
                $e
            });
        } }
        run as $crate::exec::Run
    }};
}

macro_rules! source {
    (r, $w:ident, $slot:expr) => {
        $w.r($slot)
    };
    (q, $w:ident, $slot:expr) => {
        $w.q($slot)
    };
    (p, $w:ident, $slot:expr) => {
        $w.p($slot)
    };
}

macro_rules! value {
    (p, $x:ident, $lane:ident) => {
        $x >> $lane & 1 != 0
    };
    ($class:ident, $x:ident, $lane:ident) => {
        $x[$lane]
    };
}

macro_rules! result {
    (r, $w:ident, $i:ident, $mask:ident, $lane:ident, $e:expr) => {
        let mut out = [0u32; $crate::exec::LANES];
        for $lane in 0..$crate::exec::LANES {
            out[$lane] = $e;
        }
        $w.set_r($i.d, &out, $mask);
    };
    (q, $w:ident, $i:ident, $mask:ident, $lane:ident, $e:expr) => {
        let mut out = [0u64; $crate::exec::LANES];
        for $lane in 0..$crate::exec::LANES {
            out[$lane] = $e;
        }
        $w.set_q($i.d, &out, $mask);
    };
    (p, $w:ident, $i:ident, $mask:ident, $lane:ident, $e:expr) => {
        let mut out = 0u32;
        for $lane in 0..$crate::exec::LANES {
            out |= ($e as u32) << $lane;
        }
        $w.set_p($i.d, out, $mask);
    };
}
