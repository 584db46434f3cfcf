//! The thread of a worker, and how it is brought to rest.
//!
//! ```text
//!               +------------------- (resume) --------------------+
//!               v                                                 |
//!   spawn --> serving --(rest)--> finishing what is under way --> at rest
//!               ^  |                   |                          |
//!               |  |    (not in time)--+                       (stop)
//!               +--|-------------------+                          |
//!                  +----(stop)----> waiting for the back end <----+ --> end
//! ```
//! At rest nothing is taken from a ring. Whoever rings then is not lost: the bell remembers it, and a worker that is told
//! to go on looks at its rings before it sleeps.

use super::{Doorbell, QueueWorker, WorkerState};
use std::io;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How much longer than a worker itself its owner waits for the word of it.
const GRACE: Duration = Duration::from_millis(500);

/// A worker did not end in time, perhaps because it waits for a page of a slice that is gone, or for a disk that does
/// not answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a device's worker has not stopped in time, or its back end has not answered all requests")]
pub struct StopTimeout;

/// A worker did not come to rest. It goes on as before.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RestError {
    /// The back end still has requests, perhaps because a disk waits for room.
    #[error("bring {worker} to rest: its back end has not answered all requests in {within:?}")]
    InFlight {
        /// Name of the worker.
        worker: String,
        /// Time that it had.
        within: Duration,
    },
    /// It has not come back from serving, perhaps because it waits for a page of a slice that is gone.
    #[error("bring {worker} to rest: it has been serving for longer than {within:?}")]
    Busy {
        /// Name of the worker.
        worker: String,
        /// Time that it had.
        within: Duration,
    },
    /// Its thread has ended.
    #[error("bring {worker} to rest: it has ended")]
    Ended {
        /// Name of the worker.
        worker: String,
    },
}

/// The word of a worker: its state at rest, or nothing when requests are still under way.
type Word = Option<WorkerState>;

enum Order {
    Rest { deadline: Instant, word: SyncSender<Word> },
    Resume,
    Stop,
}

/// A thread that serves a worker. Dropped, it ends by itself and nobody waits for it.
#[derive(Debug)]
pub struct WorkerThread {
    name: String,
    doorbell: Doorbell,
    orders: Sender<Order>,
    /// Whether nothing is under way at the back end.
    ended: Receiver<bool>,
    stop_within: Duration,
    thread: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// Starts to serve. `stop_within` bounds [`Self::stop`].
    ///
    /// # Errors
    ///
    /// No thread could be started.
    pub fn spawn(
        name: &str,
        worker: Box<dyn QueueWorker>,
        doorbell: Doorbell,
        stop_within: Duration,
    ) -> io::Result<Self> {
        Self::spawn_with((name, worker), doorbell, stop_within, channel())
    }

    /// Starts a worker at rest: it serves nothing before [`Self::resume`]. Waits until it rests.
    ///
    /// # Errors
    ///
    /// No thread could be started, or it does not come to rest within this time.
    pub fn spawn_at_rest(
        name: &str,
        worker: Box<dyn QueueWorker>,
        doorbell: Doorbell,
        (stop_within, within): (Duration, Duration),
    ) -> io::Result<Self> {
        let (orders, given) = channel();
        let (word, answer) = sync_channel(1);
        // It is there before the thread is, which looks for orders first.
        let _ = orders.send(Order::Rest { deadline: Instant::now() + within, word });
        let thread = Self::spawn_with((name, worker), doorbell, stop_within, (orders, given))?;
        match answer.recv_timeout(within + GRACE) {
            Ok(Some(_)) => Ok(thread),
            Ok(None) | Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not rest")),
        }
    }

