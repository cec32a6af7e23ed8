//! What a reader would ask of the scheduler first, one at a time. The [`simulation`](super::simulation) has the rest.

use super::*;
use crate::{
    kept::Kept,
    request::{FinishReason, SessionId},
};
use met_backend_api::{Error, RowOutput, Ticket, TokenLogprob, Want};
use std::time::Duration;

mod recurrent;

/// Plans and collects one step at a time; each row samples the token that `answer` gives for its request.
struct Driver {
    scheduler: Scheduler,
    ticket: Ticket,
    effects: Vec<Effect>,
    /// What was to be done between steps.
    ops: Vec<DeviceOp>,
    /// Whether it can be done.
    can: fn(&DeviceOp) -> bool,
}

const LIMITS: Limits = Limits {
    context: 4096,
    block_size: 16,
    block_count: 512,
    vocab_size: 100,
    max_running: 8,
    max_batch_tokens: 256,
    block_bytes: 64,
    parks: true,
    max_in_flight: 1,
    state_slots: 0,
    state_bytes: 0,
    snapshot_slots: 0,
    max_sessions: 8,
    session_ttl: Duration::from_secs(60),
};

impl Driver {
    fn new(limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(limits),
            ticket: 0,
            effects: Vec::new(),
            ops: Vec::new(),
            can: |_| true,
        }
    }

    fn submit(&mut self, id: u64, prompt: usize, max_tokens: u32) {
        self.submit_turn(id, vec![1; prompt], max_tokens, None);
    }

    fn submit_turn(&mut self, id: u64, prompt: Vec<u32>, max_tokens: u32, session: Option<&str>) {
        let request = Request {
            prompt,
            max_tokens,
            session: session.and_then(SessionId::new),
            ..Request::default()
        };
        self.tell(Input::Submit {
            id: RequestId(id),
            request,
        });
    }

    fn tell(&mut self, input: Input<'_>) {
        self.scheduler.handle(input, &mut self.effects);
    }

    /// The rows of the next step: whose, and how many tokens.
    fn plan(&mut self) -> Vec<(u64, usize)> {
        while !self.scheduler.plan() {
            if !self.perform() {
                return Vec::new();
            }
        }
        self.perform();
        let ids = self
            .scheduler
            .planned
            .iter()
            .flat_map(|flight| &flight.rows)
            .map(|row| row.id.0);
        ids.zip(self.scheduler.batch())
            .map(|(id, row)| (id, row.tokens.len()))
            .collect()
    }

    /// Does what is to be done between steps. Whether there was anything.
    fn perform(&mut self) -> bool {
        let before = self.ops.len();
        while let Some(op) = self.scheduler.next_op() {
            let succeeded = (self.can)(&op);
            self.tell(Input::OpDone {
                op: &op,
                succeeded,
                elapsed: Duration::from_micros(1),
            });
            self.ops.push(op);
            assert!(self.ops.len() < 1000, "what is to be done comes to no end");
        }
        self.ops.len() > before
    }

    /// Runs steps until no request is left.
    fn run(&mut self) {
        let mut steps = 0;
        while !self.scheduler.is_empty() {
            self.step();
            steps += 1;
            assert!(steps < 1000, "it comes to no end");
        }
        self.perform();
    }

    /// Runs a step in which each row that samples gives `output`, and which takes `elapsed`.
    fn step_with(&mut self, output: RowOutput, elapsed: Duration) -> Vec<(u64, usize)> {
        let planned = self.plan();
        self.go_on(output, elapsed);
        planned
    }

    /// Runs the planned step.
    fn go_on(&mut self, output: RowOutput, elapsed: Duration) {
        let sample = |row: &met_backend_api::Row<'_>| {
            if row.want == Want::Token {
                output
            } else {
                RowOutput::default()
            }
        };
        let outputs: Vec<RowOutput> = self.scheduler.batch().iter().map(sample).collect();
        self.submitted();
        self.tell(Input::Collected {
            rows: &outputs,
            top: &[],
            elapsed,
        });
    }

    /// Takes the planned step, which is not collected yet.
    fn submitted(&mut self) {
        self.ticket += 1;
        self.tell(Input::Submitted { ticket: self.ticket });
        self.perform();
    }

    fn step(&mut self) -> Vec<(u64, usize)> {
        self.step_with(token(7), Duration::from_millis(10))
    }

    fn events(&mut self, id: u64) -> Vec<Event> {
        let own = |Effect::Emit { id: whose, event }: &Effect| (whose.0 == id).then(|| event.clone());
        self.effects.iter().filter_map(own).collect()
    }
}

fn token(token: u32) -> RowOutput {
    RowOutput {
        sampled: TokenLogprob { token, logprob: 0.0 },
        ..RowOutput::default()
    }
}

#[test]
fn a_running_stream_has_a_row_in_every_step_while_a_long_prompt_arrives() {
    let mut driver = Driver::new(LIMITS);
    driver.submit(1, 20, 100);
    driver.step();
    driver.submit(2, 1400, 100);
    let mut left = 1400;
    while left > 0 {
        let rows = driver.step();
        assert_eq!(rows[0], (1, 1), "the stream goes on");
        assert_eq!(rows[1].0, 2);
        left -= rows[1].1;
    }
    assert_eq!(driver.step(), [(1, 1), (2, 1)]);
}

