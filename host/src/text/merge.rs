//! The merge loop of byte-pair encoding: the best adjacent pair is joined until none is left.
//!
//! A heap holds candidate pairs, so a text of n symbols takes O(n log n) steps whatever it contains.

use std::{cmp::Reverse, collections::BinaryHeap};

/// A run of the text that is, or may become, a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// The token; `None` for a run that is not in the vocabulary.
    pub id: Option<u32>,
    /// Where it begins in the text, in bytes.
    pub start: u32,
    /// Bytes; 0 once it was joined to the symbol before it.
    pub len: u32,
    previous: u32,
    next: u32,
}

/// A join that the vocabulary allows.
pub(super) struct Merge {
    /// The lowest is done first; of equals, the leftmost.
    pub priority: u32,
    /// The token that results.
    pub id: u32,
}

/// The working memory, kept between texts.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

/// Field order is the order of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    /// Bytes of both symbols together. Symbols only grow, so a candidate whose sum differs is stale.
    len: u32,
    id: u32,
}

const NONE: u32 = u32::MAX;

impl Merger {
    /// Starts a text of `u32::MAX` bytes at most.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends the next `len` bytes of the text as a symbol.
    pub fn push(&mut self, id: Option<u32>, len: usize) {
        let i = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |s| s.start + s.len);
        if let Some(last) = self.symbols.last_mut() {
            last.next = i;
        }
        self.symbols.push(Symbol {
            id,
            start,
            len: len as u32,
            previous: i.checked_sub(1).unwrap_or(NONE),
            next: NONE,
        });
    }

    /// Joins pairs while `rule` allows it, and gives what is left, in order.
    pub fn merge(
        &mut self,
        rule: impl Fn(&Symbol, &Symbol) -> Option<Merge>,
    ) -> impl Iterator<Item = &Symbol> {
        for left in 0..self.symbols.len() as u32 {
            self.consider(left, &rule);
        }
        while let Some(Reverse(best)) = self.heap.pop() {
            let left = self.symbols[best.left as usize];
            let Some(&right) = self.symbols.get(left.next as usize) else {
                continue;
            };
            if left.len == 0 || left.len + right.len != best.len {
                continue;
            }
            self.symbols[left.next as usize].len = 0;
            self.symbols[best.left as usize] = Symbol {
                id: Some(best.id),
                len: best.len,
                next: right.next,
                ..left
            };
            if let Some(after) = self.symbols.get_mut(right.next as usize) {
                after.previous = best.left;
            }
            self.consider(left.previous, &rule);
            self.consider(best.left, &rule);
        }
        self.symbols.iter().filter(|s| s.len > 0)
    }

    /// Notes the pair that begins at `left`, where there is one and it may be joined.
    fn consider(&mut self, left: u32, rule: &impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let pair = self.symbols.get(left as usize).and_then(|a| {
            let b = self.symbols.get(a.next as usize)?;
            Some((a, b))
        });
        if let Some((a, b)) = pair
            && let Some(Merge { priority, id }) = rule(a, b)
        {
            self.heap.push(Reverse(Candidate {
                priority,
                left,
                len: a.len + b.len,
                id,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Joins about half of all pairs, in an order of its own.
    fn join(a: u32, b: u32) -> Option<Merge> {
        let id = (a * 7 + b * 13) % 11;
        let priority = (a * 5 + b * 3) % 8;
        (id < 6).then_some(Merge { priority, id })
    }

    /// The definition: look at every pair, join the best, start again.
    fn naive(ids: &[u32]) -> Vec<u32> {
        let mut ids = ids.to_vec();
        loop {
            let pairs = ids.windows(2).enumerate();
            let joins = pairs.filter_map(|(i, w)| Some((i, join(w[0], w[1])?)));
            let Some((i, best)) = joins.min_by_key(|(i, join)| (join.priority, *i)) else {
                return ids;
            };
            ids[i] = best.id;
            ids.remove(i + 1);
        }
    }

    fn merged(ids: &[u32], rule: impl Fn(u32, u32) -> Option<Merge>) -> Vec<u32> {
        let mut merger = Merger::default();
        ids.iter().for_each(|&id| merger.push(Some(id), 1));
        let rest = merger.merge(|a, b| rule(a.id?, b.id?));
        rest.filter_map(|s| s.id).collect()
    }

    proptest! {
        #[test]
        fn joins_as_the_definition_does(ids in proptest::collection::vec(0u32..6, 0..60)) {
            prop_assert_eq!(merged(&ids, join), naive(&ids));
        }
    }

    #[test]
    fn a_million_equal_symbols_take_no_quadratic_time() {
        let doubled = |a, b| {
            (a == b && a < 6).then(|| Merge {
                priority: a,
                id: a + 1,
            })
        };
        assert_eq!(merged(&vec![0; 1 << 20], doubled).len(), 1 << 14);
    }
}
