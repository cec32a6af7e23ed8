//! The secret of whoever asks: `Authorization: Bearer SECRET`.

use axum::http::{HeaderMap, header};

/// Whether the headers say this secret.
pub(crate) fn has_bearer(headers: &HeaderMap, secret: &str) -> bool {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    given
        .and_then(|given| given.split_once(' '))
        .is_some_and(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && is_same(token, secret))
}

/// Takes the same time wherever two texts of one length differ.
fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}
