//! gRPC: from the bytes of a call to a job, and back. Nothing here holds Python's interpreter.

use crate::checks::{Limits, checked};
use crate::queue::{Job, Queue};
use crate::wire::RetrieveRequest;
use bytes::{BufMut, Bytes};
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

/// `RetrievalService`, of which the prototype has `Retrieve`.
#[derive(Clone)]
pub struct Retrieval {
    pub queue: Arc<Queue>,
    pub limits: Arc<Limits>,
}

impl NamedService for Retrieval {
    const NAME: &'static str = "weir.retrieval.v1.RetrievalService";
}

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tower_service::Service<http::Request<Body>> for Retrieval {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pending<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != "/weir.retrieval.v1.RetrievalService/Retrieve" {
                return Ok(Status::unimplemented("the prototype answers Retrieve").into_http());
            }
            Ok(Grpc::new(Encoded).unary(service, request).await)
        })
    }
}

impl UnaryService<RetrieveRequest> for Retrieval {
    type Response = Bytes;
    type Future = Pending<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<RetrieveRequest>) -> Self::Future {
        let (service, arrived) = (self.clone(), Instant::now());
        Box::pin(async move {
            let deadline = timeout(&request).map(|left| arrived + left);
            let queries = checked(request.into_inner(), &service.limits)?;
            let (reply, answer) = oneshot::channel();
            service.queue.push(Job { queries, arrived, deadline, reply });
            let bytes = answer.await.map_err(|_| Status::unavailable("the server ends"))??;
            Ok(Response::new(bytes))
        })
    }
}

/// The time that a caller waits, from the header `grpc-timeout`.
fn timeout(request: &Request<RetrieveRequest>) -> Option<Duration> {
    let text = request.metadata().get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
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

/// Requests are messages; answers are encoded already.
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = RetrieveRequest;
    type Encoder = Encoded;
    type Decoder = Encoded;

    fn encoder(&mut self) -> Encoded {
        Encoded
    }

    fn decoder(&mut self) -> Encoded {
        Encoded
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = RetrieveRequest;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<RetrieveRequest>, Status> {
        let decoded = RetrieveRequest::decode(bytes);
        decoded.map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
