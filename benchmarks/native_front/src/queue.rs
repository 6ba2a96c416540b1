//! The bounded queue between the connections and the thread of Python that answers: what `serving/batcher.py` does.

use crate::checks::Wanted;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tonic::Status;

/// A request that waits for its answer.
pub struct Job {
    pub queries: Vec<Wanted>,
    pub arrived: Instant,
    pub deadline: Option<Instant>,
    pub reply: oneshot::Sender<Result<Bytes, Status>>,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    queries: usize,
    closed: bool,
}

/// Jobs in the order of their arrival; a full queue refuses at once.
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    limit: usize,
}

impl Queue {
    pub fn new(limit: usize) -> Self {
        Queue { waiting: Mutex::default(), changed: Condvar::new(), limit }
    }

    /// Queue a job, or answer it with a refusal.
    pub fn push(&self, job: Job) {
        let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
        if waiting.closed || waiting.queries + job.queries.len() > self.limit {
            drop(waiting);
            let _ = job.reply.send(Err(Status::resource_exhausted("the queue is full")));
            return;
        }
        waiting.queries += job.queries.len();
        waiting.jobs.push_back(job);
        self.changed.notify_one();
    }

    /// Take as many jobs as have `most` queries, at least one, once there are some; None: closed, and all are taken.
    ///
    /// After `patience` without any it returns none.
    pub fn take(&self, most: usize, patience: Duration) -> Option<Vec<Job>> {
        let waiting = self.waiting.lock().expect("no holder of this lock panics");
        let idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.closed;
        let (mut waiting, _) =
            self.changed.wait_timeout_while(waiting, patience, idle).expect("no holder of this lock panics");
        let taken = waiting.take(most, Instant::now());
        (!taken.is_empty() || !waiting.closed).then_some(taken)
    }

    pub fn close(&self) {
        self.waiting.lock().expect("no holder of this lock panics").closed = true;
        self.changed.notify_all();
    }
}

impl Waiting {
    /// Take jobs; those whose client has gone are dropped, and those whose deadline has passed are refused.
    fn take(&mut self, most: usize, now: Instant) -> Vec<Job> {
        let (mut taken, mut queries) = (Vec::new(), 0);
        while let Some(next) = self.jobs.front() {
            if !taken.is_empty() && queries + next.queries.len() > most {
                break;
            }
            let Some(job) = self.jobs.pop_front() else { break };
            self.queries -= job.queries.len();
            if job.reply.is_closed() {
                continue;
            }
            if job.deadline.is_some_and(|deadline| deadline <= now) {
                let _ = job.reply.send(Err(Status::deadline_exceeded("the deadline passed before the search")));
                continue;
            }
            queries += job.queries.len();
            taken.push(job);
        }
        taken
    }
}
