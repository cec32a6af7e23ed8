//! The operators' routes.

use super::{AdminListener, events, show};
use crate::{
    config::{Reloader, SlotConfig},
    http::{ApiError, has_bearer},
    loader::Builtins,
    slot::swap::{Begun, InFlight, NotCancelled, Order, Refusal, Supervisor},
    text::Text,
};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        Path, Query, Request, State,
        rejection::{BytesRejection, PathRejection, QueryRejection},
    },
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

/// What the routes need.
pub struct Operators {
    /// Carries orders out.
    pub supervisor: Arc<Supervisor<Text>>,
    /// Reads the configuration file again.
    pub reloader: Arc<Reloader<Text>>,
    /// The backends that need no library.
    pub builtins: Builtins,
}

type Shared = State<Arc<Operators>>;

/// The routes; with a token, each asks for it as `Authorization: Bearer …`. Those that change something answer once
/// it is done, with the report; with `?wait=false` at once, with the swap's number.
///
/// | route | what |
/// | --- | --- |
/// | `GET /slots` | every slot: its generation, model, device, requests, memory; and what is stuck |
/// | `GET /slots/{slot}/ledger` | every live entry of its backend's ledger |
/// | `POST /slots/{slot}` | a new slot |
/// | `POST /slots/{slot}/swap` | another backend or model |
/// | `DELETE /slots/{slot}` | drain and unload |
/// | `GET /swaps/{id}` | the report of a swap that has ended |
/// | `POST /swaps/{id}/cancel` | give the candidate up |
/// | `POST /reload` | read the configuration file again and apply the difference |
/// | `GET /events` | what happens, as server-sent events |
pub fn router(operators: Arc<Operators>, token: Option<String>) -> Router {
    let router = Router::new()
        .route("/slots", get(list))
        .route("/slots/{slot}", delete(unload).post(load))
        .route("/slots/{slot}/ledger", get(ledger))
        .route("/slots/{slot}/swap", post(swap))
        .route("/swaps/{id}", get(report))
        .route("/swaps/{id}/cancel", post(cancel))
        .route("/reload", post(reload))
        .route("/events", get(stream))
        .fallback(|| async { not_found("there is no such route; see the README, or GET /slots") })
        .method_not_allowed_fallback(|| async {
            let say = "this route does not take this method; see the README";
            ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", say)
        })
        .with_state(operators);
    match token {
        None => router,
        Some(token) => router.layer(from_fn(move |request, next| check(token.clone(), request, next))),
    }
}

async fn check(token: String, request: Request, next: Next) -> Response {
    if has_bearer(request.headers(), &token) {
        return next.run(request).await;
    }
    let say = format!(
        "send the token of {} as 'Authorization: Bearer TOKEN'",
        AdminListener::TOKEN
    );
    ApiError::with_status(StatusCode::UNAUTHORIZED, "invalid_token", say).into_response()
}

async fn list(State(operators): Shared) -> Response {
    Json(show::slots(&operators.supervisor)).into_response()
}

async fn ledger(State(operators): Shared, slot: Named<String>) -> Result<Response, ApiError> {
    let name = named(slot)?;
    let slot = operators.supervisor.slots().get(&name);
    let slot = slot.ok_or_else(|| not_found("there is no slot of this name; see GET /slots"))?;
    let entries = slot
        .current()
        .map(|generation| generation.engine().snapshot().ledger)
        .unwrap_or_default();
    Ok(Json(json!({"slot": name, "entries": entries})).into_response())
}

async fn load(
    State(operators): Shared,
    slot: Named<String>,
    wait: Asked<Wait>,
    body: Body,
) -> Result<Response, ApiError> {
    let (name, wait) = (named(slot)?, query(wait)?);
    let order = parse(body)?.order(None, &operators.builtins).map_err(invalid)?;
    operators.carry_out(&name, Order::Load(order), wait).await
}

