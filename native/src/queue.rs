//! The bounded queue between the connections and Python's search thread.

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

    /// Queue a job; return false if the queue is full.
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

    /// Block until a job waits, `ring` was called since the last wait, or the queue is closed.
    pub fn wait(&self) {
        let waiting = self.waiting.lock().expect("no holder of this lock panics");
        let idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.rung && !waiting.closed;
        self.changed.wait_while(waiting, idle).expect("no holder of this lock panics").rung = false;
    }

    pub fn ring(&self) {
        self.waiting.lock().expect("no holder of this lock panics").rung = true;
        self.changed.notify_one();
    }

    /// Remove the jobs of the next batch: one, and more within `queries` queries and total `cost`.
    ///
    /// Either all jobs of a batch have exclusions, or none has. Jobs of disconnected clients are dropped, and jobs past
    /// their deadline are refused.
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

    /// Accept no more jobs, drop the waiting ones, and wake the waiting thread.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
        waiting.closed = true;
        waiting.jobs.clear();
        waiting.queries = 0;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::{Kind, LeftOut, Wanted};
    use std::time::Duration;

    fn queue(limit: usize) -> Queue {
        Queue::new(limit, Status::new(4, "late", b""), Arc::new(Counts::new(vec![1.0])))
    }

    /// Queue a job of `queries` queries and this `cost`; return the receiver of its answer, None if the queue is full.
    fn pushed(queue: &Queue, queries: usize, cost: f64, seen: bool) -> Option<oneshot::Receiver<Reply>> {
        let (reply, wait) = oneshot::channel();
        let wanted = || Wanted { kind: Kind::User, ids: vec![], keys: vec![1], values: vec![], k: 1 };
        let left_out = LeftOut { seen, keys: vec![] };
        let plain = Plain { queries: (0..queries).map(|_| wanted()).collect(), left_out, probe: false, cost };
        queue.push(Job { plain, arrived: Instant::now(), deadline: None, reply }).then_some(wait)
    }

    fn sizes(jobs: &[Job]) -> Vec<usize> {
        jobs.iter().map(|job| job.plain.queries.len()).collect()
    }

    #[test]
    fn batches_keep_to_their_size_and_cost_but_one_job_is_always_taken() {
        let queue = queue(100);
        let _waiting: Vec<_> = [9, 2, 2, 3].map(|queries| pushed(&queue, queries, queries as f64, false)).into();
        assert_eq!(queue.depth(), 16);
        assert_eq!(sizes(&queue.take(4, 100.0)), [9]);
        assert_eq!(sizes(&queue.take(4, 100.0)), [2, 2]);
        assert_eq!(sizes(&queue.take(4, 100.0)), [3]);
        let _waiting: Vec<_> = [1, 1, 1].map(|queries| pushed(&queue, queries, 10.0, false)).into();
        assert_eq!(sizes(&queue.take(4, 25.0)), [1, 1]);
        assert_eq!(queue.depth(), 1);
    }

    #[test]
    fn a_batch_leaves_something_out_or_nothing() {
        let queue = queue(100);
        let kinds = [(1, false), (2, true), (3, false), (4, true)];
        let _waiting: Vec<_> = kinds.map(|(queries, seen)| pushed(&queue, queries, 1.0, seen)).into();
        assert_eq!(sizes(&queue.take(100, 100.0)), [1, 3]);
        assert_eq!(queue.depth(), 6);
        assert_eq!(sizes(&queue.take(100, 100.0)), [2, 4]);
        assert!(queue.take(100, 100.0).is_empty());
    }

    #[test]
    fn a_full_queue_refuses_and_those_who_have_gone_or_are_late_are_not_taken() {
        let queue = queue(4);
        let gone = pushed(&queue, 2, 1.0, false);
        let _stays = pushed(&queue, 2, 1.0, false);
        assert!(pushed(&queue, 1, 1.0, false).is_none());
        drop(gone);
        assert_eq!(queue.take(100, 100.0).len(), 1);
        let (reply, mut wait) = oneshot::channel();
        let plain = Plain { queries: vec![], left_out: LeftOut::default(), probe: false, cost: 1.0 };
        let now = Instant::now();
        assert!(queue.push(Job { plain, arrived: now, deadline: Some(now), reply }));
        std::thread::sleep(Duration::from_millis(1));
        assert!(queue.take(100, 100.0).is_empty());
        assert!(matches!(wait.try_recv(), Ok(Err(status)) if status.code == 4));
        let counted = queue.counts.now();
        assert_eq!(counted.dropped.into_iter().collect::<Vec<_>>(), [("cancelled", 1), ("deadline", 1)]);
    }

    #[test]
    fn a_ring_ends_one_wait_and_a_closed_queue_takes_nothing() {
        let queue = queue(4);
        queue.ring();
        queue.wait();
        let waiting = pushed(&queue, 1, 1.0, false);
        queue.wait();
        queue.close();
        assert!(waiting.is_some_and(|mut wait| wait.try_recv().is_err()));
        assert!(pushed(&queue, 1, 1.0, false).is_none());
        queue.wait();
    }
}
