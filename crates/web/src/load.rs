//! Requests and answers that are large are worked on apart, so that nobody else waits for them. `router` puts it around everything.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;

use pylair_core::visit::LargeAnswer;
use pylair_os::event_loop::{self, LARGE_BYTES, Load, apart};

/// Around every request.
pub async fn weigh(request: Request, next: Next) -> Response {
    let answer = LargeAnswer::default();
    let mut request = request.map(|body| Body::new(Weighed { body, bytes: 0, must_wait: false }));
    request.extensions_mut().insert(answer.clone());
    let response = event_loop::watched(next.run(request)).await;
    response.map(|body| Body::new(Announced { body, answer }))
}

/// The body of a request: once it is known to be large, whoever reads it goes on apart.
struct Weighed {
    body: Body,
    bytes: usize,
    must_wait: bool,
}

impl HttpBody for Weighed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.must_wait) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let before = self.bytes;
            self.bytes += frame.data_ref().map_or(0, Bytes::len);
            if before <= LARGE_BYTES && self.bytes > LARGE_BYTES {
                self.must_wait = Load::take().map(Load::keep).is_some();
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer that may have been announced to be large.
struct Announced {
    body: Body,
    answer: LargeAnswer,
}

impl HttpBody for Announced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let bytes = if self.answer.is_made() { usize::MAX } else { 0 };
        apart(bytes, || Pin::new(&mut self.body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Whoever made it may keep what is left of this for longer than the answer takes room.
        self.answer.give_back();
    }
}

/// An answer in JSON, of any size.
#[derive(Debug)]
pub(super) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match event_loop::to_json(&self.0) {
            Ok(bytes) => {
                let json = HeaderValue::from_static("application/json");
                ([(header::CONTENT_TYPE, json)], bytes).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}
