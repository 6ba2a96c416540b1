//! The bounded queue between the connections and the thread of Python that searches.

use crate::counts::Counts;
use crate::plain::Plain;
use crate::status::Status;
use crate::wire::Stages;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;
use tokio::sync::oneshot;

pub type Reply = Result<(Bytes, Stages), Status>;

/// A request that waits for its answer.
pub struct Job {
    pub plain: Plain,
    pub arrived: Instant,
    pub deadline: Option<Instant>,
    pub reply: oneshot::Sender<Reply>,
}

impl Job {
    fn is_like(&self, other: &Job) -> bool {
        self.plain.left_out.is_nothing() == other.plain.left_out.is_nothing()
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    queries: usize,
    rung: bool,
    closed: bool,
}

/// Jobs in the order of their arrival.
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    limit: usize,
    late: Status,
    counts: Arc<Counts>,
}

impl Queue {
    /// At most `limit` queries wait; a job whose deadline passes meanwhile gets the status `late`.
    pub fn new(limit: usize, late: Status, counts: Arc<Counts>) -> Self {
        Queue { waiting: Mutex::default(), changed: Condvar::new(), limit, late, counts }
    }

    /// Queue a job; false: there is no room.
    pub fn push(&self, job: Job) -> bool {
        let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
        let has_room = waiting.jobs.is_empty() || waiting.queries + job.plain.queries.len() <= self.limit;
        if waiting.closed || !has_room {
            return false;
        }
        waiting.queries += job.plain.queries.len();
        waiting.jobs.push_back(job);
        self.changed.notify_one();
        true
    }

    /// Wait until a job is there, or `ring` was called since the last wait, or all is closed.
    pub fn wait(&self) {
        let waiting = self.waiting.lock().expect("no holder of this lock panics");
        let idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.rung && !waiting.closed;
        self.changed.wait_while(waiting, idle).expect("no holder of this lock panics").rung = false;
    }

    pub fn ring(&self) {
        self.waiting.lock().expect("no holder of this lock panics").rung = true;
        self.changed.notify_one();
    }

    /// Remove the jobs that make a batch: one, and more as long as they have at most so many queries and cost so much.
    ///
    /// All of a batch leave something out, or none does. Jobs whose client has gone are dropped, and those whose deadline
    /// has passed are refused.
    pub fn take(&self, queries: usize, cost: f64) -> Vec<Job> {
        let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
        let (mut taken, mut others) = (Vec::<Job>::new(), VecDeque::new());
        let (mut left, mut budget, now) = (queries, cost, Instant::now());
        while let Some(job) = waiting.jobs.pop_front() {
            if job.reply.is_closed() {
                self.counts.dropped("cancelled");
            } else if job.deadline.is_some_and(|deadline| deadline <= now) {
                self.counts.dropped("deadline");
                self.counts.refused("DEADLINE_PASSED");
                let _ = job.reply.send(Err(self.late.clone()));
            } else if taken.first().is_some_and(|first| !first.is_like(&job)) {
                others.push_back(job);
            } else if !taken.is_empty() && (job.plain.queries.len() > left || job.plain.cost > budget) {
                others.push_back(job);
                break;
            } else {
                left = left.saturating_sub(job.plain.queries.len());
                budget -= job.plain.cost;
                taken.push(job);
            }
        }
        others.append(&mut waiting.jobs);
        waiting.queries = others.iter().map(|job| job.plain.queries.len()).sum();
        waiting.jobs = others;
        taken
    }

    pub fn depth(&self) -> usize {
        self.waiting.lock().expect("no holder of this lock panics").queries
    }

    /// Take no more jobs, and wake who waits; those that wait are dropped.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
        waiting.closed = true;
        waiting.jobs.clear();
        waiting.queries = 0;
        self.changed.notify_all();
    }
}
