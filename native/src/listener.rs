//! Connections: how many there are, and how long each may last.

use crate::calls::{Shared, answer};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};

const PREFACE: usize = 24;
const LOOK: Duration = Duration::from_millis(250);
const HEADERS: u32 = 16 << 10;
const STREAM_WINDOW: u32 = 1 << 18;
const CONNECTION_WINDOW: u32 = 1 << 22;

/// Bounds of connections.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub connections: usize,
    pub streams: u32,
    pub age: Duration,
    pub idle: Duration,
    pub handshake: Duration,
}

struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn one(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accept connections until `stop` says so; those that are open then end with their calls.
pub async fn listen(
    listener: TcpListener,
    shared: Arc<Shared>,
    bounds: Bounds,
    open: Arc<AtomicUsize>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stops| *stops) => return,
        };
        let Ok((stream, _)) = accepted else {
            // No file is left: there will be when a connection ends.
            sleep(LOOK).await;
            continue;
        };
        if open.load(Ordering::Relaxed) < bounds.connections {
            let (shared, open, stop) = (shared.clone(), open.clone(), stop.clone());
            tokio::spawn(async move {
                let _open = Counted::one(&open);
                if timeout(bounds.handshake, begins(&stream)).await == Ok(true) {
                    serve(stream, shared, bounds, stop).await;
                }
            });
        }
    }
}

/// Wait until a client has sent what HTTP/2 begins with; false: it has gone.
async fn begins(stream: &TcpStream) -> bool {
    let mut first = [0; PREFACE];
    loop {
        match stream.peek(&mut first).await {
            Ok(PREFACE) => return true,
            Ok(0) | Err(_) => return false,
            Ok(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, bounds: Bounds, mut stop: watch::Receiver<bool>) {
    // Or answers wait for the acknowledgement of those before.
    let _ = stream.set_nodelay(true);
    let here = Arc::new(AtomicUsize::new(0));
    let calls = service_fn(|request| {
        let (shared, here) = (shared.clone(), here.clone());
        async move {
            let _here = Counted::one(&here);
            Ok::<_, Infallible>(answer(shared, request).await)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).auto_date_header(false);
    builder.max_concurrent_streams(bounds.streams).max_header_list_size(HEADERS);
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
