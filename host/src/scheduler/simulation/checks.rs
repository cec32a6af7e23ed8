//! What must hold in a simulated run.

use super::{PATIENCE, World};
use crate::{
    engine::testing::token_after,
    request::{Event, Failure, FinishReason},
    scheduler::{RequestId, sequence::State},
};
use std::collections::{BTreeMap, BTreeSet};

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
        let (exhausted, recurrent) = (self.exhausted_in_a_row, self.limits.state_slots > 0);
        let client = self.client(id);
        let generated = client.tokens.len() - client.request.prompt.len();
        let next = token_after(&client.request, &client.tokens, vocab);
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
                    client.poisoned || client.curse.is_some() || longest.check(&client.request).is_err(),
                    "{id:?} was not invalid"
                );
            }
            Event::Failed(Failure::Backend(_)) => {
                let restarted = recurrent && client.failed_steps > 8;
                assert!(
                    fenced || exhausted > 8 || restarted,
                    "{id:?} failed without a reason"
                )
            }
            Event::Failed(Failure::Draining) => panic!("{id:?} was not to go on elsewhere"),
            Event::Failed(Failure::Cut(_)) => assert!(aborted),
            Event::Moved(_) => panic!("{id:?} was not asked to move"),
            Event::Failed(Failure::SlowClient) => panic!("{id:?} was not slow"),
        }
        self.kept.forget(id);
        let ended = self.clients.remove(&id);
        let finished = ended
            .iter()
            .filter(|client| client.started && client.request.session.is_some());
        self.reached.sessions += finished.count() as u64;
        self.conversations.extend(ended.map(|client| client.tokens));
    }

    /// What is true between any two inputs.
    pub fn check_state(&self) {
        let scheduler = &self.scheduler;
        let mut held = vec![0; self.limits.block_count as usize];
        for block in scheduler.running.iter().flat_map(|sequence| &sequence.blocks) {
            held[*block as usize] += 1;
        }
        for (blocks, _) in scheduler.sessions.held() {
            for block in blocks {
                held[*block as usize] += 1;
            }
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
        self.check_sessions();
        self.check_slots();
        self.check_snapshots();
        let parked = scheduler.running.iter().chain(&scheduler.waiting);
        let parked = parked.filter(|sequence| matches!(sequence.state, State::Swapped | State::SwappingIn));
        let parked: BTreeSet<RequestId> = parked.map(|sequence| sequence.id).collect();
        assert!(
            self.kept.ids().eq(parked),
            "a parked copy is lost, or kept for nobody"
        );
        let counted = scheduler.counts();
        let known =
            counted.waiting + counted.prefilling + counted.active + counted.preempted + counted.swapped;
        assert_eq!(known as usize, self.clients.len(), "requests are lost");
    }
}

impl World {
    fn check_sessions(&self) {
        let (sessions, limits) = (&self.scheduler.sessions, &self.limits);
        let blocks: BTreeSet<u32> = sessions
            .held()
            .flat_map(|(blocks, _)| blocks.iter().copied())
            .collect();
        assert_eq!(sessions.pinned() as usize, blocks.len());
        assert!(sessions.count() <= limits.max_sessions && sessions.pinned() <= limits.block_count / 2);
    }

    /// Each sequence that holds blocks has a slot of its own, whose state is where the sequence is.
    fn check_slots(&self) {
        let scheduler = &self.scheduler;
        let held = scheduler.running.iter().filter_map(|sequence| sequence.slot);
        let mut slots: Vec<u32> = held.chain(scheduler.free_slots.iter().copied()).collect();
        slots.sort_unstable();
        assert!(
            slots.into_iter().eq(0..self.limits.state_slots),
            "slots are lost or held twice"
        );
        if self.limits.state_slots == 0 {
            return;
        }
        let positions: BTreeMap<u32, u32> = self.device.held_states().collect();
        for sequence in scheduler.running.iter().filter(|sequence| sequence.is_admitted()) {
            let slot = sequence.slot.expect("a sequence without a slot");
            assert!(
                sequence.placed == 0 || sequence.is_lost || positions[&slot] == sequence.placed,
                "{:?} isn't where its state is",
                sequence.id
            );
        }
        if scheduler.ops.is_empty() && !scheduler.is_fenced() {
            for slot in positions.keys() {
                assert!(
                    !scheduler.free_slots.contains(slot),
                    "slot {slot} was never freed"
                );
            }
        }
    }

    /// Each snapshot is free, being taken by a row in flight, or stands at the end of the block that has it.
    fn check_snapshots(&self) {
        let scheduler = &self.scheduler;
        let rows = scheduler.flights.iter().flat_map(|flight| &flight.rows);
        let taken: Vec<u32> = rows.filter_map(|row| row.snapshot).collect();
        let sequences = scheduler.running.iter().chain(&scheduler.waiting);
        let sessions = scheduler
            .sessions
            .held()
            .flat_map(|(_, snapshots)| snapshots.iter().copied());
        let pinned: Vec<u32> = sequences
            .filter_map(|sequence| sequence.snapshot)
            .chain(sessions)
            .collect();
        let count = |all: &[u32], one: u32| all.iter().filter(|other| **other == one).count();
        for (snapshot, standing) in scheduler.pool.standing_snapshots() {
            assert_eq!(
                count(&taken, snapshot),
                usize::from(standing.is_none()),
                "{snapshot} is lost"
            );
            if let Some((block, pins)) = standing {
                assert_eq!(scheduler.pool.snapshot_of(block), Some(snapshot));
                assert_eq!(
                    count(&pinned, snapshot),
                    pins as usize,
                    "{snapshot} is pinned by nobody"
                );
            }
        }
        for block in 0..self.limits.block_count {
            if let Some(snapshot) = scheduler.pool.snapshot_of(block) {
                let mut standing = scheduler.pool.standing_snapshots();
                assert!(
                    standing.any(|(other, at)| other == snapshot && at.is_some_and(|(at, _)| at == block)),
                    "block {block} has a snapshot that is somewhere else"
                );
            }
        }
    }
}
