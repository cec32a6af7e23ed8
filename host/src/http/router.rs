//! The routes, and what is done for each of them: counting, the key, and the shape of what goes wrong.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    Json, Router,
    body::Body,
    extract::{MatchedPath, Path, Request, State},
    http::{HeaderValue, Method, StatusCode, Uri, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::FutureExt;
use serde_json::json;

use super::{
    bearer::has_bearer,
    body::discard,
    error::{ApiError, shorten},
    generate, metrics,
    openai::{ModelCard, ModelList, random},
};
use crate::{engine::EngineState, slot::Slots, text::Text};

/// What the routes need.
pub struct AppState {
    /// The served models.
    pub slots: Arc<Slots<Text>>,
    /// Asked for as `Authorization: Bearer …` on `/v1`, where there is one.
    pub api_key: Option<String>,
}

/// Every public route.
pub fn router(state: AppState) -> Router {
    metrics::install();
    let state = Arc::new(state);
    let v1 = Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::complete))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*id}", get(get_model))
        .route_layer(from_fn_with_state(state.clone(), check_key));
    Router::new()
        .merge(v1)
        .route(
            "/",
            get(|| async { "met-host serves OpenAI's API under /v1; see also /health and /metrics.\n" }),
        )
        .route("/health", get(ready))
        .route("/health/live", get(|| async { Json(json!({"status": "live"})) }))
        .route("/metrics", get(show_metrics))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_route)
        .layer(from_fn(observe))
        .with_state(state)
}

/// Names, counts and logs the request, and answers where a handler panicked.
async fn observe(route: Option<MatchedPath>, request: Request, next: Next) -> Response {
    // A route's pattern: clients can't make up labels.
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let method = request.method().clone();
    let id = format!("req-{:016x}", random());
    let mut response = AssertUnwindSafe(next.run(request))
        .catch_unwind()
        .await
        .unwrap_or_else(|_panic| ApiError::internal(format!("{id}: a handler panicked")).into_response());
    let status = response.status();
    metrics::count_request(route, &method, status);
    tracing::debug!(id, %method, route, status = status.as_u16(), "answered");
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

async fn check_key(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let key = state.api_key.as_deref();
    if key.is_none_or(|key| has_bearer(request.headers(), key)) {
        return next.run(request).await;
    }
    discard(request.into_body()).await;
    let error = ApiError::with_status(
        StatusCode::UNAUTHORIZED,
        "invalid_api_key",
        "this server asks for its API key: send it as 'Authorization: Bearer KEY'",
    );
    let mut response = error.into_response();
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

async fn list_models(State(state): State<Arc<AppState>>) -> Response {
    let slots = state.slots.all();
    let cards = slots
        .iter()
        .filter_map(|slot| Some(ModelCard::new(slot.name(), slot.serves_since()?)));
    Json(ModelList::new(cards.collect())).into_response()
}

async fn get_model(State(state): State<Arc<AppState>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let since = state.slots.get(&id).and_then(|slot| slot.serves_since());
    match since {
        Some(since) => Ok(Json(ModelCard::new(&id, since)).into_response()),
        None => Err(ApiError::model_not_found(&id)),
    }
}

/// 200 where every slot takes requests, else 503 with the reason.
async fn ready(State(state): State<Arc<AppState>>) -> Result<Response, ApiError> {
    let slots = state.slots.all();
    let problem = slots.iter().filter(|slot| !slot.is_ready()).find_map(|slot| {
        let name = slot.name();
        let state = slot
            .current()
            .map(|generation| generation.engine().snapshot().state);
        match state {
            Some(EngineState::Serving) => None,
            Some(EngineState::Draining) => Some(format!("the model '{name}' is being stopped")),
            Some(EngineState::Fenced(reason)) => {
                Some(format!("the backend of the model '{name}' failed: {reason}"))
            }
            Some(EngineState::Stopped) => Some(format!("the model '{name}' is stopped")),
            None => Some(format!("the model '{name}' is not loaded")),
        }
    });
    let problem = problem.or_else(|| slots.is_empty().then(|| "no model is served yet".to_owned()));
    match problem {
        Some(problem) => Err(ApiError::unavailable("not_ready", problem, 2)),
        None => {
            let names: Vec<_> = slots.iter().map(|slot| slot.name().to_owned()).collect();
            Ok(Json(json!({"status": "ready", "models": names})).into_response())
        }
    }
}

async fn show_metrics(State(state): State<Arc<AppState>>) -> Response {
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, metrics::page(&state.slots)).into_response()
}

async fn unknown_route(method: Method, uri: Uri, body: Body) -> ApiError {
    discard(body).await;
    ApiError::with_status(
        StatusCode::NOT_FOUND,
        "unknown_route",
        format!(
            "there is no route {} {}",
            shorten(method.as_str()),
            shorten(uri.path())
        ),
    )
}

async fn wrong_method(method: Method, uri: Uri, body: Body) -> ApiError {
    discard(body).await;
    ApiError::with_status(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!(
            "{} does not take {}",
            shorten(uri.path()),
            shorten(method.as_str())
        ),
    )
}
