//! The simulated clients, wherever their requests are.

use super::{SimGeneration, World};
use crate::{
    engine::testing::token_after,
    request::{Event, Failure, FinishReason, Request, Sampling},
    slot::door::Entry,
};
use std::collections::BTreeMap;

/// Names a client; they count up.
pub(super) type Key = u64;

#[derive(Debug)]
pub(super) struct Client {
    /// What it asked for at first.
    pub request: Request,
    /// The prompt and what it was given.
    pub tokens: Vec<u32>,
    /// The model that serves it, once one does.
    pub model: Option<u32>,
    /// The generation that it is in; none while it waits at the door.
    pub at: Option<u64>,
}

impl World {
    pub fn arrive(&mut self) {
        self.last_key += 1;
        let key = self.last_key;
        // Small enough for every model.
        // Half of them begin alike.
        let alike = self.random.chance(500);
        let prompt: Vec<u32> = (0..self.random.between(1, 12))
            .map(|at| match alike && at < 8 {
                true => at as u32,
                false => self.random.between(0, 9) as u32,
            })
            .collect();
        let request = Request {
            prompt: prompt.clone(),
            max_tokens: self.random.between(1, 20) as u32,
            sampling: Sampling {
                seed: key,
                presence_penalty: if self.random.chance(300) { 0.5 } else { 0.0 },
                ..Sampling::default()
            },
            stop_tokens: vec![self.random.between(0, 60) as u32],
            ..Request::default()
        };
        let client = Client {
            request,
            tokens: prompt,
            model: None,
            at: None,
        };
        self.clients.insert(key, client);
        self.enter(key, false);
    }

    /// A client comes to the door, for the first time or from another generation.
    pub fn enter(&mut self, key: Key, goes_on: bool) {
        let (generations, clients) = (&self.generations, &self.clients);
        let entry = self.door.enter(
            goes_on,
            |current| generations[current].is_open(),
            |waiting| !clients.contains_key(waiting),
        );
        match entry {
            Entry::Serves(generation) => self.attach(key, generation),
            Entry::Wait(_) => {
                self.reached.count(if goes_on {
                    "client carried over a gap"
                } else {
                    "client held"
                });
                self.door.wait(key);
            }
            Entry::Full | Entry::Closed => {
                assert!(
                    !goes_on || entry == Entry::Closed,
                    "one that goes on finds a place"
                );
                self.turn_away(key);
            }
        }
    }

    /// A client's request comes in: what it asks for, less what it was given.
    pub fn attach(&mut self, key: Key, generation: u64) {
        // One that left while it was held is not there any more.
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        let Some(place) = self.generations.get_mut(&generation) else {
            panic!("client {key} is served by what is not loaded")
        };
        assert!(place.is_open(), "client {key} comes into a closed generation");
        assert!(
            client.model.is_none_or(|model| model == place.model),
            "client {key} goes on with another model"
        );
        client.model = Some(place.model);
        client.at = Some(generation);
        let request = Request {
            prompt: client.tokens.clone(),
            generated: (client.tokens.len() - client.request.prompt.len()) as u32,
            ..client.request.clone()
        };
        let effects = place.submit(key, request);
        self.take(generation, effects);
    }

    /// One that waited gets no generation.
    pub fn turn_away(&mut self, key: Key) {
        if self.clients.remove(&key).is_some() {
            self.reached.count("client turned away");
        }
    }

    pub fn leave(&mut self) {
        let at = self.random.between(0, self.clients.len().max(1) as u64 - 1);
        let Some(key) = self.clients.keys().nth(at as usize).copied() else {
            return;
        };
        match self.clients.remove(&key).and_then(|client| client.at) {
            None => self.reached.count("client left while held"),
            Some(generation) => {
                self.reached.count("client left");
                let effects = self
                    .generations
                    .get_mut(&generation)
                    .map(|place| place.cancel(key));
                self.take(generation, effects.unwrap_or_default());
            }
        }
    }

    /// Hands a generation's events to its clients.
    pub fn take(&mut self, generation: u64, events: Vec<(Key, Event)>) {
        for (key, event) in events {
            let place = &self.generations[&generation];
            let (model, fenced, closing) = (place.model, place.is_fenced(), place.is_ending());
            let Some(client) = self.clients.get_mut(&key) else {
                panic!("client {key} got {event:?} after its end")
            };
            assert_eq!(
                client.at,
                Some(generation),
                "client {key} got {event:?} from elsewhere"
            );
            let given = client.tokens.len() - client.request.prompt.len();
            let next = token_after(&client.request, &client.tokens, model);
            match event {
                Event::Token(token) => {
                    assert_eq!(token.id, next, "client {key}: wrong token {given}");
                    assert!(
                        given < client.request.max_tokens as usize,
                        "client {key}: too many tokens"
                    );
                    client.tokens.push(token.id);
                    continue;
                }
                Event::Started { cached } => {
                    assert!(
                        given == 0 && (cached as usize) < client.request.prompt.len(),
                        "client {key}"
                    );
                    if cached > 0 {
                        self.reached.count("client shares a beginning");
                    }
                    continue;
                }
                Event::Moved(request) => {
                    assert_eq!(request.prompt, client.tokens, "client {key} goes on elsewhere");
                    assert_eq!(request.generated as usize, given);
                    assert_eq!(
                        (request.max_tokens, request.sampling, &request.stop_tokens),
                        (
                            client.request.max_tokens,
                            client.request.sampling,
                            &client.request.stop_tokens
                        )
                    );
                    client.at = None;
                    self.reached.count("client carried");
                    self.release(generation, key);
                    self.enter(key, true);
                    continue;
                }
                Event::Finished(FinishReason::Stop) => {
                    assert!(
                        client.request.stop_tokens.contains(&next),
                        "client {key} stopped at {next}"
                    );
                    self.reached.count("client served");
                }
                Event::Finished(FinishReason::Length) => {
                    assert_eq!(given, client.request.max_tokens as usize);
                    self.reached.count("client served");
                }
                Event::Failed(Failure::Cut(_)) => {
                    assert!(closing, "client {key} was cut though nobody asked for it");
                    self.reached.count("client cut by a deadline");
                }
                Event::Failed(Failure::Backend(_)) => {
                    assert!(
                        fenced || place.has_no_memory(),
                        "client {key} failed without a reason"
                    );
                    self.reached.count("client cut by a fault");
                }
                Event::Failed(failure) => panic!("client {key} failed: {failure:?}"),
            }
            self.clients.remove(&key);
            self.release(generation, key);
        }
    }

    fn release(&mut self, generation: u64, key: Key) {
        if let Some(place) = self.generations.get_mut(&generation) {
            place.release(key);
        }
    }
}

impl Client {
    pub fn check(&self, key: Key, generations: &BTreeMap<u64, SimGeneration>) {
        if let Some(at) = self.at {
            let place = generations.get(&at);
            assert!(
                place.is_some_and(|place| place.holds(key)),
                "client {key} has no hold on generation {at}"
            );
        }
    }
}
