//! Leases against switches and shutdowns.

use super::*;
use crate::{
    engine::{
        DeviceIo, Engine, EngineOptions,
        testing::{FakeControls, FakeDevice},
    },
    request::{Event, Request},
};
use futures_util::StreamExt;
use std::sync::mpsc;

fn generation(slot: &Slot<()>) -> Arc<Generation<()>> {
    controlled(slot).0
}

fn controlled(slot: &Slot<()>) -> (Arc<Generation<()>>, FakeControls) {
    let (sender, controls) = mpsc::channel();
    let device = move || {
        let device = FakeDevice::new(64, 4, 4).sampling(|seen| seen.len() as u32);
        let _ = sender.send(device.controls());
        Ok(Box::new(device) as Box<dyn DeviceIo>)
    };
    let engine = Engine::start(slot.name(), EngineOptions::default(), device).expect("a fake device opens");
    let generation = Generation::new(slot.next_number(), engine, Arc::new(()));
    (generation, controls.recv().expect("the device was made"))
}

/// A hold, as a request asks for one.
fn lease(slots: &Slots<()>) -> Result<Lease<()>, LeaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(slots.enter("chat"))
}

#[test]
fn a_slot_that_is_made_for_a_load_holds_requests_from_the_beginning() {
    let slots = Arc::new(Slots::<()>::new());
    let hold = Hold {
        deadline: Duration::from_secs(60),
        max: 1,
    };
    let slot = slots.add_held("chat", hold);
    let waits = Arc::clone(&slots);
    let waits = std::thread::spawn(move || lease(&waits).map(|lease| lease.number()));
    while slot.held().1 == 0 {
        assert!(!waits.is_finished(), "it was sent away");
        std::thread::yield_now();
    }
    slot.switch(Some(generation(&slot)));
    assert_eq!(waits.join().expect("no panic").ok(), Some(1));
}

#[test]
fn a_name_without_a_slot_and_a_slot_without_a_generation_are_told_apart() {
    let slots = Slots::<()>::new();
    assert!(matches!(lease(&slots), Err(LeaseError::UnknownModel { .. })));
    let slot = slots.add("chat");
    assert!(!slot.is_ready());
    assert!(matches!(lease(&slots), Err(LeaseError::NotReady { .. })));
    slot.switch(Some(generation(&slot)));
    assert_eq!(lease(&slots).map(|lease| lease.number()), Ok(1));
    assert!(slot.is_ready());
    slots.shutdown(Duration::ZERO);
}

#[test]
fn a_lease_keeps_the_generation_it_was_taken_on_through_a_switch() {
    let slots = Slots::new();
    let slot = slots.add("chat");
    slot.switch(Some(generation(&slot)));
    let old = lease(&slots).expect("ready");
    let incumbent = slot.switch(Some(generation(&slot))).expect("was there");
    assert_eq!((old.number(), lease(&slots).expect("ready").number()), (1, 2));
    assert_eq!(
        (incumbent.leases(), slot.current().expect("there").leases()),
        (1, 0)
    );

    let waiting = std::thread::spawn(move || incumbent.shutdown(Duration::from_secs(86_400)));
    drop(old);
    assert!(waiting.join().expect("no panic").teardown.is_clean());
    assert!(slot.is_ready());
    assert!(slots.shutdown(Duration::ZERO)[0].1.teardown.is_clean());
}

#[test]
fn a_closed_generation_gives_no_lease_and_its_deadline_holds() {
    let slots = Slots::new();
    let slot = slots.add("chat");
    slot.switch(Some(generation(&slot)));
    let kept = lease(&slots).expect("ready");
    let ends = slots.shutdown(Duration::from_millis(50));
    let (name, end) = &ends[0];
    assert_eq!((name.as_str(), end.number, end.leases), ("chat", 1, 1));
    assert!(end.teardown.is_clean(), "{:?}", end.teardown);
    assert!(!kept.hold());
    assert!(matches!(lease(&slots), Err(LeaseError::NotReady { .. })));
}

#[test]
fn what_one_backend_has_computed_is_not_given_to_one_that_may_be_another() {
    let slots = Slots::new();
    let slot = slots.add("chat");
    let ([old, new], [from, to]) = {
        let ((old, from), (new, to)) = (controlled(&slot), controlled(&slot));
        ([old, new], [from, to])
    };
    from.hold("collect");
    slot.switch(Some(Arc::clone(&old)));
    let request = Request {
        prompt: vec![1; 20],
        max_tokens: 100,
        ..Request::default()
    };
    let streams = lease(&slots).expect("ready").submit(vec![request]).expect("room");
    let mut stream = streams.into_iter().next().expect("one for each request");
    (0..5).for_each(|_| from.pass());
    slot.switch(Some(Arc::clone(&new)));
    old.engine().move_out();
    from.release();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let tokens: Vec<u32> = runtime.block_on(async {
        let mut tokens = Vec::new();
        while let Some(event) = stream.next().await {
            if let Event::Token(token) = event {
                tokens.push(token.id);
            }
        }
        tokens
    });
    assert_eq!(tokens, (20..120).collect::<Vec<u32>>());
    let called = |controls: &FakeControls, name| controls.calls().contains(&name);
    assert!(called(&from, "copy_blocks_out") && !called(&to, "copy_blocks_in"));
    assert!(old.shutdown(Duration::ZERO).teardown.is_clean());
    slots.shutdown(Duration::ZERO);
}
