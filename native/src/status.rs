//! Errors that are answered here, with Python's messages, and gRPC's framing of answers and errors.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::convert::Infallible;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, Failure>;

const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// A gRPC status with its details (a serialised `google.rpc.Status`).
#[derive(Clone)]
pub struct Status {
    pub code: u16,
    message: HeaderValue,
    details: HeaderValue,
}

impl Status {
    pub fn new(code: u16, message: &str, details: &[u8]) -> Self {
        let header = |text: String| HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
        let message = header(utf8_percent_encode(message, ESCAPED).to_string());
        Status { code, message, details: header(STANDARD_NO_PAD.encode(details)) }
    }

    /// Return the whole response for this status (trailers-only in gRPC's terms).
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(Empty::new().map_err(never).boxed_unsync());
        let headers = response.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(self.code));
        headers.insert("grpc-message", self.message.clone());
        headers.insert("grpc-status-details-bin", self.details.clone());
        response
    }
}

/// Build an answer: the message as a frame, and status 0.
pub fn answered(message: &[u8]) -> Response<Body> {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(frame.freeze()).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body.map_err(never).boxed_unsync());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// Return the message in a call's bytes; None if they are not one uncompressed frame.
pub fn unframed(call: &Bytes) -> Option<Bytes> {
    let head: [u8; 5] = call.get(..5)?.try_into().ok()?;
    let size = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    (head[0] == 0 && call.len() == size + 5).then(|| call.slice(5..))
}

fn never(error: Infallible) -> Failure {
    match error {}
}