#[test]
fn prompts_share_a_step_in_the_order_of_their_arrival() {
    let mut driver = Driver::new(LIMITS);
    for id in 1..=3 {
        driver.submit(id, 120, 4);
    }
    assert_eq!(driver.step(), [(1, 120), (2, 120), (3, 16)]);
    let rows = driver.step();
    assert_eq!(rows, [(1, 1), (2, 1), (3, 104)]);
}

#[test]
fn the_second_turn_of_a_conversation_computes_what_is_new() {
    let mut driver = Driver::new(LIMITS);
    driver.submit(1, 100, 13);
    while !driver.scheduler.is_empty() {
        driver.step();
    }
    // The history with its answer, of which 7 blocks are full, and a question.
    let history = [vec![1; 100], vec![7; 13]].concat();
    driver.tell(Input::Submit {
        id: RequestId(2),
        request: Request {
            prompt: [history, vec![2; 30]].concat(),
            max_tokens: 1,
            ..Request::default()
        },
    });
    assert_eq!(driver.step(), [(2, 143 - 7 * 16)]);
    assert_eq!(driver.events(2)[0], Event::Started { cached: 7 * 16 });
    assert_eq!(driver.scheduler.counts().cached_tokens, 7 * 16);
    assert_eq!(driver.scheduler.counts().prompt_tokens, 100 + 143 - 7 * 16);
}

#[test]
fn a_request_ends_at_its_length_or_its_stop_token_and_frees_its_blocks() {
    let mut driver = Driver::new(LIMITS);
    driver.submit(1, 40, 2);
    driver.step();
    assert_eq!(driver.scheduler.counts().blocks_used, 3);
    driver.step();
    let ids: Vec<_> = driver.events(1);
    assert!(matches!(
        ids[..],
        [
            Event::Started { cached: 0 },
            Event::Token(_),
            Event::Token(_),
            Event::Finished(FinishReason::Length)
        ]
    ));
    assert!(driver.scheduler.is_empty());
    assert_eq!(driver.scheduler.counts().blocks_used, 0);
    assert_eq!(
        (
            driver.scheduler.counts().prompt_tokens,
            driver.scheduler.counts().generated_tokens
        ),
        (40, 2)
    );
}

#[test]
fn a_device_without_memory_for_one_request_fails_it_in_the_end() {
    let mut driver = Driver::new(LIMITS);
    driver.submit(1, 200, 2);
    let mut tried = Vec::new();
    while driver.events(1).is_empty() && tried.len() < 20 {
        tried.push(driver.plan()[0].1);
        driver.tell(Input::SubmitFailed {
            error: &Error::exhausted("no arena"),
        });
    }
    assert_eq!(tried, [200, 128, 64, 32, 16, 8, 4, 2, 1]);
    assert!(
        matches!(&driver.events(1)[..], [Event::Failed(Failure::Backend(why))] if why.contains("no arena"))
    );
    assert!(!driver.scheduler.is_fenced());
    driver.submit(2, 20, 1);
    driver.step();
    assert_eq!(
        driver.events(2).last(),
        Some(&Event::Finished(FinishReason::Length))
    );
}

#[test]
fn logits_that_are_no_numbers_fail_their_request_and_fence_where_all_are() {
    let mut driver = Driver::new(LIMITS);
    let bad = RowOutput {
        not_finite: true,
        ..token(7)
    };
    for id in (1..=7).chain(11..=17) {
        if id == 11 {
            // A good one in between: the device is well.
            driver.submit(10, 5, 1);
            driver.step();
        }
        driver.submit(id, 5, 9);
        driver.step_with(bad, Duration::ZERO);
        assert!(matches!(
            driver.events(id)[..],
            [Event::Failed(Failure::Backend(_))]
        ));
        assert!(!driver.scheduler.is_fenced());
    }
    driver.submit(18, 5, 9);
    driver.submit(19, 5, 9);
    driver.step_with(bad, Duration::ZERO);
    assert!(driver.scheduler.is_fenced());
    driver.submit(20, 5, 9);
    for id in 18..=20 {
        assert!(
            matches!(driver.events(id)[..], [Event::Failed(Failure::Backend(_))]),
            "{id}"
        );
    }
    assert!(driver.plan().is_empty());
    assert_eq!(driver.scheduler.counts().blocks_used, 0);
}

#[test]
fn a_token_that_the_model_does_not_have_fences() {
    let mut driver = Driver::new(LIMITS);
    driver.submit(1, 5, 9);
    driver.step_with(token(100), Duration::ZERO);
    assert!(driver.scheduler.is_fenced());
    assert!(
        matches!(&driver.events(1)[..], [Event::Failed(Failure::Backend(why))] if why.contains("token 100"))
    );
}

#[test]
fn a_row_that_is_in_the_step_already_is_not_taken_out_for_a_younger_one() {
    let mut driver = Driver::new(Limits {
        block_count: 5,
        max_in_flight: 2,
        ..LIMITS
    });
    driver.submit(1, 14, 50);
    driver.step();
    // As it comes from another generation, with all of its blocks but the last token of them.
    driver.tell(Input::Submit {
        id: RequestId(2),
        request: Request {
            prompt: vec![2; 48],
            generated: 1,
            max_tokens: 20,
            kept: Some(Kept::in_memory(47, Vec::new())),
            ..Request::default()
        },
    });
    assert_eq!(driver.step(), [(1, 1)]);
    assert_eq!(driver.plan(), [(1, 1), (2, 1)]);
    driver.submitted();
    // Each of the two needs a block more, and there is one.
    assert_eq!(driver.plan(), [(1, 0)]);
    assert_eq!(driver.scheduler.counts().active, 2, "nobody gave way");
}
