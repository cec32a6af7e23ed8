//! Slots as operators see them.

use crate::{
    engine::Snapshot,
    slot::{
        Slot,
        swap::{GenerationCard, Supervisor},
    },
    text::Text,
};
use serde_json::{Value, json};

/// Every slot, and every generation that is stuck.
pub(super) fn slots(supervisor: &Supervisor<Text>) -> Value {
    let slots: Vec<Value> = supervisor
        .slots()
        .all()
        .iter()
        .map(|slot| describe(slot, supervisor.busy(slot.name())))
        .collect();
    let stuck: Vec<Value> = supervisor
        .stuck()
        .iter()
        .map(|(slot, generation)| {
            json!({
                "slot": slot,
                "generation": GenerationCard::of(generation),
                "call": generation.engine().snapshot().call,
            })
        })
        .collect();
    json!({"slots": slots, "stuck": stuck})
}

fn describe(slot: &Slot<Text>, swap: Option<u64>) -> Value {
    let (_, held) = slot.held();
    let Some(generation) = slot.current() else {
        return json!({
            "slot": slot.name(), "generation": null, "ready": slot.is_ready(), "swap": swap, "held": held,
        });
    };
    let info = generation.engine().info();
    let Snapshot {
        state,
        counts,
        memory,
        call,
        ..
    } = generation.engine().snapshot();
    let card = GenerationCard::of(&generation);
    json!({
        "slot": slot.name(),
        "generation": card.generation,
        "ready": slot.is_ready(),
        "swap": swap,
        "held": held,
        "engine": state,
        "leases": generation.leases(),
        "backend": card.backend,
        "device": card.device,
        "model": {
            "name": card.model,
            "path": card.path,
            "architecture": info.model.architecture.as_str(),
            "quantization": info.model.quantization.as_str(),
            "weights_identity": info.model.weights_identity.as_str(),
            "context": info.model.context_length,
        },
        "counts": counts,
        "memory": memory,
        "call": call,
    })
}
