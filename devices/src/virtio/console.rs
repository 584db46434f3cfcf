//! The front end of a console with one port (5.3): queue 0 brings input to the driver, queue 1 takes
//! its output.

use super::ring::{Chain, Ring};
use super::worker::{Requests, RingWorker};
use super::{ConfigChanges, DeviceShape, Doorbell, RingError};
use crate::byte_string;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;

/// Bytes of a console's configuration; nothing in it is offered (5.3.4).
const CONFIG_BYTES: usize = 12;
/// Bytes of input that wait for the driver.
const INPUT_BYTES_MAX: usize = 4096;
/// Bytes of output that are written at once.
const OUTPUT_BYTES: usize = 4096;
/// Most bytes of one request of the driver; what is beyond is lost. Nobody prints so much at once.
const CHAIN_BYTES_MAX: u64 = 1 << 20;
/// Buffers served before the thread looks whether it must stop.
const ROUND: usize = 64;

/// A console with one port, as drivers see it: receive and transmit queue. Its class is communication.
#[must_use]
pub fn shape() -> DeviceShape {
    let (type_id, class) = (VIRTIO_ID_CONSOLE, 0x07_8000);
    let (config, changes) = (vec![0; CONFIG_BYTES], ConfigChanges::NONE);
    DeviceShape { type_id, class, features: 0, queues: 2, config, changes }
}

/// Input on its way to the driver; it outlives resets of the device. Clones are the same.
#[derive(Clone, Debug)]
pub struct ConsoleInput {
    waiting: Arc<Mutex<VecDeque<u8>>>,
    doorbell: Doorbell,
}

impl ConsoleInput {
    /// Nothing yet. `doorbell` wakes the worker of queue 0.
    #[must_use]
    pub fn new(doorbell: Doorbell) -> Self {
        Self { waiting: Arc::default(), doorbell }
    }

    /// Feeds bytes and gives the number taken; at most 4096 wait. The caller keeps the rest and comes
    /// back.
    pub fn push(&self, bytes: &[u8]) -> usize {
        let mut waiting = lock(&self.waiting);
        let taken = bytes.len().min(INPUT_BYTES_MAX - waiting.len());
        waiting.extend(&bytes[..taken]);
        drop(waiting);
        self.doorbell.ring();
        taken
    }

    /// Bytes that wait for the driver.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }
}

/// Input that waits for the driver. Output does not wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleInputState {
    /// The bytes, oldest first; at most 4096.
    #[serde(with = "byte_string")]
    pub waiting: Vec<u8>,
}

impl SavedState for ConsoleInputState {
    const NAME: &'static str = "virtio console input";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = INPUT_BYTES_MAX + 16;

    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.waiting.len() <= INPUT_BYTES_MAX, "waiting", "more than may wait")
    }
}

impl Saved for ConsoleInput {
    type State = ConsoleInputState;

    /// The worker of queue 0 is at rest, and nobody feeds input.
    fn save(&self) -> ConsoleInputState {
        ConsoleInputState { waiting: lock(&self.waiting).iter().copied().collect() }
    }

    fn restore(&mut self, state: ConsoleInputState) -> Result<(), Invalid> {
        state.check()?;
        *lock(&self.waiting) = state.waiting.into();
        self.doorbell.ring();
        Ok(())
    }
}

/// Takes the output. It may block: only the worker waits.
pub type ConsoleOutput = Arc<Mutex<dyn Write + Send>>;

/// A panic of another thread leaves bytes in order.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker of queue 0.
pub type ConsoleReceive = RingWorker<ConsoleInput>;

impl Requests for ConsoleInput {
    const ROUND: usize = ROUND;

    /// Input rings. Only the worker takes bytes away, so what is there now is there later.
    fn ready(&self) -> bool {
        self.waiting() > 0
    }

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        let room = usize::try_from(chain.writable.len()).unwrap_or(usize::MAX);
        let data: Vec<u8> = {
            let mut waiting = lock(&self.waiting);
            let count = room.min(waiting.len());
            waiting.drain(..count).collect()
        };
        ring.write(&chain.writable, 0, &data)?;
        Ok(data.len() as u64)
    }
}

/// The worker of queue 1.
pub type ConsoleTransmit = RingWorker<ConsoleOutput>;

impl Requests for ConsoleOutput {
    const ROUND: usize = ROUND;

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        // Whatever length the driver claims, so much is in memory at a time.
        let (mut offset, end) = (0, chain.readable.len().min(CHAIN_BYTES_MAX));
        while offset < end {
            let left = usize::try_from(end - offset).unwrap_or(usize::MAX);
            let data = ring.read_vec(&chain.readable, offset, left.min(OUTPUT_BYTES))?;
            // Where output cannot be written it is lost, as with a cable that is not plugged in.
            let _ = lock(self).write_all(&data);
            offset += data.len() as u64;
        }
        Ok(0)
    }

    fn settle(&mut self) {
        let _ = lock(self).flush();
    }
}

#[cfg(test)]
mod tests;
