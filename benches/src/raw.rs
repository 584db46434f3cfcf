//! The floor of a transfer: the frames of a fault go to and fro without any guest or protocol.
//!
//! ```text
//!   asker: Get --------> server: Data with a page (or Grant) --------> asker: next Get
//! ```
//! Both sides sleep on the transport's descriptor between frames, as the engine does when it has
//! nothing to expect; or they spin, for comparison.

use crate::carrier::Carrier;
use crate::placement::{Place, settle_as_engine};
use crate::samples::Samples;
use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};
use transport::{Class, Event, FRAME_BYTES_MAX, SendError, Transport};
use wire::coherence::HEAD_BYTES;
use wire::{Access, Batch, Epoch, Gfn, Message, PAGE_SIZE, SliceId};

/// Longest wait for an answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// How an endpoint waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It sleeps.
    Asleep,
    /// It looks without end.
    Spinning,
}

pub(crate) fn wait(transport: &dyn Transport, waiting: Waiting, limit: Duration) -> io::Result<()> {
    let limit = if waiting == Waiting::Spinning { Duration::ZERO } else { limit };
    let time = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(1),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let readiness = transport.readiness();
    match poll(&mut [PollFd::new(&readiness, PollFlags::IN)], Some(&time)) {
        Ok(_) => Ok(()),
        Err(error) if error == rustix::io::Errno::INTR => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn frame(message: &Message, body: bool) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    message.encode(Epoch(1), body, &mut head);
    head
}

/// Copies the page of a frame, if it has one, once: as into guest memory.
fn place(frame: &[u8], page: &mut [u8; PAGE_SIZE]) {
    if let Some(body) = frame.get(HEAD_BYTES..).filter(|body| body.len() == PAGE_SIZE) {
        page.copy_from_slice(body);
    }
}

/// Times of `rounds` round trips, each a request and an answer with a page, or with none.
///
/// # Errors
/// The transport fails, or an answer does not come.
pub fn round_trips(
    carrier: Carrier,
    rounds: usize,
    page: bool,
    waiting: Waiting,
    places: [Place; 2],
) -> Result<Samples> {
    let [mut asker, mut server] = carrier.pair()?;
    let stop = AtomicBool::new(false);
    scope(|threads| {
        let stop = &stop;
        let serving = threads.spawn(move || {
            settle_as_engine(places[1]);
            serve(server.as_mut(), page, waiting, stop)
        });
        let asking = threads.spawn(move || {
            settle_as_engine(places[0]);
            ask(asker.as_mut(), rounds, waiting)
        });
        let result = asking.join().expect("the asker does not panic");
        stop.store(true, Ordering::Relaxed);
        serving.join().expect("the server does not panic")?;
        result
    })
}

fn serve(
    server: &mut dyn Transport,
    page: bool,
    waiting: Waiting,
    stop: &AtomicBool,
) -> Result<()> {
    let gfn = Gfn(1);
    let answer = if page {
        frame(&Message::Data { gfn, access: Access::Write, acks: 0, held_us: 0, table: None }, true)
    } else {
        frame(&Message::Grant { gfn, acks: 0, table: None }, false)
    };
    let contents = [7u8; PAGE_SIZE];
    let body: &[u8] = if page { &contents } else { &[] };
    while !stop.load(Ordering::Relaxed) {
        wait(server, waiting, Duration::from_millis(20))?;
        let mut asked = false;
        server.poll(16, &mut |event| asked |= matches!(event, Event::Frame { .. }));
        if asked {
            server.send(SliceId(0), Class::Coherence, &answer, body)?;
        }
    }
    Ok(())
}

fn ask(asker: &mut dyn Transport, rounds: usize, waiting: Waiting) -> Result<Samples> {
    let request = frame(&Message::Get { gfn: Gfn(1), want: Access::Write, table: None }, false);
    let mut times = Vec::with_capacity(rounds);
    let mut page = [0; PAGE_SIZE];
    for _ in 0..rounds {
        let start = Instant::now();
        asker.send(SliceId(1), Class::Coherence, &request, &[])?;
        let mut answered = false;
        while !answered {
            ensure!(start.elapsed() < LIMIT, "no answer on the raw transport");
            wait(asker, waiting, LIMIT)?;
            asker.poll(16, &mut |event| {
                if let Event::Frame { bytes, .. } = event {
                    answered = true;
                    place(bytes, &mut page);
                }
            });
        }
        let time = start.elapsed();
        times.push(time.as_secs_f64() * 1e9);
    }
    Ok(Samples::new(times))
}

/// What a raw stream is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Memory of its size, each page once.
    Memory,
    /// The pages of one frame, again and again, which stay in the cache.
    OneFrame,
}

