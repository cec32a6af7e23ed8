//! Models with recurrent state, and sessions, through the engine thread: the fake device checks that each row finds the
//! state that its tokens have left.

use super::*;
use crate::request::SessionId;

fn turn(prompt: &[u32], max_tokens: u32, session: &str) -> Request {
    Request {
        session: SessionId::new(session),
        ..request(prompt, max_tokens)
    }
}

/// How many tokens of a request were found in the cache.
fn cached(events: &[Event]) -> u32 {
    match events.first() {
        Some(Event::Started { cached }) => *cached,
        other => panic!("it began with {other:?}"),
    }
}

/// A prompt that is nobody else's.
fn prompt(conversation: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|at| (conversation * 37 + at * 5) % 256)
        .collect()
}

#[test]
fn what_is_parked_comes_back_with_its_state_from_memory_and_from_files() {
    let options = EngineOptions {
        // Room for one copy, or two.
        park_memory: 150,
        ..EngineOptions::default()
    };
    let (engine, controls) = start(|| FakeDevice::new(12, 4, 4).with_state(4, 4), options);
    let requests: Vec<_> = (0..6).map(|at| request(&prompt(at, 9), 30)).collect();
    let alone: Vec<Vec<u32>> = requests
        .iter()
        .map(|request| ids(&all(engine.submit(request.clone()).expect("room"))))
        .collect();
    assert_eq!(engine.snapshot().counts.preemptions, 0);
    let streams = engine.submit_all(requests).expect("room");
    let together: Vec<Vec<u32>> = streams.into_iter().map(|stream| ids(&all(stream))).collect();
    assert_eq!(together, alone);
    assert!(engine.snapshot().counts.swaps > 0);
    let calls = controls.calls();
    assert!(calls.contains(&"save_state") && calls.contains(&"restore_state"));
    assert!(engine.shutdown(LONG).is_clean());
}

#[test]
fn a_session_is_kept_until_it_ends_and_what_it_had_is_used_again() {
    for (session_ttl, expected) in [(LONG, 28), (Duration::from_millis(10), 0)] {
        let options = EngineOptions {
            session_ttl,
            ..EngineOptions::default()
        };
        let (engine, _controls) = start(|| FakeDevice::new(24, 4, 4).with_state(4, 4), options);
        let first = prompt(1, 30);
        all(engine.submit(turn(&first, 6, "a")).expect("room"));
        if session_ttl < LONG {
            wait_for(&engine, |snapshot| snapshot.counts.sessions == 0);
            assert_eq!(engine.snapshot().counts.blocks_used, 0);
        }
        for at in 10..14 {
            all(engine.submit(request(&prompt(at, 40), 12)).expect("room"));
        }
        let found = cached(&all(engine.submit(turn(&first, 1, "a")).expect("room")));
        assert_eq!(found, expected, "{session_ttl:?}");
        assert_eq!(engine.snapshot().counts.state_slots_used, 0);
        assert!(engine.shutdown(LONG).is_clean());
    }
}
