//! Metrics of the calls that are answered here. Python adds them to its own counts.

use crate::wire::Stages;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// A histogram: counts per bucket, the last one for values above all bounds, and the sum of the values.
#[derive(Clone)]
pub struct Histogram {
    pub counts: Vec<u64>,
    pub sum: f64,
}

#[derive(Clone)]
pub struct Counted {
    pub started: u64,
    /// Calls that have ended, by gRPC code.
    pub handled: BTreeMap<u16, u64>,
    /// Calls refused here, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Calls dropped before the search, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    pub seconds: Histogram,
    /// Seconds in total, and of queue, tower and search.
    pub stages: [Histogram; 4],
}

pub struct Counts {
    bounds: Vec<f64>,
    all: Mutex<Counted>,
}

impl Counts {
    /// `bounds` are the bucket bounds of all histograms, in seconds, ascending.
    pub fn new(bounds: Vec<f64>) -> Self {
        let empty = Histogram { counts: vec![0; bounds.len() + 1], sum: 0.0 };
        let none = BTreeMap::new;
        let stages = std::array::from_fn(|_| empty.clone());
        let all = Counted { started: 0, handled: none_u16(), refused: none(), dropped: none(), seconds: empty, stages };
        Counts { bounds, all: Mutex::new(all) }
    }

    pub fn now(&self) -> Counted {
        self.locked(|all| all.clone())
    }

    pub fn started(&self) {
        self.locked(|all| all.started += 1);
    }

    pub fn handled(&self, code: u16, spent: Duration) {
        self.locked(|all| {
            *all.handled.entry(code).or_default() += 1;
            all.seconds.observe(spent, &self.bounds);
        });
    }

    pub fn refused(&self, reason: &'static str) {
        self.locked(|all| *all.refused.entry(reason).or_default() += 1);
    }

    pub fn dropped(&self, reason: &'static str) {
        self.locked(|all| *all.dropped.entry(reason).or_default() += 1);
    }

    pub fn answered(&self, stages: &Stages) {
        let spent = [stages.total, stages.queue, stages.tower, stages.search];
        self.locked(|all| {
            all.stages.iter_mut().zip(spent).for_each(|(stage, spent)| stage.observe(spent, &self.bounds));
        });
    }

    fn locked<Made>(&self, change: impl FnOnce(&mut Counted) -> Made) -> Made {
        change(&mut self.all.lock().expect("no holder of this lock panics"))
    }
}

fn none_u16() -> BTreeMap<u16, u64> {
    BTreeMap::new()
}

impl Histogram {
    fn observe(&mut self, value: Duration, bounds: &[f64]) {
        let value = value.as_secs_f64();
        self.counts[bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }
}
