//! The device thread of a slice at rest: no change of the devices is under way here, and none begins.
//!
//! ```text
//!   rest() --a job behind those that wait--> device thread --state--> the rest holds --dropped--> the next job
//! ```
//! The coordinator rests first. Its thread takes the job between two changes, and a change ends only when all slices
//! have acknowledged it, so from then on no change is under way to a companion either. Companions rest then, and their
//! states are the same as that of the coordinator.
//! vCPUs that call devices meanwhile wait for their answer as they do for a slow device: bring the machine to rest
//! before.

use super::order::OrderState;
use crate::slice::channels::DeviceJob;
use crate::slice::device_rest::Pause;
use crossbeam_channel::{RecvTimeoutError, SendTimeoutError, Sender};
use std::convert::Infallible;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A device thread did not come to rest. It goes on as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RestError {
    /// It has been busy for all that time, perhaps with a worker that does not stop.
    #[error("bring the devices to rest: a change has been under way for longer than {0:?}")]
    Busy(Duration),
    /// It has ended.
    #[error("bring the devices to rest: their thread has ended")]
    Ended,
}

/// A device thread at rest. It goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct Resting {
    state: OrderState,
    _end: Sender<Infallible>,
}

impl Resting {
    /// How far the devices of this slice have come.
    pub(crate) fn state(&self) -> OrderState {
        self.state
    }
}

/// Brings a device thread to rest, behind the jobs that it has.
pub(crate) fn rest(jobs: &Sender<DeviceJob>, within: Duration) -> Result<Resting, RestError> {
    let deadline = Instant::now() + within;
    let (pause, told, until) = Pause::new();
    jobs.send_deadline(DeviceJob::Rest(pause), deadline).map_err(|error| match error {
        SendTimeoutError::Timeout(_) => RestError::Busy(within),
        SendTimeoutError::Disconnected(_) => RestError::Ended,
    })?;
    match told.recv_deadline(deadline) {
        Ok(last) => Ok(Resting { state: OrderState { last }, _end: until }),
        Err(RecvTimeoutError::Timeout) => Err(RestError::Busy(within)),
        Err(RecvTimeoutError::Disconnected) => Err(RestError::Ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, bounded};
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);

    /// A device thread that only counts: it says how many changes it has made.
    fn count(jobs: &Receiver<DeviceJob>, told: &Sender<u64>) {
        let mut last = 0;
        for job in jobs {
            match job {
                DeviceJob::Rest(pause) => pause.hold(last),
                _ => last += 1,
            }
            told.send(last).unwrap();
        }
    }

    #[test]
    fn rest_comes_behind_what_waits_and_holds_what_comes_later() {
        let ((jobs, work), (told, said)) = (bounded(16), bounded(16));
        let thread = thread::spawn(move || count(&work, &told));
        for _ in 0..3 {
            jobs.send(DeviceJob::Broken(0)).unwrap();
        }
        let resting = rest(&jobs, LONG).unwrap();
        assert_eq!(resting.state(), OrderState { last: 3 });
        jobs.send(DeviceJob::Broken(0)).unwrap();
        assert_eq!(said.iter().take(3).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(said.recv_timeout(Duration::from_millis(20)).ok(), None, "it rests");
        drop(resting);
        assert_eq!(said.iter().take(2).collect::<Vec<_>>(), [3, 4]);
        drop(jobs);
        thread.join().unwrap();
        assert!(said.recv().is_err());
    }

    #[test]
    fn thread_that_is_busy_goes_on_and_one_that_has_ended_is_told() {
        let (jobs, work) = bounded(1);
        assert_eq!(rest(&jobs, SHORT).unwrap_err(), RestError::Busy(SHORT));
        // The job is still there: whoever takes it does not wait.
        assert_eq!(rest(&jobs, SHORT).unwrap_err(), RestError::Busy(SHORT));
        let (told, said) = bounded(16);
        let thread = thread::spawn(move || count(&work, &told));
        jobs.send(DeviceJob::Broken(0)).unwrap();
        assert_eq!(said.iter().take(2).collect::<Vec<_>>(), [0, 1]);
        drop(jobs);
        thread.join().unwrap();

        let (jobs, work) = bounded(1);
        drop(work);
        assert_eq!(rest(&jobs, LONG).unwrap_err(), RestError::Ended);
        // It ends while it is being asked.
        let (jobs, work) = bounded(1);
        let thread = thread::spawn(move || drop(work.recv()));
        assert_eq!(rest(&jobs, LONG).unwrap_err(), RestError::Ended);
        thread.join().unwrap();
    }
}
