//! `Front`: the Python class of the front.

use crate::admission::Admission;
use crate::batch::Batch;
use crate::calls::Shared;
use crate::counts::{Counts, Histogram};
use crate::listener::{Bounds, listen};
use crate::plain::Rules;
use crate::queue::Queue;
use crate::status::Status;
use crate::tls::acceptor;
use crate::upstream::Upstream;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// A status from Python: code, message, serialised details.
type Spelled = (u16, String, Vec<u8>);

/// Certificate chain, private key and, if clients need certificates, their authorities; as PEM.
type Certificate = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

fn made((chain, key, authorities): Certificate) -> PyResult<TlsAcceptor> {
    acceptor(&chain, &key, authorities.as_deref()).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[derive(FromPyObject)]
struct Options {
    #[pyo3(item)]
    max_connections: usize,
    #[pyo3(item)]
    max_streams: u32,
    #[pyo3(item)]
    age_seconds: f64,
    #[pyo3(item)]
    idle_seconds: f64,
    #[pyo3(item)]
    handshake_seconds: f64,
    #[pyo3(item)]
    max_calls: usize,
    #[pyo3(item)]
    queue_queries: usize,
    #[pyo3(item)]
    bounds: Vec<f64>,
    #[pyo3(item)]
    no_time: Spelled,
    #[pyo3(item)]
    queue_full: Spelled,
    #[pyo3(item)]
    late: Spelled,
    #[pyo3(item)]
    stopping: Spelled,
}

#[derive(FromPyObject)]
struct Limits {
    #[pyo3(item)]
    max_queries: usize,
    #[pyo3(item)]
    max_k: u32,
    #[pyo3(item)]
    max_history_item_ids: usize,
    #[pyo3(item)]
    max_excluded_item_ids: usize,
    #[pyo3(item)]
    max_item_ids: usize,
    #[pyo3(item)]
    max_id_bytes: usize,
    #[pyo3(item)]
    default_k: u32,
    #[pyo3(item)]
    dimension: usize,
    #[pyo3(item)]
    query_cost: f64,
    #[pyo3(item)]
    seen_cost: f64,
    #[pyo3(item)]
    max_cost: f64,
    #[pyo3(item)]
    secret: Vec<u8>,
}

/// Answers calls on listening sockets, whose file `descriptors` it takes over; forwards other calls to the socket
/// `upstream`.
#[pyclass(frozen)]
pub struct Front {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    runtime: Mutex<Option<Runtime>>,
}

#[pymethods]
impl Front {
    #[new]
    fn new(
        descriptors: Vec<i32>,
        upstream: PathBuf,
        options: Options,
        certificate: Option<Certificate>,
    ) -> PyResult<Self> {
        // SAFETY: Python has detached each descriptor from its socket, so this is its only owner.
        let listeners: Vec<_> =
            descriptors.into_iter().map(|descriptor| unsafe { TcpListener::from_raw_fd(descriptor) }).collect();
        let tls = certificate.map(made).transpose()?;
        let bounds = Bounds {
            streams: options.max_streams,
            age: Duration::from_secs_f64(options.age_seconds),
            idle: Duration::from_secs_f64(options.idle_seconds),
            handshake: Duration::from_secs_f64(options.handshake_seconds),
        };
        let counts = Arc::new(Counts::new(options.bounds));
        let status = |(code, message, details): Spelled| Status::new(code, &message, &details);
        let stopping = status(options.stopping);
        let shared = Arc::new(Shared {
            queue: Queue::new(options.queue_queries, status(options.late), counts.clone()),
            admission: Admission::new(options.max_calls),
            counts,
            upstream: Upstream::new(upstream, stopping.clone()),
            no_time: status(options.no_time),
            queue_full: status(options.queue_full),
            stopping,
            tls: RwLock::new(tls),
            under_way: AtomicUsize::new(0),
            rules: RwLock::new(None),
        });
        let (stop, stops) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("weir-front")
            .enable_all()
            .build()?;
        let room = Arc::new(Semaphore::new(options.max_connections));
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let listener = {
                let _inside = runtime.enter();
                tokio::net::TcpListener::from_std(listener)?
            };
            runtime.spawn(listen(listener, room.clone(), shared.clone(), bounds, stops.clone()));
        }
        Ok(Front { shared, stop, runtime: Mutex::new(Some(runtime)) })
    }

    /// Answer plain requests within these limits from now on; None: forward all calls to Python.
    fn answer_plain(&self, limits: Option<Limits>) {
        let rules = limits.map(|limits| {
            Arc::new(Rules {
                max_queries: limits.max_queries,
                max_k: limits.max_k,
                max_history_item_ids: limits.max_history_item_ids,
                max_excluded_item_ids: limits.max_excluded_item_ids,
                max_item_ids: limits.max_item_ids,
                max_id_bytes: limits.max_id_bytes,
                default_k: limits.default_k,
                dimension: limits.dimension,
                query_cost: limits.query_cost,
                seen_cost: limits.seen_cost,
                max_cost: limits.max_cost,
                secret: limits.secret,
            })
        });
        *self.shared.rules.write().expect("no holder of this lock panics") = rules;
    }

    /// Replace the certificate, for new connections.
    fn certify(&self, certificate: Certificate) -> PyResult<()> {
        let tls = Some(made(certificate)?);
        *self.shared.tls.write().expect("no holder of this lock panics") = tls;
        Ok(())
    }

    /// Block until a request waits, `ring` was called since the last wait, or the front is closed.
    fn wait(&self, py: Python<'_>) {
        py.detach(|| self.shared.queue.wait());
    }

    /// Wake the waiting thread.
    fn ring(&self, py: Python<'_>) {
        py.detach(|| self.shared.queue.ring());
    }

    /// Take waiting requests with at most `queries` queries and total `cost`, but at least one; None if none waits.
    fn take(&self, queries: usize, cost: f64) -> Option<Batch> {
        Batch::of(self.shared.queue.take(queries, cost))
    }

    /// Number of waiting queries.
    #[getter]
    fn depth(&self) -> usize {
        self.shared.queue.depth()
    }

    /// Number of plain calls in progress.
    #[getter]
    fn under_way(&self) -> usize {
        self.shared.under_way.load(Ordering::Relaxed)
    }

    /// Return the counts since the start: see `Counted`. Histograms are the counts per bucket, and the sum.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (now, found) = (self.shared.counts.now(), PyDict::new(py));
        let spelled = |histogram: Histogram| (histogram.counts, histogram.sum);
        found.set_item("started", now.started)?;
        found.set_item("handled", now.handled)?;
        found.set_item("refused", now.refused)?;
        found.set_item("dropped", now.dropped)?;
        found.set_item("seconds", spelled(now.seconds))?;
        found.set_item("stages", now.stages.map(spelled).to_vec())?;
        Ok(found)
    }

    /// Accept no new connections, and close the open ones gracefully, after their calls.
    fn stop(&self) {
        let _ = self.stop.send(true);
    }

    /// Stop, and close the queue and all connections.
    fn close(&self, py: Python<'_>) {
        self.stop();
        self.shared.queue.close();
        let runtime = self.runtime.lock().expect("no holder of this lock panics").take();
        py.detach(|| runtime.map(|ends| ends.shutdown_timeout(Duration::from_secs(1))));
    }
}
