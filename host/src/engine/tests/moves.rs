//! Requests that go on in another engine, with what was computed of them.

use super::*;

/// Runs a request until it has given some tokens, and moves it out. Gives them, and the request.
fn moved(engine: Engine, request: Request) -> (Vec<u32>, Request) {
    let stream = engine.submit(request).expect("room");
    wait_for(&engine, |snapshot| snapshot.counts.generated_tokens >= 5);
    engine.move_out();
    let mut events = all(stream);
    let Some(Event::Moved(request)) = events.pop() else {
        panic!("it was moved")
    };
    let report = engine.shutdown(LONG);
    assert!(report.is_clean(), "{report:?}");
    (ids(&events), *request)
}

fn slow(device: impl FnOnce() -> FakeDevice + Send + 'static) -> Engine {
    let (engine, controls) = start(device, EngineOptions::default());
    controls.set_step_time(Duration::from_millis(2));
    engine
}

fn copies(controls: &FakeControls) -> usize {
    let calls = controls.calls();
    calls.iter().filter(|call| **call == "copy_blocks_in").count()
}

#[test]
fn what_was_computed_of_a_moved_request_is_not_computed_again() {
    let prompt: Vec<u32> = (1..=30).collect();
    let expected: Vec<u32> = (31..=130).collect();
    for device in [counting, || counting().with_state(4, 4)] {
        let (before, request) = moved(slow(device), request(&prompt, 100));
        let tokens = request.prompt.len() as u32;
        assert_eq!(request.kept.as_ref().map(Kept::tokens), Some(tokens - 1));

        let (engine, controls) = start(device, EngineOptions::default());
        let after = ids(&all(engine.submit(request).expect("room")));
        assert_eq!([before, after].concat(), expected);
        assert_eq!(
            (copies(&controls), engine.snapshot().counts.prompt_tokens),
            (1, 0)
        );
        assert!(engine.shutdown(LONG).is_clean());
    }
}

#[test]
fn what_does_not_fit_elsewhere_is_computed_again() {
    let prompt: Vec<u32> = (1..=30).collect();
    let expected: Vec<u32> = (31..=130).collect();
    let larger = || {
        let mut device = counting();
        device.model_mut().block_bytes += 4;
        device
    };
    let no_room = EngineOptions {
        park_memory: 16,
        park_disk: 16,
        ..EngineOptions::default()
    };
    let devices: [(fn() -> FakeDevice, _); 2] = [(larger, EngineOptions::default()), (counting, no_room)];
    for (device, options) in devices {
        let (before, request) = moved(slow(counting), request(&prompt, 100));
        let tokens = request.prompt.len() as u64;
        let (engine, controls) = start(device, options);
        let after = ids(&all(engine.submit(request).expect("room")));
        assert_eq!([before, after].concat(), expected);
        assert_eq!(copies(&controls), 0);
        let computed = engine.snapshot().counts.prompt_tokens;
        assert!(computed >= 30 && computed <= tokens, "{computed} of {tokens}");
        assert!(engine.shutdown(LONG).is_clean());
    }
}

#[test]
fn a_copy_that_fails_moves_the_request_without_it() {
    let (engine, controls) = start(counting, EngineOptions::default());
    controls.set_step_time(Duration::from_millis(2));
    controls.fail(
        "copy_blocks_out",
        [error(ErrorKind::Exhausted, "no pinned memory")],
    );
    let (before, request) = moved(engine, request(&[1], 100));
    assert_eq!(request.kept, None);

    // Nor does one that can't be copied in stop it.
    let (_, other) = moved(slow(counting), super::request(&[1], 100));
    let (engine, controls) = start(counting, EngineOptions::default());
    controls.fail(
        "copy_blocks_in",
        [error(ErrorKind::Exhausted, "no pinned memory")],
    );
    let kept = other.kept.clone();
    assert!(kept.is_some());
    let after = ids(&all(engine.submit(request).expect("room")));
    assert_eq!([before, after].concat(), (2..=101).collect::<Vec<u32>>());
    let generated = other.generated;
    let after = ids(&all(engine.submit(other).expect("room")));
    assert_eq!(after, (2 + generated..=101).collect::<Vec<u32>>());
    assert_eq!(copies(&controls), 1);
}
