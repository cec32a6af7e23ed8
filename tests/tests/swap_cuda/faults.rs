//! Every driver call of a CUDA generation's life fails in turn: while it is loaded and tried, while it answers, and while
//! it is torn down. Whichever it is, the slot serves, every request has its end, the report is true, and what the card
//! still held at the end of its context is what the report says is left. One test, since it watches the process's
//! one simulated card.

use crate::{
    simulator::Holdings,
    world::{On, TOKENS, World, is_whole},
};
use met_host::{
    request::Event,
    slot::swap::{InFlight, Outcome, Plan, SwapOrder, SwapReport},
};
use std::collections::BTreeMap;

/// A prefill, a decode kernel by kernel, one that is captured, and one of the graph.
const FEW: u32 = 5;
/// What a failed call leaves: nothing, no memory, or a context that is lost.
const CODES: [i32; 3] = [1, 2, LOST];
/// A launch that failed.
const LOST: i32 = 719;

/// Plans and policies, and how many calls of each function in each phase fail: under one of each, every one.
const WAYS: [(How, u64); 4] = [
    (How::new(Plan::SideBySide, InFlight::Finish), u64::MAX),
    (How::new(Plan::DrainFirst, InFlight::Carry), 4),
    (How::new(Plan::SideBySide, InFlight::Carry), 1),
    (How::new(Plan::DrainFirst, InFlight::Finish), 1),
];

/// When a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// While the generation is loaded and tried, and takes requests over.
    Arrival,
    /// While it computes a request.
    Service,
    /// While it is torn down.
    Departure,
}

const PHASES: [Phase; 3] = [Phase::Arrival, Phase::Service, Phase::Departure];

/// How a swap is made.
#[derive(Clone, Copy, Debug)]
struct How {
    plan: Plan,
    in_flight: InFlight,
}

impl How {
    const fn new(plan: Plan, in_flight: InFlight) -> Self {
        Self { plan, in_flight }
    }
}

/// One life of a generation in which the `n`-th call of a function in a phase fails.
#[derive(Clone, Debug)]
struct Case {
    phase: Phase,
    function: String,
    n: u64,
    code: i32,
    how: How,
}

/// The driver's calls of each phase, by function.
type Calls = [BTreeMap<String, u64>; PHASES.len()];

#[test]
fn whichever_driver_call_fails_the_slot_serves_and_the_card_is_as_the_report_says() {
    let world = World::new();
    let mut struck = [0; WAYS.len()];
    let mut failed = 0;
    for (way, (how, most)) in WAYS.into_iter().enumerate() {
        let calls = undisturbed(&world, how);
        for (phase, functions) in PHASES.into_iter().zip(&calls) {
            for function in functions.keys() {
                for n in 1..=most {
                    let case = Case {
                        phase,
                        function: function.clone(),
                        n,
                        code: CODES[(n as usize + way) % CODES.len()],
                        how,
                    };
                    let (has_struck, outcome) = disturbed(&world, &case);
                    if !has_struck {
                        // It is called no more often.
                        break;
                    }
                    struck[way] += 1;
                    failed += u64::from(outcome != Outcome::Swapped);
                }
            }
        }
        // Which requests share a step is as it comes, and with it how many calls there are.
        let calls: u64 = calls
            .iter()
            .flat_map(BTreeMap::values)
            .map(|calls| calls.min(&most))
            .sum();
        assert!(
            struck[way] * 2 > calls,
            "{} of {calls} calls failed: {how:?}",
            struck[way]
        );
    }
    let all: u64 = struck.iter().sum();
    println!("{struck:?} calls failed, and with them {failed} swaps");
    assert!(struck[0] > 300 && failed * 4 > all, "{struck:?}, {failed}");
}

fn order_to(world: &World, on: On, how: How) -> SwapOrder {
    SwapOrder {
        plan: Some(how.plan),
        in_flight: how.in_flight,
        ..world.order(on)
    }
}

/// A swap to the card and back in which nothing fails. Returns the driver's calls of each phase.
fn undisturbed(world: &World, how: How) -> Calls {
    let simulator = world.simulator;
    simulator.reset();
    let (report, clients) = world.swap_under_load(order_to(world, On::Card, how));
    assert_eq!(report.outcome, Outcome::Swapped, "{report:?}");
    assert!(report.is_clean() && report.cancelled == 0, "{report:?}");
    for events in world.ends(clients) {
        is_whole(&events, TOKENS).unwrap_or_else(|problem| panic!("{problem}: {report:?}"));
    }
    let take_calls = || {
        let calls = simulator.calls_by_function();
        simulator.reset();
        calls
    };
    let arrival = take_calls();

    is_whole(&world.answer(FEW), FEW).expect("the card answers");
    let held = world.agreed_bytes();
    assert!(held > 0);
    let service = take_calls();

    let report = world.swap(order_to(world, On::Cpu, how));
    assert_eq!(report.outcome, Outcome::Swapped, "{report:?}");
    assert!(
        report.is_clean() && report.released.swept.count == 0,
        "{report:?}"
    );
    assert_eq!(library_state(&report), "unmapped", "{report:?}");
    let released: u64 = report.released.pools.iter().map(|pool| pool.pool.bytes).sum();
    assert_eq!(released, held, "what was on the card is what was released");
    assert_eq!(
        simulator.left(),
        Holdings::default(),
        "the card when the context ended"
    );
    assert_eq!(simulator.alive(), Holdings::default(), "after the unload");
    is_whole(&world.answer(FEW), FEW).expect("the CPU answers");
    [arrival, service, take_calls()]
}

