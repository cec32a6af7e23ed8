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

/// Working memory.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The tokens that a draw may take, in the order of tokens.
    pub(super) candidates: Vec<Candidate>,
    order: Vec<Candidate>,
    scratch: Vec<f32>,
}

/// Logits this far below the largest, in units of the temperature, are looked at first, then lower ones.
const DEPTHS: [f32; 4] = [6.0, 12.0, 24.0, f32::INFINITY];

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

impl Kept {
    /// Collects the tokens that `filters` keep at the temperature `1 / scale`.
    pub(super) fn fill(&mut self, row: scan::Row<'_>, scale: f32, filters: &Filters) {
        // min-p is a fixed depth; a little more, since it is applied exactly later.
        let enough = filters.min_p.map_or(f32::INFINITY, |p| 0.01 - p.ln());
        let total = match (filters.top_k, filters.top_p) {
            (None, Some(_)) => scan::sums(row.values, row.max, scale, &mut self.scratch),
            _ => 0.0,
        };
        for depth in DEPTHS {
            let depth = depth.min(enough);
            self.collect(row, scale, depth);
            if depth == enough || filters.satisfied(&self.candidates, total) {
                break;
            }
        }
        if let Some(k) = filters.top_k
            && k < self.candidates.len()
        {
            self.order.clone_from(&self.candidates);
            let (_, last, _) = self.order.select_nth_unstable_by(k - 1, rank);
            let last = *last;
            self.candidates.retain(|c| rank(c, &last).is_le());
        }
        if let Some(p) = filters.top_p {
            let whole = match filters.top_k {
                Some(_) => mass(&self.candidates),
                None => total,
            };
            self.order.clone_from(&self.candidates);
            if let Some(last) = reach(&mut self.order, p * whole) {
                self.candidates.retain(|c| rank(c, &last).is_le());
            }
        }
        if let Some(p) = filters.min_p {
            self.candidates.retain(|c| c.probability >= p);
        }
    }

    fn collect(&mut self, row: scan::Row<'_>, scale: f32, depth: f32) {
        let least = row.max - depth / scale;
        let near = |&(_, logit): &(u32, f32)| logit >= least && logit > f32::NEG_INFINITY;
        self.candidates.clear();
        for block in row.blocks(least) {
            self.candidates
                .extend(block.filter(near).map(|(token, logit)| Candidate {
                    token,
                    logit,
                    probability: 0.0,
                }));
        }
        self.scratch.clear();
        self.scratch.extend(self.candidates.iter().map(|c| c.logit));
        scan::exponentials(&mut self.scratch, row.max, scale);
        for (candidate, &probability) in self.candidates.iter_mut().zip(&self.scratch) {
            candidate.probability = probability;
        }
    }
}

/// The `n` largest logits' tokens, best first, the lower token first among equals.
pub(super) fn best(row: scan::Row<'_>, n: usize) -> Vec<u32> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(n + 1);
    // The n-th largest of the blocks' largest is a lower bound of the n-th largest of all.
    let mut maxima = row.maxima.to_vec();
    let least = match n.checked_sub(1) {
        None => return Vec::new(),
        Some(last) if last < maxima.len() => *maxima.select_nth_unstable_by(last, |a, b| b.total_cmp(a)).1,
        Some(_) => f32::NEG_INFINITY,
    };
    for (token, logit) in row.blocks(least).flatten() {
        if best.len() < n || best.last().is_some_and(|&(worst, _)| logit > worst) {
            let place = best.partition_point(|&(other, _)| other >= logit);
            best.insert(place, (logit, token));
            best.truncate(n);
        }
    }
    best.into_iter().map(|(_, token)| token).collect()
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