async fn swap(
    State(operators): Shared,
    slot: Named<String>,
    wait: Asked<Wait>,
    body: Body,
) -> Result<Response, ApiError> {
    let (name, wait) = (named(slot)?, query(wait)?);
    let base = operators
        .supervisor
        .slots()
        .get(&name)
        .and_then(|slot| slot.spec());
    let order = parse(body)?
        .order(base.as_ref(), &operators.builtins)
        .map_err(invalid)?;
    operators.carry_out(&name, Order::Swap(order), wait).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnloadQuery {
    in_flight: Option<InFlight>,
    drain_deadline_s: Option<f64>,
    wait: Option<bool>,
}

async fn unload(
    State(operators): Shared,
    slot: Named<String>,
    asked: Asked<UnloadQuery>,
) -> Result<Response, ApiError> {
    let (name, query) = (named(slot)?, query(asked)?);
    let config = SlotConfig {
        drain_deadline_s: query.drain_deadline_s,
        ..SlotConfig::default()
    };
    let order = Order::Unload {
        in_flight: query.in_flight.unwrap_or_default(),
        drain_deadline: config.drain_deadline().map_err(invalid)?,
    };
    operators.carry_out(&name, order, Wait { wait: query.wait }).await
}

async fn report(State(operators): Shared, id: Named<u64>) -> Result<Response, ApiError> {
    let report = operators.supervisor.report(named(id)?);
    let say = "no swap of this number has ended lately; while it runs, see GET /slots and GET /events";
    Ok(Json(report.ok_or_else(|| not_found(say))?).into_response())
}

async fn cancel(State(operators): Shared, id: Named<u64>) -> Result<Response, ApiError> {
    let id = named(id)?;
    match operators.supervisor.cancel(id) {
        Ok(()) => Ok(Json(json!({"id": id, "cancelling": true})).into_response()),
        Err(error @ NotCancelled::NotRunning(_)) => Err(not_found(&error.to_string())),
        Err(error @ NotCancelled::TooLate(_)) => Err(conflict("too_late", error)),
    }
}

async fn reload(State(operators): Shared) -> Result<Response, ApiError> {
    let reloaded = operators.reloader.reload().await.map_err(invalid)?;
    Ok(Json(reloaded).into_response())
}

async fn stream(State(operators): Shared) -> Response {
    events::respond(operators.supervisor.subscribe())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    wait: Option<bool>,
}

impl Operators {
    async fn carry_out(&self, name: &str, order: Order, wait: Wait) -> Result<Response, ApiError> {
        let Begun { id, report } = self.supervisor.begin(name, order).map_err(refused)?;
        if wait.wait == Some(false) {
            return Ok((StatusCode::ACCEPTED, Json(json!({"id": id, "slot": name}))).into_response());
        }
        let report = report
            .await
            .map_err(|_| ApiError::internal(format!("swap {id} ended without a report")))?;
        Ok(Json(report).into_response())
    }
}

/// No body says the same as an empty object.
fn parse(body: Body) -> Result<SlotConfig, ApiError> {
    let body =
        body.map_err(|error| ApiError::with_status(error.status(), "invalid_body", error.body_text()))?;
    if body.is_empty() {
        return Ok(SlotConfig::default());
    }
    let body = &mut serde_json::Deserializer::from_slice(&body);
    // Its errors name the field.
    let config = serde_path_to_error::deserialize(&mut *body).map_err(|error| invalid(error.to_string()))?;
    body.end().map_err(|error| invalid(error.to_string()))?;
    Ok(config)
}

type Asked<T> = Result<Query<T>, QueryRejection>;
type Named<T> = Result<Path<T>, PathRejection>;
type Body = Result<Bytes, BytesRejection>;

fn query<T>(asked: Asked<T>) -> Result<T, ApiError> {
    let Query(query) = asked.map_err(|error| invalid(error.body_text()))?;
    Ok(query)
}

/// A slot's name, or a swap's number.
fn named<T>(named: Named<T>) -> Result<T, ApiError> {
    let Path(named) = named.map_err(|error| invalid(error.body_text()))?;
    Ok(named)
}

fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Busy { .. } => conflict("slot_busy", refusal),
        Refusal::Name { reason } => invalid(reason),
        Refusal::Unknown { .. } => not_found(&refusal.to_string()),
        // It never becomes right by itself.
        Refusal::Exists { .. } => ApiError::with_status(
            StatusCode::UNPROCESSABLE_ENTITY,
            "slot_exists",
            refusal.to_string(),
        ),
        Refusal::Closing => ApiError::unavailable("server_stopping", refusal.to_string(), 1),
        Refusal::NoThread(_) => ApiError::unavailable("no_thread", refusal.to_string(), 1),
    }
}

fn conflict(code: &'static str, message: impl std::fmt::Display) -> ApiError {
    ApiError::with_status(StatusCode::CONFLICT, code, message.to_string())
}

fn invalid(message: impl std::fmt::Display) -> ApiError {
    ApiError::with_status(StatusCode::BAD_REQUEST, "invalid_value", message.to_string())
}

fn not_found(message: &str) -> ApiError {
    ApiError::with_status(StatusCode::NOT_FOUND, "not_found", message)
}
