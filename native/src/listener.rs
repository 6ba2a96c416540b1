//! Accept connections, within limits of their number and age, and serve them.

use crate::begun::Begun;
use crate::calls::{Shared, answer};
use crate::status::Failure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

type Secured = TlsStream<TcpStream>;

/// Header with the client's certificate, verified by TLS; gRPC decodes headers from base64 if they end in -bin.
const CLIENT: &str = "x-weir-client-certificate-bin";
const LOOK: Duration = Duration::from_millis(250);
const HEADERS: u32 = 16 << 10;
const STREAM_WINDOW: u32 = 1 << 18;
const CONNECTION_WINDOW: u32 = 1 << 22;

/// Limits of connections.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub streams: u32,
    pub age: Duration,
    pub idle: Duration,
    pub handshake: Duration,
}

/// Adds one to a counter, and takes it back when dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn in_all(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Counted(all.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accept connections until `stop` is set, as long as all listeners together have room; the open ones then end after
/// their calls.
pub async fn listen(
    listener: TcpListener,
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stops| *stops) => return,
        };
        let Ok((stream, caller)) = accepted else {
            // Out of file descriptors: some become free when a connection ends.
            sleep(LOOK).await;
            continue;
        };
        if let Ok(place) = room.clone().try_acquire_owned() {
            // Jitter: connections that begin together must not end together.
            let age = bounds.age.mul_f64(0.9 + f64::from(caller.port() % 1024) / 5120.0);
            let connected = connect(stream, shared.clone(), Bounds { age, ..bounds }, stop.clone());
            tokio::spawn(async move {
                connected.await;
                drop(place);
            });
        }
    }
}

/// Serve the calls of a connection until it ends.
async fn connect(stream: TcpStream, shared: Arc<Shared>, bounds: Bounds, stop: watch::Receiver<bool>) {
    // Otherwise answers wait for the acknowledgement of earlier ones.
    let _ = stream.set_nodelay(true);
    let tls = shared.tls.read().expect("no holder of this lock panics").clone();
    if let Some(tls) = tls {
        if let Ok(Ok((begun, client))) = timeout(bounds.handshake, secured(stream, tls)).await {
            serve(begun, client, shared, bounds, stop).await;
        }
    } else if let Ok(Ok(begun)) = timeout(bounds.handshake, Begun::of(stream)).await {
        serve(begun, None, shared, bounds, stop).await;
    }
}

/// Begin a connection over TLS; return it with the client's certificate, as a header for the Python server.
async fn secured(stream: TcpStream, tls: TlsAcceptor) -> Result<(Begun<Secured>, Option<HeaderValue>), Failure> {
    let stream = tls.accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let client = certificates.first().map(|client| HeaderValue::from_str(&STANDARD_NO_PAD.encode(client)));
    Ok((Begun::of(stream).await?, client.transpose()?))
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    client: Option<HeaderValue>,
    shared: Arc<Shared>,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let here = Arc::new(AtomicUsize::new(0));
    let calls = service_fn(|mut request: Request<Incoming>| {
        let (shared, counted) = (shared.clone(), Counted::in_all(&here));
        // Clients must not set this header themselves.
        request.headers_mut().remove(CLIENT);
        client.iter().for_each(|client| drop(request.headers_mut().insert(CLIENT, client.clone())));
        async move {
            let answer = answer(shared, request).await;
            drop(counted);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).auto_date_header(false);
    builder.max_concurrent_streams(bounds.streams).max_header_list_size(HEADERS);
    // All calls of a connection may be cancelled at once: an overloaded server must not close the connection for that.
    builder.max_pending_accept_reset_streams(bounds.streams as usize);
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), calls));
    let (began, mut used, mut looks) = (Instant::now(), Instant::now(), interval(LOOK));
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = looks.tick() => {
                if here.load(Ordering::Relaxed) > 0 {
                    used = Instant::now();
                }
                if began.elapsed() > bounds.age || used.elapsed() > bounds.idle {
                    break;
                }
            }
            _ = stop.wait_for(|stops| *stops) => break,
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
