//! A slot's generations on a scripted backend, through the loader: what users of other servers complain of.

use met_backend_api::{ErrorKind, ModelSpec, OpenSpec, abi_stable::std_types::Tuple2};
use met_host::{
    engine::{EngineOptions, EngineState, EventStream},
    loader::{BackendSource, Builtins, Services, Unload},
    request::{Event, Failure, FinishReason, Refused, Request, Stage},
    slot::{Generation, LoadProblem, LoadSpec, ModelText, Slot, Slots, load},
};
use met_tests::{Bytes, NoText};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(60);

fn spec(script: &str) -> LoadSpec {
    let builtins = Builtins::default().with("scripted", met_scripted::root_module);
    LoadSpec {
        backend: BackendSource::parse("builtin:scripted", &builtins).expect("it is linked in"),
        device: OpenSpec {
            options: vec![Tuple2("script".into(), script.into())].into(),
            ..OpenSpec::default()
        },
        model: ModelSpec {
            path: met_tests::fixture("vocab-spm.gguf")
                .to_str()
                .expect("a plain path")
                .into(),
            max_rows: 4,
            max_batch_tokens: 64,
            ..ModelSpec::default()
        },
        engine: EngineOptions {
            teardown: Duration::from_millis(500),
            ..EngineOptions::default()
        },
        deadline: LONG,
    }
}

fn slot<T>() -> Arc<Slot<T>> {
    Slots::new().add("chat")
}

fn generation(script: &str) -> Arc<Generation<Bytes>> {
    load(&slot::<Bytes>(), &spec(script), &Services::default()).expect("it loads")
}

fn request(prompt: u32, max_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt).map(|at| at % 300).collect(),
        max_tokens,
        ..Request::default()
    }
}

fn all(mut stream: EventStream) -> Vec<Event> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut events = Vec::new();
        while let Some(event) = stream.next().await {
            events.push(event);
        }
        events
    })
}

fn answer(generation: &Generation<Bytes>, prompt: u32, max_tokens: u32) -> Vec<Event> {
    all(generation
        .engine()
        .submit(request(prompt, max_tokens))
        .expect("room"))
}

#[test]
fn every_byte_of_a_generation_comes_back() {
    let generation = generation("");
    let events = answer(&generation, 100, 20);
    assert_eq!(events.len(), 22);
    assert_eq!(events.last(), Some(&Event::Finished(FinishReason::Length)));
    let memory = generation.engine().snapshot().memory;
    let owners: Vec<_> = generation
        .engine()
        .snapshot()
        .ledger
        .into_iter()
        .map(|entry| entry.owner)
        .collect();
    assert_eq!(owners, ["kv cache", "weight store"]);
    let end = generation.shutdown(LONG);
    assert!(end.teardown.is_clean(), "{:?}", end.teardown);
    let released: u64 = end.teardown.pools.iter().map(|pool| pool.bytes).sum();
    assert_eq!(released, memory.ledger_bytes);
    assert_eq!(
        end.teardown.memory_after.map(|memory| memory.ledger_bytes),
        Some(0)
    );
    assert_eq!(end.unload, Some(Unload::BuiltIn));
}

#[test]
fn the_same_request_gives_the_same_tokens_alone_in_company_and_after_a_preemption() {
    let alone = generation("");
    let expected: Vec<_> = (0..4).map(|n| answer(&alone, 30 + n, 60)).collect();
    alone.shutdown(LONG);
    for script in [
        "",
        "set in_flight 2",
        "set blocks 8",
        "set blocks 8\nset in_flight 2",
    ] {
        let crowded = generation(script);
        let requests = (0..4).map(|n| request(30 + n, 60)).collect();
        let streams = crowded.engine().submit_all(requests).expect("room");
        let got: Vec<_> = streams.into_iter().map(all).collect();
        // How much of a prompt was found in the cache may differ.
        let same = got
            .iter()
            .zip(&expected)
            .all(|(got, expected)| got[1..] == expected[1..]);
        assert!(same, "{script}: {got:?}");
        let counts = crowded.engine().snapshot().counts;
        assert_eq!(counts.preemptions > 0, script.contains("blocks"), "{counts:?}");
        assert!(crowded.shutdown(LONG).teardown.is_clean());
    }
}

#[test]
fn a_lost_device_fails_its_requests_and_is_not_ready_any_more() {
    for (trouble, text) in [
        (
            "at collect 3 fail fault the device fell off",
            "the device fell off",
        ),
        ("at submit 3 panic", "panic"),
        ("at submit 3 nonsense", "step 3"),
    ] {
        let generation = generation(trouble);
        let events = answer(&generation, 10, 50);
        let last = events.last();
        assert!(
            matches!(last, Some(Event::Failed(Failure::Backend(why))) if why.contains(text)),
            "{trouble}: {last:?}"
        );
        let state = generation.engine().snapshot().state;
        assert!(
            matches!(&state, EngineState::Fenced(why) if why.contains(text)),
            "{trouble}: {state:?}"
        );
        assert_eq!(
            generation.engine().submit(request(1, 1)).err(),
            Some(Refused::Draining)
        );
        let end = generation.shutdown(LONG);
        assert_eq!(end.teardown.left, Some(Vec::new()), "{trouble}");
    }
}

