//! The one shape of every error that a client sees: `{"error": {"message", "type", "param", "code"}}`.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::request::{Failure, Refused};

/// An error for a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Status of the answer. Only a state that passes by itself has one that client libraries retry
    /// (408, 409, 429, 5xx).
    #[serde(skip)]
    pub status: StatusCode,
    /// Who must act, and on what.
    pub message: String,
    /// OpenAI's class of the error.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The parameter that is wrong.
    pub param: Option<String>,
    /// The error's stable name.
    pub code: Option<&'static str>,
    /// Seconds after which a repetition may succeed.
    #[serde(skip)]
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    /// A value of the wrong type or out of range.
    pub fn invalid_value(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::request(message, Some(param.into()), Some("invalid_value"))
    }

    /// A parameter, or a value of one, that this server doesn't support.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::request(message, Some(param.into()), Some("unsupported_parameter"))
    }

    /// A request that is wrong in a way that no single parameter is.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::request(message, None, None)
    }

    /// A model name that no slot has.
    pub fn model_not_found(model: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::request(
                format!(
                    "there is no model '{}' here; GET /v1/models lists those that are",
                    shorten(model)
                ),
                Some("model".into()),
                Some("model_not_found"),
            )
        }
    }

    /// A request that is refused whatever it says, with a status of its own.
    pub fn with_status(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            ..Self::request(message, None, Some(code))
        }
    }

    /// A state that passes by itself.
    pub fn unavailable(code: &'static str, message: impl Into<String>, retry_after_s: u32) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: message.into(),
            kind: "server_error",
            param: None,
            code: Some(code),
            retry_after_s: Some(retry_after_s),
        }
    }

    /// Our own fault, for the `reason` that the log tells.
    pub fn internal(reason: impl std::fmt::Display) -> Self {
        tracing::error!(%reason, "a request failed");
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: "the server failed on this request; its operator finds the reason in the log".into(),
            kind: "server_error",
            param: None,
            code: Some("internal_error"),
            retry_after_s: None,
        }
    }

    /// A request that the engine did not accept; `prompt` names the parameter that holds the prompt.
    pub fn refused(refused: Refused, prompt: &str) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::TooLong { .. } => {
                Self::request(message, Some(prompt.into()), Some("context_length_exceeded"))
            }
            Refused::Full { retry_after_s } => Self {
                status: StatusCode::TOO_MANY_REQUESTS,
                kind: "rate_limit_error",
                ..Self::unavailable("queue_full", message, retry_after_s)
            },
            Refused::Draining => Self::unavailable("model_draining", message, 1),
            Refused::Invalid(_) => Self::request(message, None, Some("invalid_value")),
        }
    }

    /// A request that failed after it was accepted.
    pub fn failed(failure: Failure) -> Self {
        match failure {
            Failure::SlowClient => Self::unavailable(
                "slow_client",
                "the answer was not read fast enough, so it was given up; read the stream without pauses",
                1,
            ),
            Failure::Draining => Self::unavailable(
                "model_draining",
                "the model was stopped or swapped before this answer was complete; try again",
                1,
            ),
            Failure::Cut(stage) => Self::unavailable(
                "model_draining",
                format!(
                    "the model was stopped or swapped before this answer was complete ({}); try again",
                    stage.describe()
                ),
                1,
            ),
            Failure::Backend(message) => {
                tracing::error!(%message, "a request failed in the backend");
                Self::unavailable(
                    "backend_failed",
                    "the model's backend failed on this request; try again, its operator finds the reason in the log",
                    1,
                )
            }
            Failure::Invalid(message) => Self::request(message, None, Some("invalid_value")),
        }
    }

    fn request(message: impl Into<String>, param: Option<String>, code: Option<&'static str>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            kind: "invalid_request_error",
            param,
            code,
            retry_after_s: None,
        }
    }
}

/// The JSON text of an error's answer.
#[derive(Serialize)]
pub struct ErrorBody<'a> {
    /// The error.
    pub error: &'a ApiError,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(ErrorBody { error: &self })).into_response();
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// At most 64 characters of a client's text, so that an error never sends much of it back.
pub fn shorten(text: &str) -> String {
    let mut characters = text.chars();
    let mut short: String = characters.by_ref().take(64).collect();
    if characters.next().is_some() {
        short.push('…');
    }
    short
}
