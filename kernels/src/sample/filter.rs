//! Which tokens a draw may take: top-k, top-p and min-p, without sorting the vocabulary.
//!
//! Only tokens near the most probable one are collected; the border of what is kept is found by selection.

use super::{Params, scan};
use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) token: u32,
    logit: f32,
    /// Relative to the most probable token.
    pub(super) probability: f32,
}

/// The filters that are on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filters {
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f32>,
}

impl Filters {
    pub(super) fn new(params: &Params) -> Self {
        Self {
            top_k: (params.top_k > 0).then_some(params.top_k as usize),
            top_p: (params.top_p < 1.0).then_some(params.top_p.into()),
            min_p: (params.min_p > 0.0).then_some(params.min_p),
        }
    }

    pub(super) fn keep_all(&self) -> bool {
        self.top_k.is_none() && self.top_p.is_none() && self.min_p.is_none()
    }

    /// Whether `candidates` hold every token that may be kept, of a row whose mass is `total`. All that they
    /// lack are less probable.
    fn satisfied(&self, candidates: &[Candidate], total: f64) -> bool {
        match (self.top_k, self.top_p) {
            (Some(k), _) => candidates.len() >= k,
            (None, Some(p)) => mass(candidates) >= p * total,
            (None, None) => false,
        }
    }
}

/// Logits this far below the largest, in units of the temperature, are looked at first, then lower ones.
const DEPTHS: [f32; 4] = [6.0, 12.0, 24.0, f32::INFINITY];

/// Collects the tokens that a draw may take, in the order of tokens. `order` is working memory.
pub(super) fn keep(
    logits: &[f32],
    max: f32,
    scale: f32,
    filters: &Filters,
    kept: &mut Vec<Candidate>,
    order: &mut Vec<Candidate>,
) {
    // min-p is a fixed depth; a little more, since it is applied exactly later.
    let enough = filters.min_p.map_or(f32::INFINITY, |p| 0.01 - p.ln());
    let mut whole = match (filters.top_k, filters.top_p) {
        (None, Some(_)) => scan::sum_exp(logits, max, scale),
        _ => 0.0,
    };
    for depth in DEPTHS {
        let depth = depth.min(enough);
        collect(logits, max, scale, max - depth / scale, kept);
        if depth == enough || filters.satisfied(kept, whole) {
            break;
        }
    }
    if let Some(k) = filters.top_k {
        if k < kept.len() {
            order.clone_from(kept);
            let (_, last, _) = order.select_nth_unstable_by(k - 1, rank);
            let last = *last;
            kept.retain(|c| rank(c, &last).is_le());
        }
        whole = mass(kept);
    }
    if let Some(p) = filters.top_p {
        order.clone_from(kept);
        if let Some(last) = reach(order, p * whole) {
            kept.retain(|c| rank(c, &last).is_le());
        }
    }
    if let Some(p) = filters.min_p {
        kept.retain(|c| c.probability >= p);
    }
}

/// The `n` largest logits' tokens, best first, the lower token first among equals.
pub(super) fn best(logits: &[f32], n: usize) -> Vec<u32> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(n + 1);
    if n == 0 {
        return Vec::new();
    }
    let mut least = f32::NEG_INFINITY;
    for (chunk, start) in logits.chunks(CHUNK).zip((0u32..).step_by(CHUNK)) {
        if best.len() == n && !any_at_least(chunk, least) {
            continue;
        }
        for (&logit, token) in chunk.iter().zip(start..) {
            if best.len() < n || logit > least {
                let place = best.partition_point(|&(other, _)| other >= logit);
                best.insert(place, (logit, token));
                best.truncate(n);
                least = best.last().map_or(least, |&(logit, _)| logit);
            }
        }
    }
    best.into_iter().map(|(_, token)| token).collect()
}

/// Tokens that are skipped together where none can matter.
const CHUNK: usize = 64;

fn any_at_least(chunk: &[f32], least: f32) -> bool {
    chunk.iter().fold(false, |any, &logit| any | (logit >= least))
}

fn collect(logits: &[f32], max: f32, scale: f32, least: f32, out: &mut Vec<Candidate>) {
    out.clear();
    for (chunk, start) in logits.chunks(CHUNK).zip((0u32..).step_by(CHUNK)) {
        if any_at_least(chunk, least) {
            for (&logit, token) in chunk.iter().zip(start..) {
                if logit >= least && logit > f32::NEG_INFINITY {
                    out.push(Candidate {
                        token,
                        logit,
                        probability: scan::exp_of((logit - max) * scale),
                    });
                }
            }
        }
    }
}

fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|c| f64::from(c.probability)).sum()
}

/// The more probable first, the lower token among equals.
fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The last of the best candidates whose mass together reaches `target`. Halves what it looks at each time, so
/// it takes linear time.
fn reach(mut candidates: &mut [Candidate], mut target: f64) -> Option<Candidate> {
    while candidates.len() > 1 {
        let half = candidates.len() / 2;
        candidates.select_nth_unstable_by(half - 1, rank);
        let (better, worse) = candidates.split_at_mut(half);
        let mass = mass(better);
        if mass >= target {
            candidates = better;
        } else {
            target -= mass;
            candidates = worse;
        }
    }
    candidates.first().copied()
}
