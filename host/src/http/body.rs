//! Reading a request's body: bounded in bytes and in time.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::error::ApiError;

/// Most bytes of a body: text for a million tokens.
const MAX_BODY: usize = 4 << 20;
/// How much of a body that is too large is read and dropped, so that its sender comes to read the answer.
const MAX_DROPPED: usize = 64 << 20;
/// Time for a whole body.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time for one that is of no use.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads a body of JSON text.
///
/// # Errors
/// 415 for another content type than JSON (none at all is taken for JSON), 413 for too many bytes, 408 for too
/// slow a sender.
pub async fn read_json(headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    check_length(headers)?;
    let body = read_all(body, MAX_BODY).await?;
    check_content_type(headers)?;
    Ok(body)
}

/// Reads a body that is of no use. A connection that is closed while its client still writes loses the answer.
pub async fn discard(body: Body) {
    // Whatever is wrong with it, the answer says something else, and soon.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read(body, 0)).await;
}

/// Reads a body to its end, keeping at most `most` bytes; more of them are an error.
async fn read_all(body: Body, most: usize) -> Result<Bytes, ApiError> {
    tokio::time::timeout(TIMEOUT, read(body, most))
        .await
        .unwrap_or_else(|_elapsed| {
            Err(ApiError::with_status(
                StatusCode::REQUEST_TIMEOUT,
                "body_timeout",
                format!("the body did not arrive within {} s", TIMEOUT.as_secs()),
            ))
        })
}

async fn read(mut body: Body, most: usize) -> Result<Bytes, ApiError> {
    let mut text = BytesMut::new();
    let mut length = 0usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
        let Some(data) = frame.data_ref() else { continue };
        length += data.len();
        if length <= most {
            text.extend_from_slice(data);
        } else if length > MAX_DROPPED {
            break;
        }
    }
    if length > most {
        return Err(too_large(most));
    }
    Ok(text.freeze())
}

fn too_large(most: usize) -> ApiError {
    let message = format!("a body may have at most {most} bytes");
    ApiError::with_status(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

/// Refuses at once what announces more than would ever be read.
fn check_length(headers: &HeaderMap) -> Result<(), ApiError> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match announced {
        Some(length) if length > MAX_DROPPED as u64 => Err(too_large(MAX_BODY)),
        _ => Ok(()),
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = value
        .to_str()
        .ok()
        .and_then(|value| value.split(';').next())
        .map(str::trim);
    match essence {
        Some(kind) if kind.eq_ignore_ascii_case("application/json") => Ok(()),
        _ => Err(ApiError::with_status(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_content_type",
            "the body must be JSON, with Content-Type: application/json",
        )),
    }
}
