//! A compiled front for the retrieval server: HTTP/2, protobuf, checks, hashing, admission and batching without Python,
//! which is called once for each batch, with flat arrays, and answers with flat arrays.

mod checks;
mod queue;
mod service;
mod wire;

use bytes::BytesMut;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use queue::{Job, Queue};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use wire::{Found, Ids, Timing};

/// Python's signals are looked for so often.
const PATIENCE: Duration = Duration::from_millis(100);

/// Listens on a port of loopback, and queues what is asked until `take` gives it to Python.
#[pyclass(frozen)]
struct Front {
    queue: Arc<Queue>,
    runtime: Mutex<Option<Runtime>>,
    #[pyo3(get)]
    port: u16,
}

#[pymethods]
impl Front {
    #[new]
    fn new(
        port: u16,
        limit: usize,
        max_queries: usize,
        max_k: u32,
        max_history_item_ids: usize,
        max_id_bytes: usize,
    ) -> PyResult<Self> {
        let queue = Arc::new(Queue::new(limit));
        let limits = Arc::new(checks::Limits { max_queries, max_k, max_history_item_ids, max_id_bytes });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let service = service::Retrieval { queue: queue.clone(), limits };
        let _entered = runtime.enter();
        // Or answers wait 40 ms for the acknowledgement of those before.
        let stream = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true));
        let (_, health) = tonic_health::server::health_reporter();
        let server = tonic::transport::Server::builder().add_service(service).add_service(health);
        runtime.spawn(async move { server.serve_with_incoming(stream).await });
        drop(_entered);
        Ok(Front { queue, runtime: Mutex::new(Some(runtime)), port })
    }

    /// Wait for requests with up to `most` queries; None once the front is closed.
    fn take(&self, py: Python<'_>, most: usize) -> PyResult<Option<Batch>> {
        loop {
            match py.detach(|| self.queue.take(most, PATIENCE)) {
                None => return Ok(None),
                Some(jobs) if jobs.is_empty() => py.check_signals()?,
                Some(jobs) => return Ok(Some(Batch { jobs, taken: Instant::now() })),
            }
        }
    }

    /// Refuse what comes, and end the connections.
    fn close(&self, py: Python<'_>) {
        self.queue.close();
        let runtime = self.runtime.lock().expect("no holder of this lock panics").take();
        py.detach(|| runtime.map(|ends| ends.shutdown_timeout(Duration::from_secs(5))));
    }
}

/// Requests that are answered together.
#[pyclass]
struct Batch {
    jobs: Vec<Job>,
    taken: Instant,
}

#[pymethods]
impl Batch {
    /// Keys of all histories, one after the other; how many each has, and how many items each query wants: (n,).
    fn wanted<'py>(&self, py: Python<'py>) -> [Bound<'py, PyArray1<i64>>; 3] {
        let queries = || self.jobs.iter().flat_map(|job| &job.queries);
        let keys: Vec<i64> = queries().flat_map(|query| query.keys.iter().copied()).collect();
        let lengths: Vec<i64> = queries().map(|query| query.keys.len() as i64).collect();
        let ks: Vec<i64> = queries().map(|query| i64::from(query.k)).collect();
        [keys, lengths, ks].map(|column| column.into_pyarray(py))
    }

    /// Answer with `rows` (n, at least the largest k) and their `scores`, where `known` says which keys have a row.
    #[allow(clippy::too_many_arguments)]
    fn answer(
        &mut self,
        py: Python<'_>,
        version: &Version,
        rows: PyReadonlyArray2<'_, i64>,
        scores: PyReadonlyArray2<'_, f32>,
        known: PyReadonlyArray1<'_, bool>,
        tower_seconds: f64,
        search_seconds: f64,
    ) -> PyResult<()> {
        let width = rows.as_array().ncols();
        let (rows, scores, known) = (rows.as_slice()?, scores.as_slice()?, known.as_slice()?);
        let queries: usize = self.jobs.iter().map(|job| job.queries.len()).sum();
        let keys: usize = self.jobs.iter().flat_map(|job| &job.queries).map(|query| query.keys.len()).sum();
        if rows.len() != queries * width || scores.len() != rows.len() || known.len() != keys {
            return Err(PyValueError::new_err(format!("{queries} queries of {keys} keys got other numbers of rows")));
        }
        let (jobs, taken) = (std::mem::take(&mut self.jobs), self.taken);
        let stages = (Duration::from_secs_f64(tower_seconds), Duration::from_secs_f64(search_seconds));
        py.detach(|| {
            let (mut row, mut key) = (0, 0);
            for job in jobs {
                let mut out = BytesMut::with_capacity(4096);
                for query in &job.queries {
                    let within = row * width..row * width + (query.k as usize).min(width);
                    let missing = query.ids.iter().zip(&known[key..]).filter(|(_, known)| !**known).map(|(id, _)| id);
                    let complete = version.items >= query.k as usize;
                    let (rows, scores) = (&rows[within.clone()], &scores[within]);
                    wire::put_hits(
                        &Found { rows, scores, missing: missing.collect(), complete },
                        &version.ids,
                        &mut out,
                    );
                    (row, key) = (row + 1, key + query.keys.len());
                }
                let queue = taken - job.arrived;
                let timing = Timing { total: job.arrived.elapsed(), queue, tower: stages.0, search: stages.1 };
                wire::put_end(&version.name, &timing, &mut out);
                let _ = job.reply.send(Ok(out.freeze()));
            }
        });
        Ok(())
    }
}

/// The ids of a bundle's items by row, and its name.
#[pyclass(frozen)]
struct Version {
    name: String,
    ids: Ids,
    items: usize,
}

#[pymethods]
impl Version {
    /// `ends` (rows,) says where in `text` each id ends.
    #[new]
    fn new(name: String, text: Vec<u8>, ends: PyReadonlyArray1<'_, u64>, items: usize) -> PyResult<Self> {
        let ends = ends.as_array().to_vec();
        if ends.last().copied().unwrap_or(0) != text.len() as u64 || !ends.is_sorted() {
            return Err(PyValueError::new_err("ends must ascend to the length of the text"));
        }
        Ok(Version { name, ids: Ids { text, ends }, items })
    }
}

#[pymodule]
fn weir_front(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Front>()?;
    module.add_class::<Batch>()?;
    module.add_class::<Version>()
}
