//! The thread that reads one queue of a tap.
//!
//! ```text
//!  idle --allow--> reading --nothing there--> waiting --packet, wake--> reading
//!   ^                 |
//!   +---none allowed--+                              stop: from anywhere, by the gate and a wake
//! ```

use super::sys::HEADER_BYTES;
use crate::back_end::{PACKET_BYTES_MAX, PacketSink};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

/// Packets that are read before they are handed over together, and their bytes.
const BATCH_PACKETS: usize = 64;
const BATCH_BYTES: usize = 256 << 10;

/// Where packets of all queues go.
#[derive(Default)]
pub(super) struct Shared {
    /// Read while a packet is handed over.
    sink: RwLock<Option<Arc<dyn PacketSink>>>,
}

impl Shared {
    /// Changes the sink; none of the old one's packets is handed over after the return.
    pub(super) fn set_sink(&self, sink: Option<Arc<dyn PacketSink>>) {
        *self.sink.write().unwrap_or_else(PoisonError::into_inner) = sink;
    }
}

#[derive(Default)]
struct Gate {
    allowed: u64,
    stop: bool,
}

struct State {
    pair: u16,
    file: Arc<File>,
    shared: Arc<Shared>,
    gate: Mutex<Gate>,
    opened: Condvar,
    /// Ends a wait for packets.
    wake: OwnedFd,
}

/// A queue's thread.
pub(super) struct Receiver {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    pub(super) fn start(
        name: &str,
        pair: u16,
        file: Arc<File>,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (gate, opened) = (Mutex::default(), Condvar::new());
        let state = Arc::new(State { pair, file, shared, gate, opened, wake });
        let run = Arc::clone(&state);
        let name = format!("{name}-{pair}");
        let thread = thread::Builder::new().name(name).spawn(move || run.receive())?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// So many more packets may come.
    pub(super) fn allow(&self, packets: u32) {
        self.state.gate().allowed += u64::from(packets);
        self.state.opened.notify_one();
    }

    /// Nothing is allowed any more.
    pub(super) fn reset(&self) {
        self.state.gate().allowed = 0;
        self.state.wake();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.state.gate().stop = true;
        self.state.opened.notify_one();
        self.state.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by the panic hook; nothing is left to undo.
            let _ = thread.join();
        }
    }
}

impl State {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits until packets are allowed, and says how many. Nothing: stop.
    fn wait_for_allowance(&self) -> Option<u64> {
        let closed = |gate: &mut Gate| gate.allowed == 0 && !gate.stop;
        let gate = self.opened.wait_while(self.gate(), closed);
        let gate = gate.unwrap_or_else(PoisonError::into_inner);
        (!gate.stop).then_some(gate.allowed)
    }

    fn receive(&self) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        while let Some(allowed) = self.wait_for_allowance() {
            let (packets, end) = self.read(&mut buffer, allowed);
            if !packets.is_empty() {
                self.hand_over(packets);
            }
            if let Some(error) = end {
                // Another error was of one packet, which is lost.
                self.wait_for_packet(error.raw_os_error() != Some(libc::EBADFD));
            }
        }
    }

    /// Reads what is there: a batch at most, and as many as are allowed. The error that ended it, if one
    /// did.
    fn read(&self, buffer: &mut [u8], allowed: u64) -> (Vec<Vec<u8>>, Option<io::Error>) {
        let most = usize::try_from(allowed).unwrap_or(usize::MAX).min(BATCH_PACKETS);
        let (mut packets, mut sum) = (Vec::new(), 0);
        while packets.len() < most && sum < BATCH_BYTES {
            // The driver leaves the last two bytes of the header as they are.
            buffer[..HEADER_BYTES].fill(0);
            match (&*self.file).read(buffer) {
                Ok(bytes) if bytes > HEADER_BYTES => {
                    // One buffer holds it (`num_buffers`; virtio 1.3, 5.1.6.4).
                    buffer[10] = 1;
                    packets.push(buffer[..bytes].to_vec());
                    sum += bytes;
                }
                // Another look at the gate: this may go on for ever.
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                Err(error) => return (packets, Some(error)),
            }
        }
        (packets, None)
    }

    /// Gives packets to the sink, as many as are still allowed.
    fn hand_over(&self, mut packets: Vec<Vec<u8>>) {
        let sink = self.shared.sink.read().unwrap_or_else(PoisonError::into_inner);
        let count = {
            let mut gate = self.gate();
            let count = gate.allowed.min(packets.len() as u64);
            gate.allowed -= count;
            count
        };
        packets.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        if let Some(sink) = sink.as_ref().filter(|_| count > 0) {
            sink.packets(self.pair, packets);
        }
    }

    /// Waits for a packet or a wake; only for a wake when the queue is out of use, or its tap gone.
    fn wait_for_packet(&self, in_use: bool) {
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let packet = PollFd::new(&*self.file, PollFlags::IN);
        let mut both = [wake, packet];
        let count = if in_use { 2 } else { 1 };
        // After an interruption the queue is simply read again.
        let _ = poll(&mut both[..count], None);
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut counter);
    }
}
