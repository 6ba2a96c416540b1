//! Forward calls to the Python server, over a local socket.

use crate::status::{Body, Failure, Status};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::path::PathBuf;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 24;

pub struct Upstream {
    path: PathBuf,
    gone: Status,
    sender: Mutex<Option<SendRequest<Body>>>,
}

impl Upstream {
    /// `gone` is the status for callers if the server cannot be reached.
    pub fn new(path: PathBuf, gone: Status) -> Self {
        Upstream { path, gone, sender: Mutex::new(None) }
    }

    /// Forward a call; its answer is streamed back unchanged, with its metadata.
    pub async fn forward(&self, request: Request<Body>) -> Response<Body> {
        match self.sent(request).await {
            Ok(response) => response.map(|body| body.map_err(Failure::from).boxed_unsync()),
            Err(_) => self.gone.response(),
        }
    }

    async fn sent(&self, mut request: Request<Body>) -> Result<Response<hyper::body::Incoming>, Failure> {
        let mut sender = self.connected().await?;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = Uri::builder().scheme("http").authority("localhost").path_and_query(path).build()?;
        Ok(sender.send_request(request).await?)
    }

    /// Return the connection that all calls share, reopened if it has ended.
    async fn connected(&self) -> Result<SendRequest<Body>, Failure> {
        let mut known = self.sender.lock().await;
        if let Some(sender) = known.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = TokioIo::new(UnixStream::connect(&self.path).await?);
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let (sender, connection) = builder.handshake(stream).await?;
        tokio::spawn(connection);
        *known = Some(sender.clone());
        Ok(sender)
    }
}
