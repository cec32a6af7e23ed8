//! Paged attention: which thread computes what. The arithmetic is in [`pass`].
//!
//! A row of many tokens is cut into spans of tokens, a row of few (a decode) into chunks of positions, whose
//! partial results are merged afterwards. Both do the same operations in the same order for each query, so a
//! token's result is the same to the bit in a decode step and in a prefill of any size, beside any other
//! rows, and on any number of threads.

mod merge;
mod pass;

use super::{Isa, Team, kv::KvCache, simd::LANES};
use crate::{AttentionShape, HostStep, Result, step::HostRow};
use merge::{Merge, finish};
pub(super) use pass::Partial;
use pass::{CHUNK, Pass, Tile};
use std::ops::Range;

/// Tokens of a span: a whole number of tiles for any number of heads. A shorter row is cut into chunks.
const SPAN: usize = 12;

/// What the tasks read.
pub(super) struct Attention<'a> {
    pub isa: Isa,
    pub cache: &'a KvCache,
    pub layer: usize,
    pub shape: &'a AttentionShape,
    pub step: &'a HostStep,
    /// `[tokens, heads · head_dim]`.
    pub q: &'a [f32],
}

/// What one thread does at a time.
enum Task<'a> {
    /// All heads of some tokens of a row, over all their positions.
    Span {
        row: &'a HostRow,
        tokens: Range<usize>,
        out: &'a mut [f32],
    },
    /// One KV head of a row's tokens, over one chunk of positions.
    Chunk {
        row: &'a HostRow,
        kv_head: usize,
        chunk: usize,
        out: &'a mut [Partial],
    },
}

/// The chunks of a row that belong together: `[kv head][chunk][query row]`.
struct Merging<'a> {
    row: &'a HostRow,
    partials: Range<usize>,
    out: &'a mut [f32],
}

