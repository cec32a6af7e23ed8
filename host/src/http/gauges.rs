//! What the serving generations have at the moment, as `/metrics` shows it. Each gauge carries the label `model`.

use crate::{scheduler::Counts, slot::Slots};
use metrics::gauge;

/// Sets every slot's gauges, for the page that is made next. Where a slot has a generation that still drains, that
/// one's are not among them.
pub(super) fn set<T>(slots: &Slots<T>) {
    for slot in slots.all() {
        if let Some(generation) = slot.current() {
            set_of(slot.name(), &generation.engine().snapshot().counts);
        }
    }
}

fn set_of(model: &str, counts: &Counts) {
    let set =
        |name: &'static str, value: u32| gauge!(name, "model" => model.to_owned()).set(f64::from(value));
    // Requests that generate, or whose prompt is being computed.
    set("met_requests_running", counts.prefilling + counts.active);
    // Requests in the line.
    set(
        "met_requests_waiting",
        counts.waiting + counts.preempted + counts.swapped,
    );
    // KV blocks; pinned are those that sessions keep.
    set("met_kv_blocks_used", counts.blocks_used);
    set("met_kv_blocks_total", counts.blocks_total);
    set("met_kv_blocks_pinned", counts.blocks_pinned);
    // Sessions whose last turn is kept.
    set("met_sessions", counts.sessions);
    // Slots and snapshots of recurrent state; a snapshot in use holds something.
    set("met_state_slots_used", counts.state_slots_used);
    set("met_state_slots_total", counts.state_slots_total);
    set("met_state_snapshots_used", counts.snapshots_used);
    set("met_state_snapshots_total", counts.snapshots_total);
}
