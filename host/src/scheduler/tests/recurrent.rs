//! Models with recurrent state: slots, snapshots and sessions.

use super::*;

const RECURRENT: Limits = Limits {
    state_slots: 8,
    state_bytes: 100,
    snapshot_slots: 6,
    ..LIMITS
};

/// `length` tokens that differ from any other conversation's.
fn tokens(conversation: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|at| (conversation * 31 + at) % 90)
        .collect()
}

impl Driver {
    fn cached(&mut self, id: u64) -> u32 {
        let started = |event: &Event| match event {
            Event::Started { cached } => Some(*cached),
            _ => None,
        };
        self.events(id).iter().find_map(started).expect("it was started")
    }

    fn used(&self) -> usize {
        let uses = self.ops.iter();
        uses.filter(|op| matches!(op, DeviceOp::UseSnapshot { .. }))
            .count()
    }

    /// The prompt of a conversation's next turn.
    fn next_turn(&mut self, id: u64, prompt: Vec<u32>) -> Vec<u32> {
        let token = |event: &Event| match event {
            Event::Token(token) => Some(token.id),
            _ => None,
        };
        let answer: Vec<u32> = self.events(id).iter().filter_map(token).collect();
        [prompt, answer, vec![95; 5]].concat()
    }
}

#[test]
fn a_prompt_is_cut_at_its_last_block_border_where_its_state_is_kept() {
    let mut driver = Driver::new(RECURRENT);
    driver.submit_turn(1, tokens(1, 100), 2, None);
    assert_eq!(driver.step(), [(1, 96)]);
    assert_eq!(driver.ops, [DeviceOp::TakeSnapshot { slot: 0, snapshot: 0 }]);
    assert_eq!(driver.step(), [(1, 4)]);
    driver.run();
    driver.submit_turn(2, [tokens(1, 96), tokens(2, 40)].concat(), 2, None);
    assert_eq!(driver.step(), [(2, 32)], "what it shares isn't computed");
    driver.run();
    assert_eq!((driver.cached(2), driver.used()), (96, 1));
    let freed = |op: &&DeviceOp| matches!(op, DeviceOp::FreeState { .. });
    assert_eq!(driver.ops.iter().filter(freed).count(), 2);
    assert_eq!(driver.scheduler.counts().state_slots_used, 0);
}

#[test]
fn the_next_turn_goes_on_from_the_last_border_that_was_crossed() {
    let mut driver = Driver::new(RECURRENT);
    let prompt = tokens(1, 40);
    driver.submit_turn(1, prompt.clone(), 60, None);
    driver.run();
    assert_eq!(
        driver.scheduler.counts().snapshots_used,
        2,
        "one at the prompt's end, one of all that it crossed"
    );
    let next = driver.next_turn(1, prompt);
    driver.submit_turn(2, next, 1, None);
    driver.run();
    assert_eq!(driver.cached(2), 96);
}

#[test]
fn blocks_without_a_snapshot_at_their_end_are_not_shared() {
    let mut driver = Driver::new(Limits {
        snapshot_slots: 0,
        ..RECURRENT
    });
    for id in 1..=2 {
        driver.submit_turn(id, tokens(1, 100), 2, None);
        driver.run();
        assert_eq!(driver.cached(id), 0);
    }
}

#[test]
fn a_failed_step_begins_again_from_the_snapshot_and_nothing_is_repeated() {
    let mut driver = Driver::new(RECURRENT);
    driver.submit_turn(1, tokens(1, 40), 20, None);
    for _ in 0..5 {
        driver.step();
    }
    driver.plan();
    driver.tell(Input::Submitted { ticket: 99 });
    driver.perform();
    driver.tell(Input::CollectFailed {
        error: &Error::exhausted("no arena"),
    });
    // 40 tokens and 4 that were generated, of which 32 are in the snapshot.
    assert_eq!(driver.step(), [(1, 12)]);
    assert_eq!((driver.used(), driver.scheduler.counts().restarts), (1, 1));
    driver.run();
    let given = driver.events(1).len();
    assert_eq!(given, 1 + 20 + 1, "{:?}", driver.events(1));
}

#[test]
fn a_request_whose_steps_fail_is_found_though_each_failure_begins_it_again() {
    let mut driver = Driver::new(Limits {
        max_batch_tokens: 32,
        ..RECURRENT
    });
    driver.submit_turn(1, tokens(1, 20), 60, None);
    for _ in 0..3 {
        driver.step();
    }
    driver.submit_turn(2, tokens(2, 90), 20, None);
    let mut failures = 0;
    while driver.events(2).is_empty() {
        driver.plan();
        let mut rows = driver.scheduler.planned.iter().flat_map(|flight| &flight.rows);
        if rows.any(|row| row.id.0 == 2 && row.start + row.tokens > 50) {
            driver.tell(Input::Submitted { ticket: 99 });
            driver.perform();
            driver.tell(Input::CollectFailed {
                error: &Error::invalid("no such thing"),
            });
            failures += 1;
        } else {
            driver.go_on(token(7), Duration::ZERO);
        }
    }
    assert_eq!(failures, 2, "once beside the other, once alone");
    assert!(matches!(
        driver.events(2)[..],
        [Event::Failed(Failure::Invalid(_))]
    ));
    driver.run();
    assert_eq!(
        driver.events(1).last(),
        Some(&Event::Finished(FinishReason::Length))
    );
}

