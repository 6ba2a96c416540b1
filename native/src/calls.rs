//! Handle a call: plain ones are answered here, all others are forwarded to Python.

use crate::admission::{Admission, Entry};
use crate::counts::Counts;
use crate::plain::{Plain, Rules};
use crate::queue::{Job, Queue};
use crate::status::{Body, Failure, Status, answered, unframed};
use crate::upstream::Upstream;
use crate::wire::{RetrieveRequest, Stages};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use prost::Message;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

const RETRIEVE: &str = "/weir.retrieval.v1.RetrievalService/Retrieve";
/// Largest size of a plain request, in bytes.
const LARGE: usize = 1 << 16;
const OK: u16 = 0;
const CANCELLED: u16 = 1;
const DEADLINE_EXCEEDED: u16 = 4;
/// Share of a deadline that may still be left here when the client's has passed (`serving/rpc/instrumentation.py`).
const ROUNDED: f64 = 0.02;
static ECHOED: [HeaderName; 2] = [HeaderName::from_static("x-request-id"), HeaderName::from_static("traceparent")];

/// State shared by all calls.
pub struct Shared {
    pub queue: Queue,
    pub admission: Arc<Admission>,
    pub counts: Arc<Counts>,
    pub upstream: Upstream,
    pub no_time: Status,
    pub queue_full: Status,
    pub stopping: Status,
    /// None: connections are in plain text.
    pub tls: RwLock<Option<TlsAcceptor>>,
    /// Plain calls in progress.
    pub under_way: AtomicUsize,
    /// None: Python answers all calls.
    pub rules: RwLock<Option<Arc<Rules>>>,
}

/// Answer a call.
pub async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let rules = shared.rules.read().expect("no holder of this lock panics").clone();
    match rules.filter(|_| request.uri().path() == RETRIEVE && is_grpc(request.headers())) {
        Some(rules) => retrieve(shared, &rules, request).await,
        None => shared.upstream.forward(request.map(|body| body.map_err(Failure::from).boxed_unsync())).await,
    }
}

async fn retrieve(shared: Arc<Shared>, rules: &Rules, request: Request<Incoming>) -> Response<Body> {
    let arrived = Instant::now();
    let left = timeout(request.headers());
    if !shared.admission.has_time(left) {
        shared.counts.started();
        shared.counts.refused("QUEUE_FULL");
        shared.counts.handled(shared.no_time.code, Duration::ZERO);
        return shared.no_time.response();
    }
    let (head, mut body) = request.into_parts();
    let Ok((read, is_whole)) = first(&mut body).await else {
        return shared.stopping.response(); // The client has disconnected.
    };
    let found = message(&read).filter(|_| is_whole);
    match found.and_then(|found| rules.plain(found)) {
        Some(plain) => Call::begun(shared, arrived, left).answered(plain, &head.headers).await,
        None => {
            // Python counts it, and has its own admission.
            let body = Begun { read: Some(read), rest: body }.boxed_unsync();
            shared.upstream.forward(Request::from_parts(head, body)).await
        }
    }
}

/// Read the first bytes of a body; return them, and whether they are the whole body.
async fn first(body: &mut Incoming) -> Result<(Bytes, bool), hyper::Error> {
    let mut read = BytesMut::new();
    while read.len() <= LARGE {
        match body.frame().await {
            Some(frame) => frame?.data_ref().into_iter().for_each(|data| read.extend_from_slice(data)),
            None => return Ok((read.freeze(), true)),
        }
    }
    Ok((read.freeze(), false))
}

fn message(call: &Bytes) -> Option<RetrieveRequest> {
    RetrieveRequest::decode(unframed(call)?).ok()
}

/// A plain call: counted from its start to its end, even if its client disconnects early.
struct Call {
    shared: Arc<Shared>,
    arrived: Instant,
    left: Option<Duration>,
    entry: Entry,
    code: Option<u16>,
}

impl Call {
    fn begun(shared: Arc<Shared>, arrived: Instant, left: Option<Duration>) -> Self {
        shared.under_way.fetch_add(1, Ordering::Relaxed);
        shared.counts.started();
        let entry = shared.admission.enter();
        Call { shared, arrived, left, entry, code: None }
    }

    async fn answered(mut self, plain: Plain, headers: &HeaderMap) -> Response<Body> {
        let (reply, wait) = oneshot::channel();
        let deadline = self.left.map(|left| self.arrived + left);
        let job = Job { plain, arrived: self.arrived, deadline, reply };
        let response = match self.shared.queue.push(job) {
            false => self.refused(self.shared.queue_full.clone(), "QUEUE_FULL"),
            true => match wait.await {
                Ok(Ok((message, stages))) => {
                    self.shared.counts.answered(&Stages { total: self.arrived.elapsed(), ..stages });
                    self.code = Some(OK);
                    answered(&message)
                }
                Ok(Err(status)) => self.failed(&status),
                Err(_) => self.refused(self.shared.stopping.clone(), "SHUTTING_DOWN"),
            },
        };
        self.entry.waited = self.code == Some(OK) || self.code == Some(DEADLINE_EXCEEDED);
        echoed(response, headers)
    }

    fn refused(&mut self, status: Status, reason: &'static str) -> Response<Body> {
        self.shared.counts.refused(reason);
        self.failed(&status)
    }

    /// End with a status whose reason was counted already.
    fn failed(&mut self, status: &Status) -> Response<Body> {
        self.code = Some(status.code);
        status.response()
    }

    /// Whether the client's deadline has passed.
    fn is_over(&self) -> bool {
        self.left.is_some_and(|left| self.arrived.elapsed().as_secs_f64() >= (1.0 - ROUNDED) * left.as_secs_f64())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let code = self.code.unwrap_or_else(|| {
            // Its client has disconnected.
            self.entry.waited = self.is_over();
            if self.entry.waited { DEADLINE_EXCEEDED } else { CANCELLED }
        });
        self.shared.counts.handled(code, self.arrived.elapsed());
        self.shared.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

fn echoed(mut response: Response<Body>, headers: &HeaderMap) -> Response<Body> {
    for name in &ECHOED {
        for value in headers.get_all(name) {
            response.headers_mut().append(name, value.clone());
        }
    }
    response
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Parse the header `grpc-timeout`: the time that the caller waits.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|number| *number < 100_000_000)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// A body whose first bytes have already been read.
struct Begun {
    read: Option<Bytes>,
    rest: Incoming,
}

impl hyper::body::Body for Begun {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match self.read.take() {
            Some(read) => Poll::Ready(Some(Ok(Frame::data(read)))),
            None => Pin::new(&mut self.rest).poll_frame(context).map_err(Failure::from),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &'static str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", http::HeaderValue::from_static(text));
        timeout(&headers)
    }

    #[test]
    fn timeouts_are_those_of_grpc() {
        assert_eq!(left("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(left("3M"), Some(Duration::from_secs(180)));
        assert_eq!(left("4S"), Some(Duration::from_secs(4)));
        assert_eq!(left("5m"), Some(Duration::from_millis(5)));
        assert_eq!(left("6u"), Some(Duration::from_micros(6)));
        assert_eq!(left("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for wrong in ["", "5", "m", "-5m", "5x", "5.0S", "100000000n"] {
            assert_eq!(left(wrong), None, "{wrong}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }
}
