mod rest;

use super::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Duration;

/// Where the workers of these tests are.
const STATE: QueueState = QueueState { size: 16, next_avail: 5, next_used: 5, broken: false };

/// Counts what it is called for; says so, and blocks in `service` while `gate` is closed.
struct Counting {
    served: Sender<usize>,
    count: usize,
    again: usize,
    stopped: Arc<AtomicUsize>,
    gate: Option<Receiver<()>>,
}

impl QueueWorker for Counting {
    fn service(&mut self) -> bool {
        self.count += 1;
        let _ = self.served.send(self.count);
        if let Some(gate) = &self.gate {
            let _ = gate.recv();
        }
        self.again = self.again.saturating_sub(1);
        self.again > 0
    }

    fn rest(&mut self, _deadline: Instant) -> bool {
        true
    }

    fn save(&self) -> WorkerState {
        WorkerState::Queue(STATE)
    }

    fn restore(&mut self, _state: WorkerState) -> Result<(), Invalid> {
        Ok(())
    }

    fn stop(&mut self, _deadline: Instant) -> bool {
        self.stopped.fetch_add(1, Ordering::SeqCst);
        true
    }
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn thread_serves_at_once_when_rung_and_while_there_is_more() {
    let (served, calls) = channel();
    let stopped = Arc::new(AtomicUsize::new(0));
    let worker = Counting { served, count: 0, again: 3, stopped: stopped.clone(), gate: None };
    let bell = Doorbell::new().unwrap();
    let thread = WorkerThread::spawn("test", Box::new(worker), bell.clone(), LONG).unwrap();
    for call in 1..=3 {
        assert_eq!(calls.recv_timeout(LONG), Ok(call));
    }
    bell.ring();
    assert_eq!(calls.recv_timeout(LONG), Ok(4));
    assert_eq!(thread.stop(), Ok(()));
    assert_eq!(stopped.load(Ordering::SeqCst), 1);
    assert!(calls.try_iter().count() <= 1, "nothing is served after the stop");
}

#[test]
fn worker_that_hangs_is_given_up() {
    let (served, calls) = channel();
    let (open, gate) = sync_channel(0);
    let stopped = Arc::new(AtomicUsize::new(0));
    let worker = Counting { served, count: 0, again: 0, stopped, gate: Some(gate) };
    let bell = Doorbell::new().unwrap();
    let short = Duration::from_millis(1);
    let thread = WorkerThread::spawn("test", Box::new(worker), bell, short).unwrap();
    assert_eq!(calls.recv_timeout(LONG), Ok(1));
    assert_eq!(thread.stop(), Err(StopTimeout));
    drop(open);
}

/// Stops only with another one, and says then whether nothing is under way.
struct Together(Arc<Barrier>, bool);

impl QueueWorker for Together {
    fn service(&mut self) -> bool {
        false
    }

    fn rest(&mut self, _deadline: Instant) -> bool {
        true
    }

    fn save(&self) -> WorkerState {
        WorkerState::Queue(STATE)
    }

    fn restore(&mut self, _state: WorkerState) -> Result<(), Invalid> {
        Ok(())
    }

    fn stop(&mut self, _deadline: Instant) -> bool {
        self.0.wait();
        self.1
    }
}

#[test]
fn workers_stop_side_by_side_and_requests_in_flight_are_an_error() {
    for answered in [[true, true], [true, false], [false, true]] {
        let barrier = Arc::new(Barrier::new(2));
        let spawn = |answered| {
            let worker = Together(Arc::clone(&barrier), answered);
            WorkerThread::spawn("test", Box::new(worker), Doorbell::new().unwrap(), LONG).unwrap()
        };
        let result = WorkerThread::stop_all(answered.map(spawn).into());
        let wanted = if answered == [true, true] { Ok(()) } else { Err(StopTimeout) };
        assert_eq!(result, wanted);
    }
}