#[test]
fn a_snapshot_that_cannot_be_copied_is_done_without() {
    let mut driver = Driver::new(RECURRENT);
    driver.submit_turn(1, tokens(1, 100), 2, Some("kept"));
    driver.run();
    driver.can = |op| !matches!(op, DeviceOp::UseSnapshot { .. });
    driver.submit_turn(2, tokens(1, 100), 2, None);
    driver.run();
    assert_eq!((driver.cached(2), driver.used()), (0, 1));
    assert_eq!(
        driver.events(2).last(),
        Some(&Event::Finished(FinishReason::Length))
    );
}

#[test]
fn a_parked_sequence_goes_on_with_its_state() {
    let mut driver = Driver::new(Limits {
        block_count: 10,
        max_running: 2,
        ..RECURRENT
    });
    driver.submit_turn(1, tokens(1, 50), 60, None);
    driver.submit_turn(2, tokens(2, 50), 60, None);
    driver.run();
    let out = driver.ops.iter().find_map(|op| match op {
        DeviceOp::CopyOut { id, slot, .. } => Some((*id, *slot)),
        _ => None,
    });
    let back = driver.ops.iter().find_map(|op| match op {
        DeviceOp::CopyIn {
            id, slot, position, ..
        } => Some((*id, *slot, *position)),
        _ => None,
    });
    assert!(matches!(out, Some((RequestId(2), Some(_)))), "{:?}", driver.ops);
    assert!(
        matches!(back, Some((RequestId(2), Some(_), 50..))),
        "{:?}",
        driver.ops
    );
}

#[test]
fn a_session_outlives_what_would_evict_it_until_it_ends() {
    let mut driver = Driver::new(Limits {
        block_count: 24,
        snapshot_slots: 3,
        ..RECURRENT
    });
    let mut turn = tokens(1, 100);
    driver.submit_turn(1, turn.clone(), 30, Some("a"));
    driver.run();
    let counts = driver.scheduler.counts();
    assert_eq!((counts.sessions, counts.blocks_pinned), (1, 8));
    // Others need every block that is not pinned.
    for (id, other) in (2..10).zip(2..) {
        driver.submit_turn(id, tokens(other, 200), 20, None);
        driver.run();
    }
    turn = driver.next_turn(1, turn);
    driver.submit_turn(20, turn.clone(), 1, Some("a"));
    driver.run();
    assert_eq!(driver.cached(20), 128);
    // The next turn may tell the answer otherwise: what stands before it is kept as well.
    let told_otherwise = [&turn[..100], &[94; 30]].concat();
    driver.submit_turn(21, told_otherwise, 1, None);
    driver.run();
    assert_eq!(driver.cached(21), 96);
    driver.tell(Input::Tick {
        now: RECURRENT.session_ttl,
    });
    let counts = driver.scheduler.counts();
    assert_eq!((counts.sessions, counts.blocks_used), (0, 0));
    for (id, other) in (30..40).zip(12..) {
        driver.submit_turn(id, tokens(other, 200), 20, None);
        driver.run();
    }
    driver.submit_turn(50, turn, 1, Some("a"));
    driver.run();
    assert_eq!(
        driver.cached(50),
        0,
        "it had ended, and its blocks were used again"
    );
}

#[test]
fn sessions_give_way_to_requests_the_oldest_first_and_nobody_is_parked_for_them() {
    let mut driver = Driver::new(Limits {
        block_count: 16,
        snapshot_slots: 0,
        state_slots: 0,
        ..RECURRENT
    });
    for (id, name) in [(1, "a"), (2, "b"), (3, "a")] {
        driver.submit_turn(id, tokens(id as u32 % 2, 50), 2, Some(name));
        driver.run();
    }
    assert_eq!(driver.scheduler.counts().blocks_pinned, 6);
    driver.submit_turn(4, tokens(7, 170), 40, None);
    driver.step();
    assert_eq!(driver.scheduler.counts().sessions, 1, "there is room without 'b'");
    driver.run();
    let counts = driver.scheduler.counts();
    assert_eq!((counts.sessions, counts.preemptions), (0, 0), "it grew over 'a'");
}

#[test]
fn sessions_are_bounded_in_number_and_in_what_they_pin() {
    let mut driver = Driver::new(Limits {
        max_sessions: 3,
        block_count: 64,
        ..RECURRENT
    });
    for id in 1..=5 {
        driver.submit_turn(id, tokens(id as u32, 40), 1, Some(&id.to_string()));
        driver.run();
    }
    assert_eq!(driver.scheduler.counts().sessions, 3);
    driver.submit_turn(9, tokens(9, 600), 1, Some("long"));
    driver.run();
    let counts = driver.scheduler.counts();
    assert_eq!(
        (counts.sessions, counts.blocks_pinned),
        (0, 0),
        "it is more than half"
    );
}

#[test]
fn a_turn_that_its_client_cut_off_is_kept_and_one_that_failed_is_not() {
    let mut driver = Driver::new(RECURRENT);
    driver.submit_turn(1, tokens(1, 40), 90, Some("cut"));
    driver.submit_turn(2, tokens(2, 40), 90, Some("failed"));
    for _ in 0..4 {
        driver.step();
    }
    driver.tell(Input::Cancel { id: RequestId(1) });
    driver.tell(Input::GiveUp {
        id: RequestId(2),
        failure: Failure::SlowClient,
    });
    assert_eq!(driver.scheduler.counts().sessions, 1);
    driver.submit_turn(3, tokens(1, 40), 1, Some("cut"));
    driver.run();
    assert_eq!(driver.cached(3), 32);
}