#[test]
fn logits_that_are_no_numbers_are_never_served_as_text() {
    let generation = generation("at collect 3 nonsense");
    let events = answer(&generation, 10, 50);
    assert_eq!(events.len(), 4);
    assert!(matches!(events.last(), Some(Event::Failed(Failure::Backend(_)))));
    assert_eq!(
        answer(&generation, 10, 50).last(),
        Some(&Event::Finished(FinishReason::Length))
    );
    assert!(generation.shutdown(LONG).teardown.is_clean());
}

#[test]
fn what_no_pool_owns_is_swept_and_named() {
    let generation = generation("at submit 2 leak 12345");
    answer(&generation, 10, 5);
    let end = generation.shutdown(LONG);
    assert_eq!((end.teardown.swept.count, end.teardown.swept.bytes), (1, 12345));
    assert!(!end.teardown.swept.entries[0].owner.is_empty());
    assert_eq!(end.teardown.left, Some(Vec::new()));
}

#[test]
fn a_call_that_hangs_is_named_and_the_rest_is_done_when_it_comes_back() {
    let generation = generation("at collect 2 hang 3000");
    let stream = generation.engine().submit(request(10, 50)).expect("room");
    let end = Instant::now() + LONG;
    while !generation
        .engine()
        .snapshot()
        .call
        .is_some_and(|(name, ms)| name == "collect" && ms > 100)
    {
        assert!(Instant::now() < end, "it never hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    let stuck = generation.shutdown(Duration::ZERO);
    assert_eq!(stuck.teardown.stuck.as_deref(), Some("collect"));
    assert!(matches!(stuck.unload, Some(Unload::Retained { .. })));
    let patience = Instant::now() + LONG;
    let end = loop {
        let end = generation.shutdown(Duration::ZERO);
        if end.teardown.stuck.is_none() {
            break end;
        }
        assert!(Instant::now() < patience, "it hangs for ever");
    };
    assert!(end.teardown.is_clean(), "{:?}", end.teardown);
    assert_eq!(end.unload, Some(Unload::BuiltIn));
    assert_eq!(
        all(stream).last(),
        Some(&Event::Failed(Failure::Cut(Stage::Generating)))
    );
}

#[test]
fn failed_teardown_steps_are_reported_and_do_not_stop_it() {
    let generation = generation("at synchronize 1 fail fault lost\nat release_pools 1 fail bug broken");
    let end = generation.shutdown(LONG);
    let failed: Vec<_> = end
        .teardown
        .steps
        .iter()
        .filter(|step| step.error.is_some())
        .map(|step| step.name)
        .collect();
    assert_eq!(failed, ["synchronize default stream", "release pools"]);
    assert_eq!(end.teardown.left, Some(Vec::new()));
    assert!(
        end.teardown
            .memory_after
            .is_some_and(|memory| memory.ledger_count == 0)
    );
}

#[test]
fn a_load_can_be_cancelled_and_a_failed_one_tells_why() {
    let services = Services::default();
    let cancel = services.clone();
    let loading =
        std::thread::spawn(move || load(&slot::<Bytes>(), &spec("set load_ms 60000"), &services).err());
    cancel.cancel();
    let cancelled = loading.join().expect("no panic").expect("it was cancelled");
    assert!(
        matches!(&cancelled.problem, LoadProblem::Backend { error, .. } if error.kind == ErrorKind::Cancelled)
    );
    // The backend has seen it, and was not left to itself.
    assert!(cancelled.teardown.is_none_or(|teardown| teardown.stuck.is_none()));

    let failed = load(
        &slot::<Bytes>(),
        &spec("at load_model 1 fail exhausted 9 GB are missing"),
        &Services::default(),
    );
    assert_eq!(
        failed.err().map(|error| error.to_string()).as_deref(),
        Some("scripted: 9 GB are missing")
    );

    let services = Services::default();
    let no_text = load(&slot::<NoText>(), &spec("set load_ms 100"), &services);
    assert!(services.is_cancelled(), "a model without text need not be loaded");
    assert_eq!(
        no_text.err().map(|error| error.to_string()).as_deref(),
        Some("no tokenizer")
    );
}

#[test]
fn a_model_file_that_is_replaced_during_a_load_is_not_served() {
    /// Replaces the file while the backend opens it, by one of the same contents.
    struct Replacing;
    impl ModelText for Replacing {
        fn open(checkpoint: &Path) -> Result<Self, String> {
            let other = checkpoint.with_extension("other");
            let replaced =
                std::fs::copy(checkpoint, &other).and_then(|_| std::fs::rename(&other, checkpoint));
            replaced.map(|()| Self).map_err(|e| e.to_string())
        }
        fn fingerprint(&self) -> &str {
            ""
        }
        fn tokens(&self, _: &str) -> Result<Vec<u32>, String> {
            Ok(Vec::new())
        }
        fn text(&self, _: &[u32]) -> String {
            String::new()
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model.gguf");
    std::fs::copy(met_tests::fixture("vocab-spm.gguf"), &model).expect("a copy");
    let mut spec = spec("");
    spec.model.path = model.to_str().expect("a plain path").into();
    let failed = load(&slot::<Replacing>(), &spec, &Services::default());
    let failure = failed.err().expect("two files are no model");
    assert!(failure.to_string().contains("was replaced"), "{failure}");
    assert!(failure.teardown.is_some_and(|teardown| teardown.is_clean()));
}