impl Attention<'_> {
    /// Computes `out`, like `q` in shape. Shapes and block tables have been checked. `partials` is room that
    /// the next layer can use again.
    pub fn run(&self, team: &Team, mut out: &mut [f32], partials: &mut Vec<Partial>) -> Result<()> {
        let cols = self.shape.heads * self.shape.head_dim;
        partials.resize(self.partials_of_step(), Partial::default());
        let mut rest = &mut partials[..];
        let (mut tasks, mut merging) = (Vec::new(), Vec::new());
        let mut used = 0;
        for row in self.step.rows() {
            let (row_out, after) = out.split_at_mut(row.tokens.len() * cols);
            out = after;
            if row.tokens.len() < SPAN {
                let size = self.partials_of_row(row);
                let (row_partials, after) = rest.split_at_mut(size);
                rest = after;
                self.cut_into_chunks(row, row_partials, &mut tasks);
                merging.push(Merging {
                    row,
                    partials: used..used + size,
                    out: row_out,
                });
                used += size;
            } else {
                cut_into_spans(row, row_out, cols, &mut tasks);
            }
        }
        // The longest first, so that no thread is left with a long one at the end.
        tasks.sort_by_key(|task| std::cmp::Reverse(task.length()));
        team.for_each(&mut tasks, |task| self.perform(task))?;
        drop(tasks);
        team.for_each(&mut merging, |item| {
            self.merge(item.row, &partials[item.partials.clone()], item.out)
        })
    }

    fn cut_into_chunks<'a>(&self, row: &'a HostRow, partials: &'a mut [Partial], tasks: &mut Vec<Task<'a>>) {
        let chunks = self.chunks_of(row);
        let size = row.tokens.len() * self.group() * self.stride();
        for (i, out) in partials.chunks_exact_mut(size).enumerate() {
            tasks.push(Task::Chunk {
                row,
                kv_head: i / chunks.len(),
                chunk: chunks.start + i % chunks.len(),
                out,
            });
        }
    }

    fn perform(&self, task: &mut Task<'_>) {
        match task {
            Task::Span { row, tokens, out } => {
                for kv_head in 0..self.shape.kv_heads {
                    self.span(row, tokens.clone(), kv_head, out);
                }
            }
            Task::Chunk {
                row,
                kv_head,
                chunk,
                out,
            } => {
                let mut rest = &mut **out;
                for tile in self.tiles(row, row.tokens.clone(), *kv_head) {
                    let (part, after) = rest.split_at_mut(tile.rows() * self.stride());
                    rest = after;
                    self.pass(row, *kv_head, &tile, *chunk, part);
                }
            }
        }
    }

    /// One KV head of some tokens; `out` is theirs, all heads of it.
    fn span(&self, row: &HostRow, tokens: Range<usize>, kv_head: usize, out: &mut [f32]) {
        let mut first = 0;
        for tile in self.tiles(row, tokens, kv_head) {
            let size = tile.rows() * self.stride();
            let mut total = vec![Partial::default(); size];
            let mut part = total.clone();
            total.chunks_exact_mut(self.stride()).for_each(merge::clear);
            let positions = tile.positions();
            for chunk in positions.start / CHUNK..positions.end.div_ceil(CHUNK) {
                self.pass(row, kv_head, &tile, chunk, &mut part);
                self.isa.run(Merge {
                    stride: self.stride(),
                    total: &mut total,
                    part: &part,
                });
            }
            self.finish(kv_head, first, &total, out);
            first += tile.rows();
        }
    }

    fn pass(&self, row: &HostRow, kv_head: usize, tile: &Tile, chunk: usize, out: &mut [Partial]) {
        self.isa.run(Pass {
            cache: self.cache.head(self.layer, kv_head),
            blocks: self.step.blocks(row),
            softcap: self.shape.softcap,
            tile,
            chunk,
            out,
        });
    }

    /// Merges the chunks of a row in the order of their positions.
    fn merge(&self, row: &HostRow, partials: &[Partial], out: &mut [f32]) {
        let (queries, stride) = (row.tokens.len() * self.group(), self.stride());
        let mut total = vec![Partial::default(); queries * stride];
        let of_head = self.chunks_of(row).len() * queries * stride;
        for (kv_head, partials) in partials.chunks_exact(of_head).enumerate() {
            total.chunks_exact_mut(stride).for_each(merge::clear);
            for part in partials.chunks_exact(queries * stride) {
                self.isa.run(Merge {
                    stride,
                    total: &mut total,
                    part,
                });
            }
            self.finish(kv_head, 0, &total, out);
        }
    }

    /// Writes the results of a KV head's queries, from `first` on, to the heads that they belong to.
    fn finish(&self, kv_head: usize, first: usize, totals: &[Partial], out: &mut [f32]) {
        let (group, dims) = (self.group(), self.shape.head_dim);
        for (query, total) in (first..).zip(totals.chunks_exact(self.stride())) {
            let head = query / group * self.shape.heads + kv_head * group + query % group;
            finish(total, &mut out[head * dims..][..dims]);
        }
    }

    /// The tiles of some tokens' queries of one KV head.
    fn tiles(&self, row: &HostRow, tokens: Range<usize>, kv_head: usize) -> impl Iterator<Item = Tile> {
        let group = self.group();
        let first = tokens.start;
        let queries = tokens.len() * group;
        let mut next = 0;
        let position = row.position + first - row.tokens.start;
        std::iter::from_fn(move || {
            let rows = pass::tile_rows(self.isa, queries - next);
            let range = next..next + rows;
            next = range.end;
            (rows > 0).then(|| {
                Tile::new(
                    self.shape,
                    range.map(|query| {
                        let (token, head) = (query / group, kv_head * group + query % group);
                        let at = ((first + token) * self.shape.heads + head) * self.shape.head_dim;
                        (&self.q[at..at + self.shape.head_dim], position + token)
                    }),
                )
            })
        })
    }

    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// Partials of one query.
    fn stride(&self) -> usize {
        1 + self.shape.head_dim.div_ceil(LANES)
    }

    /// The chunks that a row's tokens see.
    fn chunks_of(&self, row: &HostRow) -> Range<usize> {
        let last = row.position + row.tokens.len() - 1;
        let first = pass::visible(self.shape, row.position).start;
        first / CHUNK..last / CHUNK + 1
    }

    fn partials_of_row(&self, row: &HostRow) -> usize {
        self.chunks_of(row).len() * self.shape.heads * row.tokens.len() * self.stride()
    }

    fn partials_of_step(&self) -> usize {
        let short = self.step.rows().iter().filter(|row| row.tokens.len() < SPAN);
        short.map(|row| self.partials_of_row(row)).sum()
    }
}

fn cut_into_spans<'a>(row: &'a HostRow, out: &'a mut [f32], cols: usize, tasks: &mut Vec<Task<'a>>) {
    for (i, out) in out.chunks_mut(SPAN * cols).enumerate() {
        let start = row.tokens.start + i * SPAN;
        tasks.push(Task::Span {
            row,
            tokens: start..row.tokens.end.min(start + SPAN),
            out,
        });
    }
}

impl Task<'_> {
    /// Roughly how long it takes, to order tasks.
    fn length(&self) -> usize {
        match self {
            Task::Span { row, tokens, .. } => row.position + tokens.end - row.tokens.start + CHUNK,
            Task::Chunk { .. } => 0,
        }
    }
}
