//! The operators' routes.

use super::AdminListener;
use crate::{
    engine::Snapshot,
    http::ApiError,
    slot::{Slot, Slots},
    text::Text,
};
use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The routes; with a token, each asks for it as `Authorization: Bearer …`.
///
/// | route | answer |
/// | --- | --- |
/// | `GET /slots` | every slot: its generation, model, device, requests, memory |
/// | `GET /slots/{slot}/ledger` | every live entry of its backend's ledger |
pub fn router(slots: Arc<Slots<Text>>, token: Option<String>) -> Router {
    let router = Router::new()
        .route("/slots", get(list))
        .route("/slots/{slot}/ledger", get(ledger))
        .fallback(|| async { not_found("there is no such route; see GET /slots") })
        .method_not_allowed_fallback(|| async {
            ApiError::with_status(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this route is for GET",
            )
        })
        .with_state(slots);
    match token {
        None => router,
        Some(token) => router.layer(from_fn(move |request, next| check(token.clone(), request, next))),
    }
}

async fn check(token: String, request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|v| v.to_str().ok());
    match given.and_then(|given| given.strip_prefix("Bearer ")) {
        Some(given) if crate::http::is_same(given, &token) => next.run(request).await,
        _ => {
            let say = format!(
                "send the token of {} as 'Authorization: Bearer TOKEN'",
                AdminListener::TOKEN
            );
            ApiError::with_status(StatusCode::UNAUTHORIZED, "invalid_token", say).into_response()
        }
    }
}

async fn list(State(slots): State<Arc<Slots<Text>>>) -> Json<Vec<Value>> {
    Json(slots.all().iter().map(|slot| describe(slot)).collect())
}

async fn ledger(State(slots): State<Arc<Slots<Text>>>, Path(name): Path<String>) -> Response {
    let Some(slot) = slots.get(&name) else {
        return not_found("there is no slot of this name; see GET /slots").into_response();
    };
    let entries = slot
        .current()
        .map(|generation| generation.engine().snapshot().ledger)
        .unwrap_or_default();
    Json(json!({"slot": name, "entries": entries})).into_response()
}

fn not_found(message: &str) -> ApiError {
    ApiError::with_status(StatusCode::NOT_FOUND, "not_found", message)
}

fn describe(slot: &Slot<Text>) -> Value {
    let Some(generation) = slot.current() else {
        return json!({"slot": slot.name(), "generation": null, "ready": false});
    };
    let info = generation.engine().info();
    let snapshot = generation.engine().snapshot();
    let ready = snapshot.is_ready();
    let Snapshot {
        state,
        counts,
        memory,
        call,
        ..
    } = snapshot;
    json!({
        "slot": slot.name(),
        "generation": generation.number(),
        "ready": ready,
        "engine": state,
        "leases": generation.leases(),
        "device": info.device.name.as_str(),
        "model": {
            "name": info.model.name.as_str(),
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
