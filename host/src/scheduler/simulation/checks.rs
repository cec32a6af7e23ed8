//! What must hold in a simulated run.

use super::{PATIENCE, World, clients::Client};
use crate::{
    engine::testing::next_token,
    request::{Event, Failure, FinishReason},
    scheduler::{RequestId, sequence::State},
};
use met_backend_api::TokenCount;
use std::collections::BTreeMap;

impl World {
    /// The oldest request that may run doesn't go without for long.
    pub fn age(&mut self, planned: &[RequestId]) {
        let Some((id, client)) = self.clients.iter_mut().find(|(_, client)| !client.paused) else {
            return;
        };
        client.passed_over = if planned.contains(id) {
            0
        } else {
            client.passed_over + 1
        };
        assert!(client.passed_over < PATIENCE, "{id:?} is the oldest and starves");
    }

    /// An event is the one that the request's tokens call for.
    pub fn check_event(&mut self, id: RequestId, event: Event, aborted: bool) {
        let (vocab, longest, fenced) = (self.limits.vocab_size, self.limits, self.scheduler.is_fenced());
        let exhausted = self.exhausted_in_a_row;
        let client = self.client(id);
        let generated = client.tokens.len() - client.request.prompt.len();
        let next = next_token(&client.tokens, &client.request.sampling, &counts(client), vocab);
        match event {
            Event::Token(token) => {
                assert_eq!(token.id, next, "{id:?}: wrong token {generated}");
                assert_eq!(token.top.len() as u32, client.request.top_logprobs.unwrap_or(0));
                assert!(
                    token.top.iter().all(|(_, logprob)| *logprob == token.logprob),
                    "another row's"
                );
                assert!(client.started, "{id:?}: a token before the start");
                assert!(!client.request.stop_tokens.contains(&token.id));
                assert!(generated < client.request.max_tokens as usize);
                client.tokens.push(token.id);
                return;
            }
            Event::Started { cached } => {
                assert!(!client.started && generated == 0, "{id:?} started twice");
                assert!((cached as usize) < client.request.prompt.len());
                client.started = true;
                self.reached.cached += u64::from(cached > 0);
                return;
            }
            Event::Finished(FinishReason::Stop) => {
                assert!(client.request.stop_tokens.contains(&next));
                self.reached.stopped += 1;
            }
            Event::Finished(FinishReason::Length) => {
                assert_eq!(generated, client.request.max_tokens as usize);
                self.reached.lengths += 1;
            }
            Event::Failed(Failure::Invalid(_)) => {
                assert!(
                    client.poisoned || longest.check(&client.request).is_err(),
                    "{id:?} was not invalid"
                );
            }
            Event::Failed(Failure::Backend(_)) => {
                assert!(fenced || exhausted > 8, "{id:?} failed without a reason")
            }
            Event::Failed(Failure::Draining) => panic!("{id:?} was not to go on elsewhere"),
            Event::Failed(Failure::Cut(_)) => assert!(aborted),
            Event::Moved(_) => panic!("{id:?} was not asked to move"),
            Event::Failed(Failure::SlowClient) => panic!("{id:?} was not slow"),
        }
        let ended = self.clients.remove(&id);
        self.conversations.extend(ended.map(|client| client.tokens));
    }

    /// What is true between any two inputs.
    pub fn check_state(&self) {
        let scheduler = &self.scheduler;
        let mut held = vec![0; self.limits.block_count as usize];
        for block in scheduler.running.iter().flat_map(|sequence| &sequence.blocks) {
            held[*block as usize] += 1;
        }
        for (block, (holders, can_be_had)) in scheduler.pool.blocks().enumerate() {
            assert_eq!(holders, held[block], "block {block} is lost or held twice");
            assert_eq!(
                can_be_had,
                holders == 0,
                "block {block} is held and given away, or neither"
            );
        }
        for sequence in &scheduler.running {
            let written = (sequence.known * self.limits.block_size) as usize;
            assert!(
                written <= sequence.placed as usize,
                "what is known is not computed"
            );
            let own = &sequence.blocks[sequence.known as usize..];
            assert!(
                own.iter().all(|block| held[*block as usize] == 1),
                "{:?} writes to a block that others read",
                sequence.id
            );
        }
        assert!(scheduler.running.is_sorted_by_key(|sequence| sequence.id));
        assert!(scheduler.waiting.iter().is_sorted_by_key(|sequence| sequence.id));
        assert!(scheduler.running.len() <= self.limits.max_running as usize);
        assert!(scheduler.flights.len() <= self.limits.max_in_flight as usize);
        for sequence in &scheduler.running {
            let rows = scheduler
                .flights
                .iter()
                .flat_map(|flight| &flight.rows)
                .filter(|row| row.id == sequence.id);
            assert_eq!(sequence.in_flight as usize, rows.count());
            assert!(
                sequence.is_admitted() || sequence.is_copying() || sequence.in_flight > 0,
                "{:?} holds blocks for nothing",
                sequence.id
            );
            assert_eq!(
                self.clients.contains_key(&sequence.id),
                sequence.state != State::Leaving
            );
        }
        for sequence in &scheduler.waiting {
            assert!(sequence.blocks.is_empty() && sequence.in_flight == 0 && sequence.pending == 0);
            assert!(self.clients.contains_key(&sequence.id));
        }
        let counted = scheduler.counts();
        let known =
            counted.waiting + counted.prefilling + counted.active + counted.preempted + counted.swapped;
        assert_eq!(known as usize, self.clients.len(), "requests are lost");
    }
}

/// The counts that a request's penalties need, reckoned from the start.
fn counts(client: &Client) -> Vec<TokenCount> {
    if client.request.sampling.presence_penalty == 0.0 {
        return Vec::new();
    }
    let mut counts = BTreeMap::new();
    for (at, token) in client.tokens.iter().enumerate() {
        *counts.entry(*token).or_insert(0) += u32::from(at >= client.request.prompt.len());
    }
    counts
        .into_iter()
        .map(|(token, generated)| TokenCount { token, generated })
        .collect()
}
