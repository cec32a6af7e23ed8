//! A shutdown with every kind of sequence present.

use super::*;

/// All that a generation can have on its hands, and how to tell what became of it.
struct Everything {
    engine: Engine,
    controls: FakeControls,
    streams: Vec<(Stage, EventStream)>,
}

impl Everything {
    /// Three that generate, one whose prompt is read, one swapped out to a file, one preempted because there is no room
    /// for its copy, one in the line, and a session.
    fn new() -> Self {
        let options = EngineOptions {
            channel: 32,
            park_memory: 0,
            park_disk: 200,
            ..EngineOptions::default()
        };
        let device = || {
            let mut device = counting().with_state(4, 6);
            device.model_mut().max_batch_tokens = 16;
            device.model_mut().max_in_flight = 2;
            device
        };
        let (engine, controls) = start(device, options);
        let turn = Request {
            session: crate::request::SessionId::new("a"),
            ..request(&[9; 12], 3)
        };
        all(engine.submit(turn).expect("room"));
        let mut streams = Vec::new();
        let mut submit = |stage, prompt: &[u32]| {
            let stream = engine.submit(request(prompt, 90)).expect("room");
            streams.push((stage, stream));
        };
        // Nobody reads these two, so they are the first to give way.
        submit(Stage::Preempted, &[1]);
        submit(Stage::Swapped, &[2]);
        wait_for(&engine, |snapshot| snapshot.counts.paused == 2);
        controls.hold("collect");
        for token in 3..6 {
            submit(Stage::Generating, &[token]);
        }
        wait_for(&engine, |snapshot| {
            snapshot.call.is_some_and(|(name, _)| name == "collect")
        });
        step_until(&engine, &controls, |counts| {
            counts.active == 4 && counts.swapped == 1
        });
        submit(Stage::Prefilling, &[6; 120]);
        step_until(&engine, &controls, |counts| {
            counts.prefilling == 1 && counts.preempted == 1
        });
        submit(Stage::Waiting, &[7]);
        step_until(&engine, &controls, |counts| counts.waiting == 1);
        let counts = engine.snapshot().counts;
        assert_eq!((counts.active, counts.swapped, counts.sessions), (3, 1, 1));
        Self {
            engine,
            controls,
            streams,
        }
    }

    /// Shuts down in the middle of a step, with the deadline past. Each request is told where it stood.
    fn shut_down(self) -> (TeardownReport, FakeControls) {
        let Self {
            engine,
            controls,
            streams,
        } = self;
        let report = cut(&engine, &controls);
        for (stage, stream) in streams {
            assert_eq!(all(stream).last(), Some(&Event::Failed(Failure::Cut(stage))));
        }
        (report, controls)
    }
}

/// Lets steps pass one by one.
fn step_until(engine: &Engine, controls: &FakeControls, wanted: impl Fn(&crate::scheduler::Counts) -> bool) {
    for _ in 0..12 {
        if wanted(&engine.snapshot().counts) {
            return;
        }
        controls.pass();
    }
    panic!("{:?}", engine.snapshot().counts);
}

#[test]
fn every_kind_of_request_is_ended_with_its_own_reason_and_everything_comes_back() {
    let (report, controls) = Everything::new().shut_down();
    let steps: Vec<&str> = report.steps.iter().map(|step| step.name).collect();
    assert_eq!(steps, STEPS);
    assert_eq!(
        report.given_up,
        GivenUp {
            waiting: 1,
            prefilling: 1,
            active: 3,
            preempted: 1,
            swapped: 1
        }
    );
    assert_eq!(report.sessions, 1);
    assert!(report.is_clean(), "{report:?}");
    let pools: Vec<&str> = report.pools.iter().map(|pool| pool.label.as_str()).collect();
    assert_eq!(
        pools,
        ["state snapshots", "state pool", "kv cache", "arena", "weights"]
    );
    assert_eq!(report.swept.count, 0);
    let calls = controls.calls();
    let last = |name| calls.iter().rposition(|call| *call == name);
    assert!(last("free_state") < last("synchronize 0") && last("synchronize 1") < last("release_pools"));
    assert!(controls.is_dropped());
}

#[test]
fn a_step_that_fails_is_named_and_the_others_are_made() {
    let steps = [
        // The pool is not freed under the slot that is still held: it is left for the sweep.
        ("free_state", "free state slots", "1 handles are alive"),
        ("synchronize 0", "synchronize default stream", "it broke"),
        ("synchronize 1", "synchronize prefill stream", "it broke"),
        ("release_pools", "release pools", "it broke"),
        ("sweep_unreleased", "sweep unreleased", "it broke"),
    ];
    for (call, step, first) in steps {
        let everything = Everything::new();
        everything
            .controls
            .fail(call, [error(ErrorKind::Exhausted, "it broke")]);
        let (report, controls) = everything.shut_down();
        assert_eq!(report.steps.len(), STEPS.len());
        let failed: Vec<&str> = report
            .steps
            .iter()
            .filter(|step| step.error.is_some())
            .map(|step| step.name)
            .collect();
        assert_eq!(failed, [step]);
        assert_eq!(report.first_error().map(|(_, why)| why), Some(first));
        assert_eq!(report.left, Some(Vec::new()));
        assert!(controls.is_dropped());
    }
}

#[test]
fn a_device_that_is_lost_meanwhile_is_torn_down_to_its_end() {
    let Everything {
        engine,
        controls,
        streams,
    } = Everything::new();
    controls.fail("collect", [error(ErrorKind::Fault, "it fell off")]);
    controls.release();
    for (_, stream) in streams {
        let failure = Failure::Backend("it fell off".into());
        assert_eq!(all(stream).last(), Some(&Event::Failed(failure)));
    }
    let report = engine.shutdown(LONG);
    assert_eq!(report.steps.len(), STEPS.len());
    assert!(report.is_clean(), "{report:?}");
}