    fn spawn_with(
        (name, mut worker): (&str, Box<dyn QueueWorker>),
        doorbell: Doorbell,
        stop_within: Duration,
        (orders, given): (Sender<Order>, Receiver<Order>),
    ) -> io::Result<Self> {
        let (end, ended) = sync_channel(1);
        let bell = doorbell.clone();
        let run = move || {
            serve(&mut *worker, &given, &bell);
            let answered = worker.stop(Instant::now() + stop_within);
            drop(worker);
            let _ = end.try_send(answered);
        };
        let thread = Some(Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(Self { name: name.to_owned(), doorbell, orders, ended, stop_within, thread })
    }

    /// Brings workers to rest side by side and gives their states in order. Requests under way are finished, the driver
    /// has been told of them, and no new one is begun until [`Self::resume`].
    ///
    /// # Errors
    ///
    /// One of them is not at rest within that time, in all. All of them go on then.
    pub fn rest_all(workers: &[&Self], within: Duration) -> Result<Vec<WorkerState>, RestError> {
        let deadline = Instant::now() + within;
        let words: Vec<_> = workers.iter().map(|worker| worker.ask_to_rest(deadline)).collect();
        let states = workers.iter().zip(words).map(|(worker, word)| {
            let left = (deadline + GRACE).saturating_duration_since(Instant::now());
            let worker = worker.name.clone();
            match word.recv_timeout(left) {
                Ok(Some(state)) => Ok(state),
                Ok(None) => Err(RestError::InFlight { worker, within }),
                Err(RecvTimeoutError::Timeout) => Err(RestError::Busy { worker, within }),
                Err(RecvTimeoutError::Disconnected) => Err(RestError::Ended { worker }),
            }
        });
        let states: Result<Vec<_>, _> = states.collect();
        if states.is_err() {
            // Also those that come to rest only now.
            workers.iter().for_each(|worker| worker.resume());
        }
        states
    }

    /// Tells a worker at rest to go on; it begins with a look at its rings. Does nothing to one that is serving.
    pub fn resume(&self) {
        self.order(Order::Resume);
    }

    /// Stops the worker. After `Ok` it touches guest memory no more, and nothing that it has asked for is still to be done.
    ///
    /// # Errors
    ///
    /// That is not so within the time given at its start.
    pub fn stop(self) -> Result<(), StopTimeout> {
        Self::stop_all(vec![self])
    }

    /// Stops workers side by side, all within the time of the slowest.
    ///
    /// # Errors
    ///
    /// As for [`Self::stop`], for one of them at least.
    pub fn stop_all(workers: Vec<Self>) -> Result<(), StopTimeout> {
        let start = Instant::now();
        workers.iter().for_each(|worker| worker.order(Order::Stop));
        // All of them, whatever becomes of the first.
        workers.into_iter().map(|worker| worker.end(start)).fold(Ok(()), Result::and)
    }

    /// Waits for the end of a worker that was halted at this time.
    fn end(mut self, halted: Instant) -> Result<(), StopTimeout> {
        let left = self.stop_within.saturating_sub(halted.elapsed());
        // Nothing is known of one that panicked.
        if self.ended.recv_timeout(left) != Ok(true) {
            return Err(StopTimeout);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        Ok(())
    }

    fn ask_to_rest(&self, deadline: Instant) -> Receiver<Word> {
        let (word, answer) = sync_channel(1);
        self.order(Order::Rest { deadline, word });
        answer
    }

    /// A thread that has ended takes no orders, and needs none.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.doorbell.ring();
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.order(Order::Stop);
    }
}

/// Serves until it is told to stop.
fn serve(worker: &mut dyn QueueWorker, orders: &Receiver<Order>, bell: &Doorbell) {
    loop {
        match orders.try_recv() {
            Ok(Order::Rest { deadline, word }) => {
                if !rest(worker, orders, deadline, &word) {
                    return;
                }
            }
            Ok(Order::Resume) => {}
            Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return,
            // One wait takes the rings of any number of orders: none may be left before it.
            Err(TryRecvError::Empty) => {
                if !worker.service() {
                    bell.wait();
                }
            }
        }
    }
}

/// Comes to rest and waits until it is to go on; false when it is to stop.
fn rest(
    worker: &mut dyn QueueWorker,
    orders: &Receiver<Order>,
    deadline: Instant,
    word: &SyncSender<Word>,
) -> bool {
    let state = worker.rest(deadline).then(|| worker.save());
    let resting = state.is_some();
    // Who does not wait for the word any more has given up, and will not resume what it does not know to rest.
    if word.try_send(state).is_err() || !resting {
        return true;
    }
    loop {
        match orders.recv() {
            Ok(Order::Resume) => return true,
            Ok(Order::Rest { deadline, word }) => {
                // What the back end has brought meanwhile is part of it.
                let state = worker.rest(deadline).then(|| worker.save());
                let _ = word.try_send(state);
            }
            Ok(Order::Stop) | Err(_) => return false,
        }
    }
}
