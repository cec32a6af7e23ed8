//! Requests that go on in another engine, with what was computed of them.

use super::*;

/// Runs a request for some steps, and moves it out. Gives its tokens so far, and the request.
fn moved((engine, controls): (Engine, FakeControls), request: Request) -> (Vec<u32>, Request) {
    controls.hold("collect");
    let stream = engine.submit(request).expect("room");
    (0..5).for_each(|_| controls.pass());
    engine.move_out();
    controls.release();
    let mut events = all(stream);
    let Some(Event::Moved(request)) = events.pop() else {
        panic!("it was moved")
    };
    let report = engine.shutdown(LONG);
    assert!(report.is_clean(), "{report:?}");
    (ids(&events), *request)
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
        let (before, request) = moved(start(device, EngineOptions::default()), request(&prompt, 100));
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
        let (before, request) = moved(start(counting, EngineOptions::default()), request(&prompt, 100));
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
    controls.fail(
        "copy_blocks_out",
        [error(ErrorKind::Exhausted, "no pinned memory")],
    );
    let (before, request) = moved((engine, controls), request(&[1], 100));
    assert_eq!(request.kept, None);

    // Nor does one that can't be copied in stop it.
    let (_, other) = moved(
        start(counting, EngineOptions::default()),
        super::request(&[1], 100),
    );
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
