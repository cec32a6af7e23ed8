//! A step under way: what was asked of it, and where its results are.

use crate::{
    Decoder, Error, Result,
    arena::LOGITS_ROWS,
    convert,
    pools::Pools,
    step::{Place, Sampled},
};
use met_backend_api::{Row, RowOutput, Ticket, TokenLogprob, Want, sdk::Output};
use met_kernels::{
    Ops, Taken,
    sample::{Choice, Request, Scratch},
};
use std::ops::Range;

/// A step that was submitted and not collected.
pub(crate) struct Flight<O: Ops> {
    pub(crate) ticket: Ticket,
    rows: usize,
    rounds: Vec<Round<O>>,
    logits: Logits,
}

/// Rows whose tokens are chosen together.
struct Round<O: Ops> {
    /// Each row's index, and how many top log-probabilities it wants.
    rows: Vec<(usize, u32)>,
    choices: O::Choices,
}

/// Logits that the caller gets.
enum Logits {
    /// Those of these rows of the arena's `normed`.
    Wanted(Vec<u32>),
    /// These, since `normed` had to serve another step.
    Computed(Vec<f32>),
}

impl<O: Ops> Flight<O> {
    /// Asks for the tokens of the rows that want one, and notes the others. `rows` come with the part of `normed` that
    /// belongs to each.
    pub(crate) fn new(
        ticket: Ticket,
        ops: &mut O,
        model: &Decoder,
        pools: &mut Pools<O>,
        (rows, wanted): (&[Row<'_>], &[Range<u32>]),
        vocab: usize,
        scratch: &mut Scratch,
    ) -> Result<Self> {
        let (mut sampling, mut logits) = (Vec::new(), Vec::new());
        for (i, (row, wanted)) in rows.iter().zip(wanted).enumerate() {
            match row.want {
                Want::Token => sampling.push((i, wanted.start)),
                _ => logits.extend(wanted.clone()),
            }
        }
        let round = |chunk: &[(usize, u32)]| {
            let normed: Vec<u32> = chunk.iter().map(|&(_, row)| row).collect();
            let requests: Vec<_> = chunk.iter().map(|&(i, _)| request(&rows[i])).collect();
            model.logits(ops, pools, &normed)?;
            let choices = ops.sample(
                pools.arena.buffers(model.config())?.logits,
                vocab,
                &requests,
                scratch,
            )?;
            let rows = chunk.iter().map(|&(i, _)| (i, rows[i].top_logprobs)).collect();
            Ok(Round { rows, choices })
        };
        Ok(Self {
            ticket,
            rows: rows.len(),
            rounds: sampling.chunks(LOGITS_ROWS).map(round).collect::<Result<_>>()?,
            logits: Logits::Wanted(logits),
        })
    }

    /// What each row samples, not known yet.
    pub(crate) fn sampled(&self) -> Vec<Sampled> {
        let mut sampled = vec![Sampled::Nothing; self.rows];
        for (round, Round { rows, .. }) in self.rounds.iter().enumerate() {
            for (request, &(row, _)) in rows.iter().enumerate() {
                sampled[row] = Sampled::UnderWay(Place { round, request });
            }
        }
        sampled
    }

    /// Tokens of a later step that this one is sampling.
    pub(crate) fn taken(&self, inputs: &[(usize, Place)]) -> Result<Vec<Taken<'_, O::Choices>>> {
        let taken = inputs.iter().map(|&(token, place)| {
            let round = self.rounds.get(place.round);
            let round = round.ok_or_else(|| Error::bug("a step's input is in no round of the last step"))?;
            Ok(Taken {
                token,
                choices: &round.choices,
                request: place.request,
            })
        });
        taken.collect()
    }

    /// Computes the logits that the caller gets while they can be.
    pub(crate) fn settle(
        &mut self,
        ops: &mut O,
        model: &Decoder,
        pools: &mut Pools<O>,
        vocab: usize,
    ) -> Result<()> {
        if let Logits::Wanted(rows) = &self.logits
            && !rows.is_empty()
        {
            let mut computed = vec![0.0; rows.len() * vocab];
            compute(ops, model, pools, vocab, rows, &mut computed)?;
            self.logits = Logits::Computed(computed);
        }
        Ok(())
    }

    /// Rows, top log-probabilities and logits that the caller must have room for.
    pub(crate) fn needed(&self, vocab: usize) -> [usize; 3] {
        let rows = self.rounds.iter().flat_map(|round| &round.rows);
        let top = rows.map(|&(_, top)| listed(top, vocab)).sum();
        let logits = match &self.logits {
            Logits::Wanted(rows) => rows.len() * vocab,
            Logits::Computed(values) => values.len(),
        };
        [self.rows, top, logits]
    }

    /// Waits for the results and writes them to `out`, which has room for them. Returns what each row sampled.
    pub(crate) fn land(
        self,
        ops: &mut O,
        model: &Decoder,
        pools: &mut Pools<O>,
        vocab: usize,
        out: &mut Output<'_>,
    ) -> Result<Vec<Sampled>> {
        let mut sampled = vec![Sampled::Nothing; self.rows];
        out.rows[..self.rows].fill(RowOutput::default());
        let mut top = out.top.iter_mut();
        for Round { rows, choices } in self.rounds {
            for (&(row, listed_top), choice) in rows.iter().zip(ops.collect(choices)?) {
                if let Some(chosen) = choice.sampled {
                    sampled[row] = Sampled::Token(chosen.token);
                }
                out.rows[row] = output(choice, listed(listed_top, vocab), &mut top);
            }
        }
        match &self.logits {
            Logits::Wanted(rows) => {
                let out = &mut out.logits[..rows.len() * vocab];
                compute(ops, model, pools, vocab, rows, out)?;
            }
            Logits::Computed(values) => out.logits[..values.len()].copy_from_slice(values),
        }
        Ok(sampled)
    }
}

/// How many of the most probable tokens are listed where `wanted` are asked for.
fn listed(wanted: u32, vocab: usize) -> usize {
    (wanted as usize).min(vocab)
}

/// The logits of rows of the arena's `normed`.
fn compute<O: Ops>(
    ops: &mut O,
    model: &Decoder,
    pools: &mut Pools<O>,
    vocab: usize,
    rows: &[u32],
    out: &mut [f32],
) -> Result<()> {
    for (rows, out) in rows.chunks(LOGITS_ROWS).zip(out.chunks_mut(LOGITS_ROWS * vocab)) {
        model.logits(ops, pools, rows)?;
        ops.download(pools.arena.buffers(model.config())?.logits, rows.len(), out)?;
    }
    Ok(())
}

fn request<'a>(row: &Row<'a>) -> Request<'a> {
    let counts = row.counts.as_slice().iter();
    Request {
        params: convert::sampling(&row.sampling),
        position: row.position + row.tokens.len().max(1) as u32,
        counts: counts.map(|c| (c.token, c.generated)).collect(),
        bias: row.bias.as_slice().iter().map(|b| (b.token, b.bias)).collect(),
        mask: row.mask.as_slice(),
        top: row.top_logprobs as usize,
    }
}

/// A row's output; its top log-probabilities go to the next entries of `top`, also where there are none, so that the
/// rows after it find theirs.
fn output<'a>(
    choice: Choice,
    listed: usize,
    top: &mut impl Iterator<Item = &'a mut TokenLogprob>,
) -> RowOutput {
    let best = choice.top.into_iter().map(convert::logprob);
    for (to, entry) in top
        .by_ref()
        .take(listed)
        .zip(best.chain(std::iter::repeat(TokenLogprob::default())))
    {
        *to = entry;
    }
    RowOutput {
        sampled: choice.sampled.map(convert::logprob).unwrap_or_default(),
        not_finite: choice.sampled.is_none(),
        top: listed as u32,
    }
}
