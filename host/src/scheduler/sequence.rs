//! One request's tokens, blocks and place in the life of a sequence.

use super::{
    RequestId,
    pool::BlockPool,
    prefix::{ROOT, Serial},
    snapshots::Mark,
};
use crate::request::{Request, SessionId, Stage};
use met_backend_api::{Sampling, TokenBias, TokenCount, abi::SampledBy};

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In the line, never admitted.
    Waiting,
    /// Its tokens are being put into the cache.
    Prefilling,
    /// It has sampled a token since it was admitted: one row a step.
    Active,
    /// Its blocks were taken; it is back in the line, or will be when its last step in flight comes back.
    Preempted,
    /// Its blocks are to be copied to host memory once its last step in flight comes back.
    SwappingOut,
    /// Its blocks are kept in host memory; it is back in the line.
    Swapped,
    /// It has blocks again, into which what was kept is to be copied.
    SwappingIn,
    /// It shares blocks up to a snapshot, which is to be copied to its slot.
    Restoring,
    /// Its last event was sent; it holds its blocks until its last step in flight comes back.
    Leaving,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub id: RequestId,
    pub state: State,
    /// The client is slow: it takes no part in steps.
    pub paused: bool,
    /// The prompt, then what was generated and collected.
    pub tokens: Vec<u32>,
    pub prompt: u32,
    pub max_tokens: u32,
    /// Tokens whose place in the cache is written, or being written by a step in flight.
    pub placed: u32,
    /// Tokens whose place in the cache is kept in host memory.
    pub saved: u32,
    /// It was brought back and has given no token since.
    pub is_fresh: bool,
    /// The highest `placed` that was collected, over all admissions.
    pub computed: u32,
    /// Steps in flight with a row of it.
    pub in_flight: u32,
    /// Tokens sampled by steps in flight, and by which row the newest.
    pub pending: u32,
    pub newest: Option<SampledBy>,
    pub blocks: Vec<u32>,
    /// How many of its blocks the pool knows the tokens of, and what stands for these.
    pub known: u32,
    pub prefix: Serial,
    /// The slot of its recurrent state, while it holds blocks; of a model that has such state.
    pub slot: Option<u32>,
    /// The snapshot that it pins until it is copied to its slot.
    pub snapshot: Option<u32>,
    /// The newest snapshot that was taken while it generated.
    pub newest_snapshot: Option<Mark>,
    /// A failed step left its state undefined: it begins again from a snapshot, or at its first token.
    pub is_lost: bool,
    /// A snapshot could not be copied to its slot: it shares nothing any more.
    pub is_wary: bool,
    /// How often it did so since it got further than before.
    pub restarts: u32,
    /// The session that keeps its blocks when it leaves, and whether it came so far that it does.
    pub session: Option<SessionId>,
    pub keeps_session: bool,
    /// Tokens that were found in the cache when it was first admitted, and whether its client was told.
    pub cached: u32,
    pub is_started: bool,
    pub sampling: Sampling,
    pub stop_tokens: Vec<u32>,
    pub top_logprobs: Option<u32>,
    pub bias: Vec<TokenBias>,
    /// Sorted by token; empty where no penalty is used.
    pub counts: Vec<TokenCount>,
}

impl Sequence {
    pub fn new(id: RequestId, request: Request) -> Self {
        let sampling = request.sampling;
        let prompt = request.prompt.len() - request.generated as usize;
        let kept = request.kept.map_or(0, |kept| kept.tokens());
        // The last token is computed here in any case: the next one comes of it.
        let is_kept = (1..request.prompt.len() as u32).contains(&kept);
        let mut counts = Vec::new();
        if uses_counts(&sampling) {
            counts = count_prompt(&request.prompt[..prompt]);
            for token in &request.prompt[prompt..] {
                count(&mut counts, *token);
            }
        }
        Self {
            id,
            state: if is_kept { State::Swapped } else { State::Waiting },
            paused: false,
            prompt: prompt as u32,
            tokens: request.prompt,
            max_tokens: request.max_tokens,
            placed: 0,
            saved: if is_kept { kept } else { 0 },
            is_fresh: false,
            computed: 0,
            in_flight: 0,
            pending: 0,
            newest: None,
            blocks: Vec::new(),
            known: 0,
            prefix: ROOT,
            slot: None,
            snapshot: None,
            newest_snapshot: None,
            is_lost: false,
            is_wary: false,
            restarts: 0,
            session: request.session,
            keeps_session: false,
            cached: 0,
            is_started: request.generated > 0,
            sampling,
            stop_tokens: request.stop_tokens,
            top_logprobs: request.top_logprobs,
            bias: request
                .bias
                .iter()
                .map(|&(token, bias)| TokenBias { token, bias })
                .collect(),
            counts,
        }
    }

