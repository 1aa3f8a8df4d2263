//! What a request was refused with, as RFC 9457 has it (`application/problem+json`), with our three fields beside: a kind for programs, the
//! message, and the way out.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::api::Failure;

pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// A request that failed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Problem<'a> {
    #[serde(rename = "type")]
    uri: &'static str,
    /// What the status code means.
    title: &'static str,
    status: u16,
    /// What went wrong here.
    detail: &'a str,
    /// A word for programs.
    kind: &'a str,
    /// The same as `detail`.
    message: &'a str,
    /// The way out.
    hint: &'a str,
}

pub(super) fn response(status: StatusCode, failure: &Failure) -> Response {
    let problem = Problem {
        uri: "about:blank",
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16(),
        detail: &failure.message,
        kind: &failure.kind,
        message: &failure.message,
        hint: &failure.hint,
    };
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response()
}
