//! A batch of plain requests: the columns that Python reads, and its answers.

use crate::plain::{Kind, Wanted};
use crate::queue::Job;
use crate::status::Status;
use crate::wire::{Hits, Stages, put_end};
use bytes::BytesMut;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use std::time::{Duration, Instant};

type Column<'py, T> = Bound<'py, PyArray1<T>>;
type Columns<'py> = (Column<'py, i64>, Column<'py, i64>, Column<'py, i64>, Column<'py, i64>, Bound<'py, PyArray2<f32>>);

#[pyclass]
pub struct Batch {
    jobs: Vec<Job>,
    taken: Instant,
}

/// Results of all queries of a batch, concatenated.
#[derive(FromPyObject)]
struct Found<'py> {
    /// Item ids, best first, of the first query, then of the second, ...
    #[pyo3(item)]
    ids: Vec<PyBackedStr>,
    #[pyo3(item)]
    scores: PyReadonlyArray1<'py, f32>,
    /// Number of items per query, (queries,).
    #[pyo3(item)]
    counts: Vec<usize>,
    /// Whether the bundle has the item of each key, (keys,); ignored for keys of users.
    #[pyo3(item)]
    known: PyReadonlyArray1<'py, bool>,
    #[pyo3(item)]
    fallback: Vec<bool>,
    #[pyo3(item)]
    seen_bounded: Vec<bool>,
    #[pyo3(item)]
    complete: Vec<bool>,
    /// Whether each item is cold; empty if none is.
    #[pyo3(item)]
    cold: PyReadonlyArray1<'py, bool>,
}

impl Batch {
    pub fn of(jobs: Vec<Job>) -> Option<Self> {
        (!jobs.is_empty()).then(|| Batch { jobs, taken: Instant::now() })
    }
}

#[pymethods]
impl Batch {
    /// Return the concatenated keys; the number of keys, the kind and k of each query, (n,) each; and the embeddings,
    /// (m, dimension), or (m, 0) if their dimensions differ.
    fn wanted<'py>(&self, py: Python<'py>) -> PyResult<Columns<'py>> {
        let queries = || self.jobs.iter().flat_map(|job| &job.plain.queries);
        let column = |of: fn(&Wanted) -> i64| queries().map(of).collect::<Vec<_>>().into_pyarray(py);
        let keys: Vec<i64> = queries().flat_map(|query| query.keys.iter().copied()).collect();
        let embeddings: Vec<&[f32]> =
            queries().filter(|query| query.kind == Kind::Embedding).map(|query| query.values.as_slice()).collect();
        let first = embeddings.first().map_or(0, |values| values.len());
        let dimension = if embeddings.iter().all(|values| values.len() == first) { first } else { 0 };
        let values: Vec<f32> = embeddings.iter().flat_map(|values| &values[..dimension]).copied().collect();
        Ok((
            keys.into_pyarray(py),
            column(|query| query.keys.len() as i64),
            column(|query| query.kind as i64),
            column(|query| i64::from(query.k)),
            values.into_pyarray(py).reshape([embeddings.len(), dimension])?,
        ))
    }

    /// Return the ids of each query's history or item; empty for a user or an embedding.
    fn ids(&self) -> Vec<Vec<String>> {
        let queries = self.jobs.iter().flat_map(|job| &job.plain.queries);
        let spelled = |id: &bytes::Bytes| String::from_utf8_lossy(id).into_owned();
        queries.map(|query| query.ids.iter().map(spelled).collect()).collect()
    }

    /// Return the number of queries of each request, and whether it is a probe.
    fn requests(&self) -> Vec<(usize, bool)> {
        self.jobs.iter().map(|job| (job.plain.queries.len(), job.plain.probe)).collect()
    }

    /// Return whether each request excludes seen items, and its excluded keys; None if no request excludes anything.
    fn left_out<'py>(&self, py: Python<'py>) -> Option<Vec<(bool, Bound<'py, PyArray1<i64>>)>> {
        let all = self.jobs.iter().map(|job| &job.plain.left_out);
        let spelled = || all.clone().map(|each| (each.seen, each.keys.clone().into_pyarray(py))).collect();
        (!all.clone().all(|each| each.is_nothing())).then(spelled)
    }

    /// Answer all requests from one bundle, each with its token.
    fn answer(
        &mut self,
        version: &str,
        tokens: Vec<PyBackedStr>,
        found: Found<'_>,
        seconds: (f64, f64),
    ) -> PyResult<()> {
        self.check(&tokens, &found)?;
        let (scores, known, all_cold) = (found.scores.as_slice()?, found.known.as_slice()?, found.cold.as_slice()?);
        let (tower, search) = (Duration::from_secs_f64(seconds.0), Duration::from_secs_f64(seconds.1));
        let (mut query, mut item, mut key) = (0, 0, 0);
        for (job, token) in std::mem::take(&mut self.jobs).into_iter().zip(&tokens) {
            let mut out = BytesMut::with_capacity(4096);
            for wanted in &job.plain.queries {
                let items = item..item + found.counts[query];
                let missing = wanted.ids.iter().zip(&known[key..]).filter(|(_, known)| !**known).map(|(id, _)| id);
                let cold = all_cold.get(items.clone()).filter(|cold| cold.contains(&true)).unwrap_or(&[]);
                let hits = Hits {
                    ids: found.ids[items.clone()].iter().map(|id| &**id).collect(),
                    scores: &scores[items.clone()],
                    missing: missing.collect(),
                    fallback: found.fallback[query],
                    seen_bounded: found.seen_bounded[query],
                    complete: found.complete[query],
                    cold,
                };
                hits.put(&mut out);
                (query, item, key) = (query + 1, items.end, key + wanted.keys.len());
            }
            let queue = self.taken - job.arrived;
            let stages = Stages { total: job.arrived.elapsed(), queue, tower, search };
            put_end(version, token, &stages, &mut out);
            let _ = job.reply.send(Ok((out.freeze(), stages)));
        }
        Ok(())
    }

    /// Refuse all requests with a status: code, message and details.
    fn fail(&mut self, code: u16, message: &str, details: &[u8]) {
        let status = Status::new(code, message, details);
        for job in std::mem::take(&mut self.jobs) {
            let _ = job.reply.send(Err(status.clone()));
        }
    }

    /// Split into one batch per request; this batch is empty afterwards.
    fn split(&mut self) -> Vec<Batch> {
        let taken = self.taken;
        std::mem::take(&mut self.jobs).into_iter().map(|job| Batch { jobs: vec![job], taken }).collect()
    }
}

impl Batch {
    fn check(&self, tokens: &[PyBackedStr], found: &Found<'_>) -> PyResult<()> {
        let queries: usize = self.jobs.iter().map(|job| job.plain.queries.len()).sum();
        let keys: usize = self.jobs.iter().flat_map(|job| &job.plain.queries).map(|query| query.keys.len()).sum();
        let items: usize = found.counts.iter().sum();
        let cold = found.cold.len()?;
        let fits = tokens.len() == self.jobs.len()
            && [found.counts.len(), found.fallback.len(), found.seen_bounded.len(), found.complete.len()]
                == [queries; 4]
            && found.known.len()? == keys
            && [found.ids.len(), found.scores.len()?] == [items; 2]
            && (cold == 0 || cold == items);
        fits.then_some(()).ok_or_else(|| PyValueError::new_err("the columns are not those of this batch's queries"))
    }
}
