//! The other end, one frame at a time.

use anyhow::{Context, Result, ensure};
use dsm::schedule;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use transport::{Class, Event, SendError, Transport};
use wire::SliceId;

/// No answer takes longer.
const LIMIT: Duration = Duration::from_secs(30);
/// Longest sleep between two looks at the time.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Bytes of every head, as of a message about a page with its frame's head.
pub(crate) const HEAD: usize = 56;

/// What a frame asks for, in its first byte.
pub(crate) mod kind {
    /// The same back.
    pub(crate) const ECHO: u8 = 1;
    /// The page of that number.
    pub(crate) const PAGE: u8 = 2;
    /// Nothing.
    pub(crate) const STREAM: u8 = 3;
    /// How many bytes streamed until now.
    pub(crate) const STREAMED: u8 = 4;
}

/// How frames are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Waiting {
    /// As the memory engine does: looking about as long as an answer takes, then asleep; asleep from the
    /// start where answers take long
    #[default]
    Engine,
    /// Looking all the time, as perftest does unless told
    Looking,
}

pub(crate) struct Peer {
    transport: Box<dyn Transport>,
    to: SliceId,
    waiting: Waiting,
    /// Mean time until a frame came.
    mean: Duration,
    cores: usize,
    came: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    lost: Option<String>,
}

impl Peer {
    pub(crate) fn new(transport: Box<dyn Transport>, waiting: Waiting) -> Result<Self> {
        let to = *transport.peers().first().context("nobody is there")?;
        let (came, spare) = (VecDeque::new(), Vec::new());
        let (mean, cores) = (Duration::ZERO, schedule::cores());
        Ok(Self { transport, to, waiting, mean, cores, came, spare, lost: None })
    }

    /// Whether pages are written remotely.
    pub(crate) fn has_remote_write(&self) -> bool {
        self.transport.has_remote_write(self.to)
    }

    pub(crate) fn send(&mut self, class: Class, head: &[u8], body: &[u8]) -> Result<()> {
        self.insist(|transport, to| transport.send(to, class, head, body))
    }

    pub(crate) fn remote_write(&mut self, head: &[u8], offset: u64) -> Result<()> {
        self.insist(|transport, to| transport.remote_write(to, Class::Coherence, head, offset, 1))
    }

    fn insist(
        &mut self,
        mut send: impl FnMut(&mut dyn Transport, SliceId) -> Result<(), SendError>,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            match send(self.transport.as_mut(), self.to) {
                Err(SendError::Full) if start.elapsed() < LIMIT => self.turn(start)?,
                result => return result.context("send a frame"),
            }
        }
    }

    /// The next frame; none when the other end has gone.
    pub(crate) fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        let start = Instant::now();
        loop {
            if let Some(frame) = self.came.pop_front() {
                self.mean = (self.mean * 7 + start.elapsed()) / 8;
                return Ok(Some(frame));
            }
            if self.lost.is_some() {
                return Ok(None);
            }
            ensure!(start.elapsed() < LIMIT, "no frame came within {LIMIT:?}");
            self.turn(start)?;
        }
    }

    /// Why the other end has gone, if it has.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Gives a frame's memory back.
    pub(crate) fn done(&mut self, frame: Vec<u8>) {
        self.spare.push(frame);
    }

    /// Waits for something, at most for a nap, and takes it in. Waiting began at `start`.
    fn turn(&mut self, start: Instant) -> Result<()> {
        let looking = match self.waiting {
            Waiting::Engine => start.elapsed() < schedule::spin_limit(self.mean, self.cores),
            Waiting::Looking => true,
        };
        if !(looking && self.transport.look()) {
            let nap = if looking { Timespec::default() } else { NAP };
            let readiness = self.transport.readiness();
            match poll(&mut [PollFd::new(&readiness, PollFlags::IN)], Some(&nap)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error).context("wait for frames"),
            }
        }
        let Self { transport, came, spare, lost, .. } = self;
        transport.poll(64, &mut |event| match event {
            Event::Frame { bytes, .. } => {
                let mut frame = spare.pop().unwrap_or_default();
                frame.clear();
                frame.extend_from_slice(bytes);
                came.push_back(frame);
            }
            Event::Lost { cause, .. } => *lost = Some(cause),
            // Memory is not exposed here.
            Event::Head { .. } | Event::DirectlyReceived { .. } => {}
        });
        Ok(())
    }
}
