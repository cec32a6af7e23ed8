//! `/metrics`: the process's recorder, and what HTTP itself counts.

use super::gauges;
use crate::slot::Slots;
use axum::http::{Method, StatusCode};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use std::{sync::OnceLock, thread, time::Duration};

/// Requests that were answered, by route, method and status.
const HTTP_REQUESTS: &str = "met_http_requests_total";

/// Upper bounds in seconds of every histogram whose name ends in `_seconds`.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
];

/// A gauge that was not set for the page is shown no longer: its slot is gone. Longer than it takes to set them all,
/// since two pages may be made at once.
const GAUGE_AGE: Duration = Duration::from_secs(1);

/// How often recorded samples are folded into buckets; until then each one takes memory.
const UPKEEP: Duration = Duration::from_secs(5);

/// The process's recorder, installed by the first call. Metrics that were made before it go nowhere, so call this
/// before any engine starts.
pub fn install() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let buckets =
            PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS);
        let builder = buckets
            .unwrap_or_else(|error| {
                tracing::error!(%error, "histograms have no buckets");
                PrometheusBuilder::new()
            })
            .idle_timeout(MetricKindMask::GAUGE, Some(GAUGE_AGE));
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::error!("another recorder of metrics is installed: /metrics stays empty");
        }
        metrics::describe_counter!(HTTP_REQUESTS, "HTTP requests that were answered");
        let upkeep = handle.clone();
        let thread = thread::Builder::new().name("metrics".into()).spawn(move || {
            loop {
                thread::sleep(UPKEEP);
                upkeep.run_upkeep();
            }
        });
        if let Err(error) = thread {
            tracing::error!(%error, "no thread for metrics: their memory grows until /metrics is read");
        }
        handle
    })
}

/// What `/metrics` shows, without the recorder's blank lines.
pub fn page<T>(slots: &Slots<T>) -> String {
    gauges::set(slots);
    install().render().replace("\n\n", "\n")
}

/// Counts an answered request by its route's pattern.
pub fn count_request(route: &str, method: &Method, status: StatusCode) {
    // A method of the client's own making must not become a label either.
    let method = match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    };
    metrics::counter!(
        HTTP_REQUESTS,
        "route" => route.to_owned(),
        "method" => method,
        "status" => status.as_str().to_owned(),
    )
    .increment(1);
}
