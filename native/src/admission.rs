//! Admission: begin only calls that can be answered before their deadline. `serving/rpc/admission.py` has the reasons.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SHARE: f64 = 0.5;
const STEP: f64 = 1.05;
const FIRST: f64 = 1e-5;

struct State {
    under_way: usize,
    pace: f64,
}

pub struct Admission {
    limit: usize,
    state: Mutex<State>,
}

/// A call in progress; dropping it records its end.
pub struct Entry {
    admission: Arc<Admission>,
    ahead: usize,
    began: Instant,
    /// Whether it was answered, or its deadline passed while it waited.
    pub waited: bool,
}

impl Admission {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Admission { limit, state: Mutex::new(State { under_way: 0, pace: FIRST }) })
    }

    /// Return whether to read and begin a call with this time left; None: no deadline.
    pub fn has_time(&self, left: Option<Duration>) -> bool {
        let state = self.state.lock().expect("no holder of this lock panics");
        let ahead = state.under_way;
        let in_time = |left: Duration| ahead as f64 * state.pace <= SHARE * left.as_secs_f64();
        ahead < self.limit && (ahead == 0 || left.is_none_or(in_time))
    }

    /// Begin a call.
    pub fn enter(self: &Arc<Self>) -> Entry {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        state.under_way += 1;
        Entry { admission: self.clone(), ahead: state.under_way - 1, began: Instant::now(), waited: false }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock().expect("no holder of this lock panics");
        state.under_way -= 1;
        if self.waited {
            let took = self.began.elapsed().as_secs_f64() / (self.ahead + 1) as f64;
            state.pace = FIRST.max(state.pace * if took > state.pace { STEP } else { 1.0 / STEP });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_refused_that_would_be_late() {
        let admission = Admission::new(3);
        let second = Some(Duration::from_secs(1));
        assert!(admission.has_time(second));
        let first = admission.enter();
        admission.state.lock().unwrap().pace = 0.4;
        // One call in progress takes .4 s, less than half a second.
        assert!(admission.has_time(second) && admission.has_time(None));
        let other = admission.enter();
        assert!(!admission.has_time(second));
        assert!(admission.has_time(Some(Duration::from_secs(2))) && admission.has_time(None));
        let third = admission.enter();
        assert!(!admission.has_time(None));
        drop((first, other, third));
        assert!(admission.has_time(Some(Duration::ZERO)));
    }

    #[test]
    fn the_pace_follows_what_calls_took() {
        let admission = Admission::new(9);
        admission.state.lock().unwrap().pace = 1.0;
        let mut entry = admission.enter();
        entry.waited = true;
        drop(entry);
        assert_eq!(admission.state.lock().unwrap().pace, 1.0 / STEP);
        drop(admission.enter());
        assert_eq!(admission.state.lock().unwrap().pace, 1.0 / STEP);
    }
}