/// Megabytes a second of so many pages sent one after another, in the frames of a run: as many pages in each as
/// the engine puts there. They are received into memory of their size.
///
/// # Errors
/// The transport fails.
pub fn stream(carrier: Carrier, pages: usize, source: Source, places: [Place; 2]) -> Result<f64> {
    let [mut receiver, mut sender] = carrier.pair()?;
    scope(|threads| {
        let sending = threads.spawn(move || {
            settle_as_engine(places[1]);
            pour(sender.as_mut(), pages, source).map(|()| sender)
        });
        let receiving = threads.spawn(move || {
            settle_as_engine(places[0]);
            take(receiver.as_mut(), pages)
        });
        let bandwidth = receiving.join().expect("the receiver does not panic");
        // The sender's end lives until all has arrived.
        drop(sending.join().expect("the sender does not panic")?);
        bandwidth
    })
}

fn pour(sender: &mut dyn Transport, pages: usize, source: Source) -> Result<()> {
    let most = usize::from(Batch::pages_in(FRAME_BYTES_MAX));
    let held = match source {
        Source::Memory => pages,
        Source::OneFrame => most,
    };
    let contents = vec![7u8; held * PAGE_SIZE];
    let mut left = pages;
    while left > 0 {
        let count = left.min(most);
        let head = run_head(u16::try_from(count)?);
        loop {
            let at = (pages - left) % held;
            let body = &contents[at * PAGE_SIZE..][..count * PAGE_SIZE];
            match sender.send(SliceId(0), Class::Run, &head, body) {
                Ok(()) => break,
                Err(SendError::Full) => {
                    wait(sender, Waiting::Asleep, LIMIT)?;
                    sender.poll(16, &mut |_| {});
                }
                Err(error) => return Err(error.into()),
            }
        }
        left -= count;
    }
    for _ in 0..50 {
        // What is still queued goes out here.
        wait(sender, Waiting::Asleep, Duration::from_millis(1))?;
        sender.poll(16, &mut |_| {});
    }
    Ok(())
}

/// The head of a frame of so many pages.
fn run_head(pages: u16) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    let (first, access, bodies) = (Gfn(1), Access::Write, u64::MAX >> (64 - pages));
    Batch { epoch: Epoch(1), first, pages, access, held_us: 0, bodies, remote_written: false }
        .encode(&mut head);
    head
}

fn take(receiver: &mut dyn Transport, pages: usize) -> Result<f64> {
    // Each page once, into memory that is there.
    let mut memory = vec![1u8; pages * PAGE_SIZE];
    let mut taken = 0usize;
    let mut start = None;
    while taken < pages {
        wait(receiver, Waiting::Asleep, LIMIT)?;
        receiver.poll(64, &mut |event| {
            if let Event::Frame { bytes, .. } = event {
                start.get_or_insert_with(Instant::now);
                let body = bytes.get(HEAD_BYTES..).unwrap_or_default();
                let place = memory.get_mut(taken * PAGE_SIZE..).unwrap_or_default();
                if let Some(place) = place.get_mut(..body.len()) {
                    place.copy_from_slice(body);
                }
                taken += body.len() / PAGE_SIZE;
            }
        });
    }
    let seconds = start.map_or(0.0, |start| start.elapsed().as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(taken as f64 * 4096.0 / seconds.max(1e-9) / 1e6)
}