/// The same with a call that fails. Returns whether it was made, and how the swap to the card ended.
fn disturbed(world: &World, case: &Case) -> (bool, Outcome) {
    let simulator = world.simulator;
    simulator.reset();
    let arm = |phase: Phase| {
        if phase == case.phase {
            simulator.fail_of(&case.function, case.n, case.code);
        }
    };
    arm(Phase::Arrival);
    let (arrived, clients) = world.swap_under_load(order_to(world, On::Card, case.how));
    let ends = world.ends(clients);
    let fails_while_serving = case.phase == Phase::Arrival && arrived.outcome == Outcome::Swapped;
    for events in &ends {
        let is_well = is_whole(events, TOKENS).is_ok()
            || (fails_while_serving && matches!(events.last(), Some(Event::Failed(_))));
        assert!(is_well, "{case:?}: {:?}\n{arrived:?}", events.last());
    }
    check(world, case, &[&arrived]);
    if arrived.outcome == Outcome::Swapped {
        arm(Phase::Service);
        if case.phase == Phase::Service {
            // What its client is told is as it comes: the step may be made again, or the generation may be lost.
            let events = world.answer(FEW);
            assert!(
                matches!(events.last(), Some(Event::Finished(_) | Event::Failed(_))),
                "{case:?}: {events:?}"
            );
        }
        arm(Phase::Departure);
        let departed = world.swap(order_to(world, On::Cpu, case.how));
        assert_eq!(departed.outcome, Outcome::Swapped, "{case:?}: {departed:?}");
        check(world, case, &[&arrived, &departed]);
    }
    let has_struck = !simulator.is_armed();
    assert_eq!(simulator.alive(), Holdings::default(), "{case:?}: in the end");
    is_whole(&world.answer(FEW), FEW)
        .unwrap_or_else(|problem| panic!("{case:?}: the CPU {problem}: {arrived:?}"));
    (has_struck, arrived.outcome)
}

/// Checks reports: they say why something is not as it was asked to be, and name what is left, which is what the card
/// held at the end of the generation that was torn down.
fn check(world: &World, case: &Case, reports: &[&SwapReport]) {
    for report in reports {
        is_true(report).unwrap_or_else(|problem| panic!("{case:?}: {problem}: {report:?}"));
    }
    let gives_back = ["Free", "Destroy", "Unload"];
    if case.code != LOST && !gives_back.iter().any(|verb| case.function.contains(verb)) {
        let swept = |report: &&SwapReport| report.released.swept.count > 0;
        assert!(
            !reports.iter().any(swept),
            "{case:?}: without an owner: {reports:?}"
        );
    }
    let left = reports.iter().filter_map(|report| report.released.left.as_ref());
    let left = Holdings::of(left.flatten().map(|item| (item.kind.as_str(), item.bytes)));
    // A context that is lost before the backend was opened takes along what the opening had made, and nobody was there
    // to report.
    let never_opened = case.code == LOST && reports[0].outcome != Outcome::Swapped;
    if never_opened && left == Holdings::default() {
        return;
    }
    assert_eq!(
        world.simulator.left(),
        left.in_the_context(),
        "{case:?}: what the card held in the end is not what is said to be left: {reports:?}"
    );
}

fn library_state(report: &SwapReport) -> serde_json::Value {
    serde_json::to_value(&report.library).expect("JSON")["state"].take()
}

/// Whether a report says why something is not as it was asked to be, and names what is left.
fn is_true(report: &SwapReport) -> Result<(), &'static str> {
    let has_error = report.steps.iter().any(|step| step.error.is_some());
    if !report.is_as_asked() && report.error.is_none() {
        return Err("it does not say why");
    }
    if !report.is_clean() && !has_error {
        return Err("something is left, but every step is said to have succeeded");
    }
    if library_state(report) == "retained" {
        return Err("the library stays mapped");
    }
    let left = report
        .released
        .left
        .as_ref()
        .ok_or("the ledger could not be read")?;
    match left.iter().all(|item| !item.owner.is_empty()) {
        true => Ok(()),
        false => Err("something is left without an owner's name"),
    }
}
