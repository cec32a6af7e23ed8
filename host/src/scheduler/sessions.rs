//! Sessions: what was computed for a conversation's last turn is kept from eviction until its next one.
//!
//! A session holds blocks as a table does, and pins snapshots. The next turn finds them by its prefix
//! like any others; without a session they are found as well, but may be evicted. There are at most so many sessions,
//! with so large a share of the blocks and snapshots, and the one that was used longest ago gives way: to another
//! session, and to any request that lacks blocks.

use super::{Scheduler, Sequence, pool::BlockPool};
use crate::request::SessionId;
use std::{collections::VecDeque, time::Duration};

#[derive(Debug)]
pub(super) struct Sessions {
    /// In the order in which they end.
    kept: VecDeque<Session>,
    /// How many of them hold each block, and how many blocks that are.
    holders: Vec<u32>,
    pinned: u32,
    now: Duration,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    blocks: Vec<u32>,
    /// At most two: where its prompt ended, and where its answer did. The next turn may tell the answer otherwise.
    snapshots: Vec<u32>,
    ends: Duration,
}

impl Sessions {
    pub fn new(blocks: u32) -> Self {
        Self {
            kept: VecDeque::new(),
            holders: vec![0; blocks as usize],
            pinned: 0,
            now: Duration::ZERO,
        }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.kept.len() as u32
    }

    /// Blocks that they hold.
    pub fn pinned(&self) -> u32 {
        self.pinned
    }

    /// When the next one ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.kept.front().map(|session| session.ends)
    }

    /// What each holds: blocks, and snapshots.
    #[cfg(test)]
    pub fn held(&self) -> impl Iterator<Item = (&[u32], &[u32])> {
        let kept = self.kept.iter();
        kept.map(|session| (session.blocks.as_slice(), session.snapshots.as_slice()))
    }

    fn insert(&mut self, session: Session) {
        for block in &session.blocks {
            let holders = &mut self.holders[*block as usize];
            self.pinned += u32::from(*holders == 0);
            *holders += 1;
        }
        self.kept.push_back(session);
    }

    fn remove(&mut self, at: usize, pool: &mut BlockPool) {
        let Some(mut session) = self.kept.remove(at) else {
            return;
        };
        for block in &session.blocks {
            let holders = &mut self.holders[*block as usize];
            *holders -= 1;
            self.pinned -= u32::from(*holders == 0);
        }
        pool.release(&mut session.blocks);
        for snapshot in session.snapshots {
            pool.unpin_snapshot(snapshot);
        }
    }

    fn at(&self, id: &SessionId) -> Option<usize> {
        self.kept.iter().position(|session| session.id == *id)
    }

    fn snapshots(&self) -> usize {
        self.kept.iter().map(|session| session.snapshots.len()).sum()
    }
}

impl Scheduler {
    /// When the next session ends, in the time that [`Input::Tick`](super::Input::Tick) tells.
    pub fn next_session_end(&self) -> Option<Duration> {
        self.sessions.next_end()
    }

    pub(super) fn tick(&mut self, now: Duration) {
        self.sessions.now = self.sessions.now.max(now);
        while self.sessions.next_end().is_some_and(|end| end <= now) {
            self.sessions.remove(0, &mut self.pool);
        }
    }

    pub(super) fn end_sessions(&mut self) {
        while self.end_oldest_session() {}
    }

    /// The session that was used longest ago gives way. False where there is none.
    pub(super) fn end_oldest_session(&mut self) -> bool {
        let is_there = self.sessions.count() > 0;
        self.sessions.remove(0, &mut self.pool);
        is_there
    }

    /// A session's next turn arrived: what it holds is kept for that.
    pub(super) fn renew_session(&mut self, id: &SessionId) {
        if let Some(at) = self.sessions.at(id)
            && let Some(mut session) = self.sessions.kept.remove(at)
        {
            session.ends = self.sessions.now.saturating_add(self.limits.session_ttl);
            self.sessions.kept.push_back(session);
        }
    }

    /// Keeps what is known of a sequence that leaves, which still holds it, in the place of its session's last turn.
    pub(super) fn keep_session(&mut self, sequence: &Sequence) {
        let Some(id) = sequence.session.clone().filter(|_| sequence.keeps_session) else {
            return;
        };
        if let Some(at) = self.sessions.at(&id) {
            self.sessions.remove(at, &mut self.pool);
        }
        let mut snapshots = Vec::new();
        let mut share = |tokens: &[u32]| {
            let mut blocks = Vec::new();
            snapshots.extend(self.pool.share(tokens, &mut blocks).snapshot);
            blocks
        };
        let mut of_prompt = share(&sequence.tokens[..sequence.prompt as usize]);
        let blocks = share(&sequence.tokens);
        self.pool.release(&mut of_prompt);
        if let [one, other] = snapshots[..]
            && one == other
        {
            self.pool.unpin_snapshot(one);
            snapshots.pop();
        }
        self.sessions.insert(Session {
            id,
            blocks,
            snapshots,
            ends: self.sessions.now.saturating_add(self.limits.session_ttl),
        });
        let (_, all_snapshots) = self.pool.snapshots();
        // The newest is the last to go, but one that is too large by itself goes too.
        while self.sessions.count() > self.limits.max_sessions
            || self.sessions.pinned() > self.pool.total() / 2
            || self.sessions.snapshots() > (all_snapshots as usize / 2).max(2)
        {
            self.end_oldest_session();
        }
    }
}
