//! The simulated clients: what they ask for, how they leave, stop reading, and read again.

use super::World;
use crate::{
    request::{Failure, Request, Sampling, SessionId},
    scheduler::{Input, RequestId},
};
use met_backend_api::ErrorKind;

/// What the simulation knows of a request.
pub struct Client {
    pub request: Request,
    /// The prompt and what was emitted.
    pub tokens: Vec<u32>,
    pub paused: bool,
    /// The backend calls any batch with it invalid.
    pub poisoned: bool,
    /// Each step that computes this position fails so when it is collected.
    pub curse: Option<(u32, ErrorKind)>,
    /// Planned steps since it was the oldest and had a row.
    pub passed_over: u32,
    pub started: bool,
    /// Steps of it that failed in a row.
    pub failed_steps: u32,
}

impl World {
    pub fn submit_request(&mut self) {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let vocab = u64::from(self.limits.vocab_size);
        let longest = u64::from(self.limits.longest());
        let length = self.random.between(1, longest.max(2));
        let mut prompt: Vec<u32> = (0..length)
            .map(|_| self.random.between(0, vocab - 1) as u32)
            .collect();
        // Many conversations begin alike, or go on.
        if self.random.chance(500)
            && let Some(earlier) = self.any_conversation()
        {
            let shared = earlier.len().min(prompt.len());
            prompt[..shared].copy_from_slice(&earlier[..shared]);
        }
        self.conversations.push(prompt.clone());
        let penalty = if self.random.chance(250) { 0.5 } else { 0.0 };
        let request = Request {
            prompt,
            generated: 0,
            max_tokens: self.random.between(1, 30) as u32,
            sampling: Sampling {
                seed: self.last_id,
                sequence: 3,
                presence_penalty: penalty,
                ..Sampling::default()
            },
            stop_tokens: (0..self.random.between(0, 1))
                .map(|_| self.random.between(0, vocab - 1) as u32)
                .collect(),
            top_logprobs: self
                .random
                .chance(200)
                .then(|| self.random.between(0, vocab.min(4)) as u32),
            bias: Vec::new(),
            session: self.random.chance(300).then(|| {
                let name = self.random.between(1, 6).to_string();
                SessionId::new(&name).expect("a digit")
            }),
            kept: None,
        };
        let fits = self.limits.check(&request).is_ok();
        let poisoned = self.trouble > 0 && self.random.chance(30);
        let curse = (self.trouble > 0 && self.random.chance(20)).then(|| {
            let position = self.random.between(0, request.prompt.len() as u64 + 5) as u32;
            match self.random.chance(500) {
                true => (position, ErrorKind::Invalid),
                false => (position, ErrorKind::Exhausted),
            }
        });
        let tokens = request.prompt.clone();
        let client = Client {
            request: request.clone(),
            tokens,
            paused: false,
            poisoned,
            curse,
            passed_over: 0,
            started: false,
            failed_steps: 0,
        };
        self.clients.insert(id, client);
        self.tell(Input::Submit { id, request });
        assert_eq!(
            self.clients.contains_key(&id),
            fits && !self.scheduler.is_fenced(),
            "{id:?}: refused at once or not at all"
        );
    }

    /// Clients leave, stop reading, and read again.
    pub fn disturb(&mut self) {
        if self.random.chance(40)
            && let Some(id) = self.any_client()
        {
            self.clients.remove(&id);
            self.kept.forget(id);
            self.reached.cancels += 1;
            self.tell(Input::Cancel { id });
        }
        if self.random.chance(100)
            && let Some(id) = self.any_client()
        {
            if self.clients[&id].paused {
                self.resume(id);
            } else if self.clients[&id].tokens.len() > self.clients[&id].request.prompt.len() {
                self.reached.pauses += 1;
                self.client(id).paused = true;
                self.tell(Input::Pause { id });
            }
        }
    }

    pub fn abort(&mut self) {
        self.reached.aborts += 1;
        self.tell(Input::Abort {
            failure: Failure::Draining,
        });
        assert!(self.clients.is_empty() && self.scheduler.is_empty());
    }

    pub fn end_sessions(&mut self) {
        self.tell(Input::EndSessions);
        assert_eq!(self.scheduler.counts().blocks_pinned, 0);
    }

    pub fn resume(&mut self, id: RequestId) {
        self.client(id).paused = false;
        self.tell(Input::Resume { id });
    }

    fn any_conversation(&mut self) -> Option<Vec<u32>> {
        // Those of late are more likely to be known still.
        let oldest = match self.random.chance(500) {
            true => self.conversations.len().saturating_sub(8) as u64,
            false => 0,
        };
        let at = self
            .random
            .between(oldest, self.conversations.len().max(1) as u64 - 1);
        self.conversations.get(at as usize).cloned()
    }

    fn any_client(&mut self) -> Option<RequestId> {
        let at = self.random.between(0, self.clients.len().max(1) as u64 - 1);
        self.clients.keys().nth(at as usize).copied()
    }

    pub fn client(&mut self, id: RequestId) -> &mut Client {
        self.clients
            .get_mut(&id)
            .unwrap_or_else(|| panic!("{id:?} got something after its end"))
    }
}
