//! The serial console: a 16550 (vm-superio) with a bounded queue in front of its receiver.

mod saved;

pub use saved::SerialLineState;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vm_superio::Trigger;
use vm_superio::serial::{NoEvents, Serial};

/// First port of the serial line.
pub(crate) const SERIAL_PORT: u16 = 0x3f8;
/// Its interrupt.
pub(crate) const SERIAL_IRQ: u8 = 4;
/// Most input bytes that wait for the guest.
pub(crate) const INPUT_LIMIT: usize = 4096;

/// Where the guest's output goes: the serial line and the debug port share it.
#[derive(Clone)]
pub(crate) struct Console(Arc<Mutex<Box<dyn Write + Send>>>);

impl Console {
    /// Shares this writer.
    pub(crate) fn new(writer: Box<dyn Write + Send>) -> Self {
        Self(Arc::new(Mutex::new(writer)))
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// Raises the interrupt of the serial line. Clones are the same.
#[derive(Clone)]
pub(crate) struct SerialInterrupt {
    raise: Arc<dyn Fn() + Send + Sync>,
    mute: Arc<AtomicBool>,
}

impl SerialInterrupt {
    /// An interrupt that is raised by a call.
    pub(crate) fn new(raise: impl Fn() + Send + Sync + 'static) -> Self {
        Self { raise: Arc::new(raise), mute: Arc::default() }
    }

    /// While it is mute nothing is raised: the crate raises again what a state says was raised.
    fn mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::Relaxed);
    }
}

impl Trigger for SerialInterrupt {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        if !self.mute.load(Ordering::Relaxed) {
            (self.raise)();
        }
        Ok(())
    }
}

/// The serial line.
pub(crate) struct SerialLine {
    uart: Serial<SerialInterrupt, NoEvents, Console>,
    waiting: VecDeque<u8>,
}

impl fmt::Debug for SerialLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SerialLine").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl SerialLine {
    /// A line with this output and interrupt.
    pub(crate) fn new(console: Console, interrupt: SerialInterrupt) -> Self {
        Self { uart: Serial::new(interrupt, console), waiting: VecDeque::new() }
    }

    /// Reads the register at this offset.
    pub(crate) fn read(&mut self, offset: u8) -> u8 {
        let value = self.uart.read(offset);
        self.feed();
        value
    }

    /// Writes that register. A console that cannot be written loses the byte, as a cable would.
    pub(crate) fn write(&mut self, offset: u8, value: u8) {
        drop(self.uart.write(offset, value));
        self.feed();
    }

    /// Queues input and gives the number of bytes that had room.
    pub(crate) fn input(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(INPUT_LIMIT - self.waiting.len());
        self.waiting.extend(&bytes[..taken]);
        self.feed();
        taken
    }

    /// Moves waiting bytes into the receiver; in loop mode the receiver takes none.
    fn feed(&mut self) {
        let room = self.uart.fifo_capacity().min(self.waiting.len());
        if room == 0 {
            return;
        }
        let bytes: Vec<u8> = self.waiting.iter().take(room).copied().collect();
        let taken = self.uart.enqueue_raw_bytes(&bytes).unwrap_or(0);
        self.waiting.drain(..taken);
    }
}
