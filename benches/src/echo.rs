//! Frames of any size to and fro between two threads.
//!
//! ```text
//!   asker: frame --------> server: the same frame back --------> asker: next frame
//! ```
//! Both copy what comes out of the transport, as into memory of their own.

use crate::carrier::Carrier;
use crate::placement::{Place, settle_as_engine};
use crate::raw::{LIMIT, Waiting, wait};
use anyhow::{Context, Result, anyhow, ensure};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};
use transport::{Class, Event, FRAME_BYTES_MAX, SendError, Transport};
use wire::SliceId;
use wire::coherence::HEAD_BYTES;

/// Longest time between two looks at whether all is over.
const TICK: Duration = Duration::from_millis(20);

/// Two threads that send a frame to and fro when told to.
#[derive(Debug)]
pub struct Echo {
    orders: Option<Sender<u64>>,
    times: Receiver<Result<Duration>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Echo {
    /// Threads at two places that are joined by a carrier, for frames of so many bytes, head and payload
    /// together.
    ///
    /// # Errors
    /// A frame cannot have that size, or the operating system refuses.
    pub fn new(
        carrier: Carrier,
        bytes: usize,
        waiting: Waiting,
        places: [Place; 2],
    ) -> Result<Self> {
        ensure!((HEAD_BYTES..=FRAME_BYTES_MAX).contains(&bytes), "no frame has {bytes} bytes");
        let [mut asker, mut server] = carrier.pair()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (orders, counts) = bounded::<u64>(1);
        let (results, times) = bounded(1);
        let over = Arc::clone(&stop);
        let active = Arc::new(AtomicBool::new(false));
        let busy = Arc::clone(&active);
        let serving = spawn(move || {
            settle_as_engine(places[1]);
            let mut frame = Vec::with_capacity(bytes);
            while !over.load(Ordering::Relaxed) {
                // Who spins before all others does so only while it is measured.
                let waiting = if busy.load(Ordering::Relaxed) { waiting } else { Waiting::Asleep };
                match receive(server.as_mut(), waiting, &mut frame) {
                    Ok(true) => send(server.as_mut(), SliceId(0), &frame)?,
                    // At the end the other side goes first.
                    Err(_) if over.load(Ordering::Relaxed) => break,
                    came => drop(came?),
                }
            }
            Ok(())
        });
        let asking = spawn(move || {
            settle_as_engine(places[0]);
            let mut frame = vec![7; bytes];
            for count in counts {
                active.store(true, Ordering::Relaxed);
                let time = trips(asker.as_mut(), waiting, &mut frame, count);
                active.store(false, Ordering::Relaxed);
                if results.send(time).is_err() {
                    break;
                }
            }
            Ok(())
        });
        Ok(Self { orders: Some(orders), times, stop, threads: vec![asking, serving] })
    }

    /// Time of so many round trips, one after another.
    ///
    /// # Errors
    /// The transport fails, or an answer does not come.
    pub fn trips(&mut self, count: u64) -> Result<Duration> {
        let orders = self.orders.as_ref().context("an echo that ends")?;
        orders.send(count).map_err(|_| anyhow!("the asker has ended"))?;
        self.times.recv().context("the asker has ended")?
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.orders = None;
        for thread in self.threads.drain(..) {
            if let Ok(Err(error)) = thread.join() {
                eprintln!("an echo failed: {error:#}");
            }
        }
    }
}

fn trips(
    asker: &mut dyn Transport,
    waiting: Waiting,
    frame: &mut Vec<u8>,
    count: u64,
) -> Result<Duration> {
    let (start, bytes) = (Instant::now(), frame.len());
    for _ in 0..count {
        send(asker, SliceId(1), frame)?;
        let sent = Instant::now();
        while !receive(asker, waiting, frame)? {
            ensure!(sent.elapsed() < LIMIT, "no answer on the transport");
        }
        ensure!(frame.len() == bytes, "{} bytes came back, not {bytes}", frame.len());
    }
    Ok(start.elapsed())
}

/// Takes a frame, if one comes within a moment.
fn receive(transport: &mut dyn Transport, waiting: Waiting, frame: &mut Vec<u8>) -> Result<bool> {
    wait(transport, waiting, TICK)?;
    let (mut came, mut lost) = (false, None);
    transport.poll(16, &mut |event| match event {
        Event::Frame { bytes, .. } => {
            came = true;
            frame.clear();
            frame.extend_from_slice(bytes);
        }
        Event::Lost { cause, .. } => lost = Some(cause),
        // Memory is not lent here.
        Event::Head { .. } | Event::DirectlyReceived { .. } => {}
    });
    ensure!(came || lost.is_none(), "the other side is lost: {lost:?}");
    Ok(came)
}

fn send(transport: &mut dyn Transport, to: SliceId, frame: &[u8]) -> Result<()> {
    let (head, payload) = frame.split_at(HEAD_BYTES);
    let start = Instant::now();
    loop {
        match transport.send(to, Class::Coherence, head, payload) {
            Ok(()) => return Ok(()),
            Err(SendError::Full) if start.elapsed() < LIMIT => {
                transport.poll(16, &mut |_| {});
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_size_come_back() {
        for carrier in [Carrier::Shm, Carrier::Tcp] {
            for bytes in [HEAD_BYTES, 64, 4096 + HEAD_BYTES, FRAME_BYTES_MAX] {
                let places = [Place::Anywhere; 2];
                let mut echo = Echo::new(carrier, bytes, Waiting::Asleep, places).unwrap();
                assert!(echo.trips(20).unwrap() > Duration::ZERO, "{carrier:?} {bytes}");
            }
        }
    }

    #[test]
    fn frame_that_is_too_large_is_refused() {
        let places = [Place::Anywhere; 2];
        let echo = Echo::new(Carrier::Shm, FRAME_BYTES_MAX + 1, Waiting::Asleep, places);
        assert!(echo.is_err());
    }
}