    /// What is still asked for, and all that was given. No step may be in flight.
    pub fn request(&self) -> Request {
        Request {
            prompt: self.tokens.clone(),
            generated: self.generated(),
            max_tokens: self.max_tokens,
            sampling: self.sampling,
            stop_tokens: self.stop_tokens.clone(),
            top_logprobs: self.top_logprobs,
            bias: self.bias.iter().map(|bias| (bias.token, bias.bias)).collect(),
            session: self.session.clone(),
            kept: None,
        }
    }

    /// Tokens that exist, those sampled by steps in flight included.
    pub fn total(&self) -> u32 {
        self.tokens.len() as u32 + self.pending
    }

    fn forget_blocks(&mut self) {
        self.placed = 0;
        self.known = 0;
        self.prefix = ROOT;
        self.is_lost = false;
    }

    /// Takes from the pool what is known of its beginning. Returns how many tokens that is.
    pub fn share(&mut self, pool: &mut BlockPool) -> u32 {
        if self.is_wary {
            return 0;
        }
        let shared = pool.share(&self.tokens, &mut self.blocks);
        (self.prefix, self.snapshot) = (shared.prefix, shared.snapshot);
        self.known = self.blocks.len() as u32;
        self.placed = self.known * pool.block_size();
        self.placed
    }

    /// Gives back what it holds of the pool.
    pub fn release(&mut self, pool: &mut BlockPool) {
        pool.release(&mut self.blocks);
        if let Some(snapshot) = self.snapshot.take() {
            pool.unpin_snapshot(snapshot);
        }
        self.forget_blocks();
    }

    /// Lets the pool know of the blocks that are full and computed, now that its tokens are up to `end`. Returns the
    /// last block that is known to hold these.
    pub fn make_known(&mut self, end: u32, pool: &mut BlockPool) -> Option<u32> {
        let size = pool.block_size();
        let mut last = None;
        while (self.known + 1) * size <= end {
            let tokens = (self.known * size) as usize..((self.known + 1) * size) as usize;
            let block = self.blocks[self.known as usize];
            let (known, prefix) = pool.know(self.prefix, &self.tokens[tokens], block);
            (last, self.prefix) = (Some(known), prefix);
            self.known += 1;
        }
        last
    }

    /// Tokens generated and collected.
    pub fn generated(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt
    }

    /// Whether it holds blocks that it may go on with.
    pub fn is_admitted(&self) -> bool {
        matches!(self.state, State::Prefilling | State::Active)
    }

    /// Whether it gives its blocks back as soon as they are not in use.
    pub fn is_parking(&self) -> bool {
        matches!(self.state, State::SwappingOut | State::Preempted)
    }

    /// Where it stands, as its client would be told; none once it has left.
    pub fn stage(&self) -> Option<Stage> {
        Some(match self.state {
            State::Waiting => Stage::Waiting,
            State::Prefilling => Stage::Prefilling,
            State::Active => Stage::Generating,
            State::SwappingOut | State::Swapped | State::SwappingIn => Stage::Swapped,
            State::Restoring => Stage::Prefilling,
            State::Preempted => Stage::Preempted,
            State::Leaving => return None,
        })
    }

    /// Whether what it holds is to be copied before it goes on, or goes.
    pub fn is_copying(&self) -> bool {
        matches!(
            self.state,
            State::SwappingOut | State::SwappingIn | State::Restoring
        )
    }

    /// Whether a row of it can be in the next step.
    pub fn is_runnable(&self) -> bool {
        // The penalties need every earlier token on the host, so such a sequence isn't run ahead.
        let known = self.pending == 0 || !uses_counts(&self.sampling);
        self.is_admitted()
            && !self.is_lost
            && !self.paused
            && known
            && self.generated() + self.pending < self.max_tokens
    }

    /// Appends a generated token.
    pub fn push(&mut self, token: u32) {
        self.is_fresh = false;
        self.tokens.push(token);
        if uses_counts(&self.sampling) {
            count(&mut self.counts, token);
        }
    }
}

fn uses_counts(sampling: &Sampling) -> bool {
    sampling.repetition_penalty != 1.0
        || sampling.presence_penalty != 0.0
        || sampling.frequency_penalty != 0.0
}

/// Counts a generated token.
fn count(counts: &mut Vec<TokenCount>, token: u32) {
    match counts.binary_search_by_key(&token, |count| count.token) {
        Ok(at) => counts[at].generated += 1,
        Err(at) => counts.insert(at, TokenCount { token, generated: 1 }),
    }
}

fn count_prompt(prompt: &[u32]) -> Vec<TokenCount> {
    let mut tokens = prompt.to_vec();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
        .into_iter()
        .map(|token| TokenCount { token, generated: 0 })
        .collect()
}
