//! The JSON of `/v1/models`.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// A served model.
#[derive(Serialize)]
pub struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

/// All of them.
#[derive(Serialize)]
pub struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

impl ModelCard {
    /// The model of this name, which serves since `created`.
    pub fn new(id: &str, created: SystemTime) -> Self {
        Self {
            id: id.to_owned(),
            object: "model",
            created: unix_seconds(created),
            owned_by: "met-host",
        }
    }
}

impl ModelList {
    /// A list of these.
    pub fn new(data: Vec<ModelCard>) -> Self {
        Self { object: "list", data }
    }
}

/// OpenAI's way to state a time.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
