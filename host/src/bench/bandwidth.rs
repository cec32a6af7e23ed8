//! How fast this machine reads memory: the limit that a decode step is measured against.

use std::{hint::black_box, thread, time::Instant};

const BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

/// Bytes per second that `threads` threads read together from memory that no cache holds; the best of
/// several rounds over 256 MiB.
pub fn read_bandwidth(threads: usize) -> f64 {
    let threads = threads.max(1);
    let data = vec![1u64; BYTES / 8];
    let share = data.len().div_ceil(threads);
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            thread::scope(|scope| {
                for part in data.chunks(share) {
                    scope.spawn(move || black_box(sum(part)));
                }
            });
            BYTES as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

/// Eight independent sums keep the loads, not the additions, the limit.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for eight in part.chunks_exact(8) {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
