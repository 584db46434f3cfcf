//! One peer: its streams, what it may send, what it may be sent, and how it ends.

use super::beats::Beats;
use super::direct_receive::{Arriving, LOOK, MISSING_MAX, MISSING_MIN};
use super::stream::Stream;
use crate::carrier::{Carrier, is_later};
use crate::clock::boot_time_ns;
use crate::config::Config;
use crate::frame::{Decoder, HEAD_BYTES, class_index, cost, credit, data_head, heartbeat};
use crate::memory::PageMemory;
use crate::outbox::Outbox;
use crate::traits::{Class, Event, SendError};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;
use vmm_sys_util::epoll::{Epoll, EventSet};
use wire::SliceId;

/// Reads of one stream in one poll: a peer that never stops sending must not hold the owner.
const READS_MAX: u32 = 4;
/// The stream of the most urgent class.
const URGENT: usize = 0;

/// How a peer stands.
#[derive(Debug)]
enum Life {
    Alive,
    /// The cause; what came before it is still handed over.
    Dying(String),
    Lost,
}

pub(super) struct Peer<C> {
    slice: SliceId,
    carrier: C,
    /// Its first epoll token.
    base: u64,
    streams: [Stream; Class::COUNT],
    life: Life,
    queue_frames: usize,
    /// Something came since the last tick.
    heard: bool,
    silent_ticks: u32,
    beats: Beats,
}

impl<C: Carrier> fmt::Debug for Peer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("slice", &self.slice)
            .field("location", &self.carrier.location())
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

impl<C: Carrier> Peer<C> {
    /// A peer that no engine has yet.
    pub(super) fn new(slice: SliceId, carrier: C, config: &Config) -> Self {
        let streams = Class::ALL.map(|class| (usize::from(class_index(class)), class));
        let streams = streams.map(|(at, class)| Stream::new(class, config.window[at]));
        let pause = 2 * config.beat();
        Self {
            slice,
            carrier,
            base: 0,
            streams,
            life: Life::Alive,
            queue_frames: usize::try_from(config.queue_frames).unwrap_or(usize::MAX),
            heard: true,
            silent_ticks: 0,
            beats: Beats::new(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    pub(super) fn slice(&self) -> SliceId {
        self.slice
    }

    /// Has its descriptors wake the owner, with tokens from `base` on. If that fails it is given up.
    pub(super) fn register(&mut self, epoll: &Epoll, base: u64) -> io::Result<()> {
        self.base = base;
        let watched = self.carrier.register(epoll, base);
        watched.inspect_err(|_| self.carrier.deregister(epoll)).map(|()| self.beat(epoll))
    }

    /// Its first epoll token.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Ends the peer without a word to the owner, who wants it.
    pub(super) fn part(&mut self, epoll: &Epoll) {
        self.life = Life::Lost;
        self.carrier.deregister(epoll);
    }

    fn is_alive(&self) -> bool {
        matches!(self.life, Life::Alive)
    }

    pub(super) fn has_unreported_loss(&self) -> bool {
        matches!(self.life, Life::Dying(_))
    }

    /// The peer ends; what it sent before is still read once.
    fn die(&mut self, what: &str) {
        if !self.is_alive() {
            return;
        }
        self.life = Life::Dying(format!("{} at {} {what}", self.slice, self.carrier.location()));
        for stream in &mut self.streams {
            stream.readable = !stream.ended;
            stream.outbox = Outbox::default();
        }
    }

    /// The peer broke a rule: it ends, and nothing more of it is believed.
    fn distrust(&mut self, what: &str) {
        self.die(what);
        for stream in &mut self.streams {
            stream.ended = true;
            stream.readable = false;
            stream.decoder = Decoder::new(stream.class);
            stream.arriving = None;
        }
    }

    /// Takes the meaning of one epoll event over.
    pub(super) fn wakeup(&mut self, offset: u64, events: EventSet) {
        if !self.is_alive() {
            return;
        }
        let wakeup = self.carrier.wakeup(offset, events);
        for (at, stream) in self.streams.iter_mut().enumerate() {
            stream.readable |= wakeup.readable[at] && !stream.ended;
            stream.writable |= wakeup.writable[at];
            self.heard |= wakeup.readable[at];
        }
        if let Some(what) = wakeup.gone {
            self.die(&what);
        }
    }

    pub(super) fn send(
        &mut self,
        epoll: &Epoll,
        at: usize,
        length: u32,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let frame = self.admit(at, length)?;
        let parts = [&frame, head, payload];
        let stream = &mut self.streams[at];
        let mut done = 0;
        if stream.outbox.is_empty() {
            match self.carrier.write(at, &parts.map(IoSlice::new)) {
                Ok(count) => done = count,
                Err(error) if is_later(&error) => {}
                Err(error) => {
                    self.die(&format!("cannot be written to: {error}"));
                    return Err(SendError::Gone);
                }
            }
        }
        self.streams[at].outbox.push_data(&parts, done);
        if !self.streams[at].outbox.is_empty() {
            self.wait_for_room(epoll, at);
            if !self.is_alive() {
                return Err(SendError::Gone);
            }
        }
        Ok(())
    }

    /// Offers memory to the peer; false where it cannot be used.
    pub(super) fn expose(&mut self, memory: &PageMemory) -> bool {
        if !self.is_alive() {
            return false;
        }
        self.carrier.expose(memory).unwrap_or_else(|error| {
            self.die(&format!("cannot be given memory: {error}"));
            false
        })
    }

    pub(super) fn has_remote_write(&self) -> bool {
        self.carrier.has_remote_write()
    }

    /// Writes pages, if their frame of `length` bytes can be sent after them.
    pub(super) fn remote_write(
        &mut self,
        at: usize,
        length: u32,
        offset: u64,
        pages: u16,
    ) -> Result<(), SendError> {
        if !self.is_alive() {
            return Err(SendError::Gone);
        }
        if !self.streams[at].admits(length, self.queue_frames) || !self.carrier.has_remote_write() {
            return Err(SendError::Full);
        }
        match self.carrier.remote_write_pages(at, offset, pages) {
            Ok(true) => Ok(()),
            Ok(false) => Err(SendError::Full),
            Err(error) => {
                self.die(&format!("cannot be written to: {error}"));
                Err(SendError::Gone)
            }
        }
    }

    /// Whether the carrier saw something come. A peer on its way out has nothing new to say.
    pub(super) fn look(&mut self) -> bool {
        let came = self.is_alive() && self.carrier.look();
        for stream in &mut self.streams {
            stream.readable |= came && !stream.ended;
        }
        came
    }

    /// Takes the credit for a frame.
    fn admit(&mut self, at: usize, length: u32) -> Result<[u8; HEAD_BYTES], SendError> {
        if !self.is_alive() {
            return Err(SendError::Gone);
        }
        let stream = &mut self.streams[at];
        if !stream.admits(length, self.queue_frames) {
            return Err(SendError::Full);
        }
        stream.may_send -= cost(length);
        Ok(data_head(length, stream.class))
    }

    /// As `send`, but leaves the writing to the next `flush`.
    pub(super) fn queue(
        &mut self,
        at: usize,
        length: u32,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let frame = self.admit(at, length)?;
        self.streams[at].outbox.push_data(&[&frame, head, payload], 0);
        Ok(())
    }

    fn wait_for_room(&mut self, epoll: &Epoll, at: usize) {
        self.streams[at].writable = false;
        if let Err(error) = self.carrier.want_room(epoll, self.base, at, true) {
            self.die(&format!("cannot be waited for: {error}"));
        }
    }

    /// Writes what waits, where there is room.
    pub(super) fn flush(&mut self, epoll: &Epoll) {
        for at in 0..self.streams.len() {
            if self.is_alive() && self.streams[at].writable {
                self.flush_stream(epoll, at);
            }
        }
    }

    fn flush_stream(&mut self, epoll: &Epoll, at: usize) {
        if self.streams[at].outbox.is_empty() {
            return;
        }
        while !self.streams[at].outbox.is_empty() {
            let stream = &mut self.streams[at];
            match self.carrier.write(at, &stream.outbox.slices()) {
                Ok(0) => return self.die("takes no more bytes"),
                Ok(count) => stream.outbox.consume(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_later(&error) => return self.wait_for_room(epoll, at),
                Err(error) => return self.die(&format!("cannot be written to: {error}")),
            }
        }
        if let Err(error) = self.carrier.want_room(epoll, self.base, at, false) {
            self.die(&format!("cannot be waited for: {error}"));
        }
    }

    /// Queues a control frame and tries to write it at once.
    fn control(&mut self, epoll: &Epoll, at: usize, frame: &[u8]) {
        let idle = self.streams[at].outbox.is_empty();
        self.streams[at].outbox.push_control(frame);
        if idle {
            self.flush_stream(epoll, at);
        }
    }

    /// Reads one stream and hands its frames over, at most `budget`.
    pub(super) fn pump(
        &mut self,
        epoll: &Epoll,
        at: usize,
        budget: usize,
        memory: Option<&PageMemory>,
        sink: &mut dyn FnMut(Event<'_>),
    ) -> usize {
        if matches!(self.life, Life::Lost) {
            return 0;
        }
        let memory = memory.filter(|_| self.streams[at].class == Class::Run);
        let mut handed = 0;
        for _ in 0..=READS_MAX {
            let delivered = self.streams[at].deliver(self.slice, budget - handed, sink);
            match delivered.and_then(|count| self.take_beat(epoll, at).map(|()| count)) {
                Ok(count) => handed += count,
                Err(what) => {
                    self.distrust(&what);
                    return handed;
                }
            }
            let full = handed == budget && self.streams[at].has_frame();
            if full || !self.streams[at].readable {
                break;
            }
            if let Some(memory) = memory {
                self.streams[at].offer(self.slice, memory, sink);
            }
            let stream = &self.streams[at];
            let most = match memory {
                None => usize::MAX,
                // What comes behind it may be received directly.
                Some(_) if stream.declined => stream.missing() + LOOK,
                Some(_) => LOOK,
            };
            self.read(at, most);
        }
        self.grant(epoll, at);
        handed
    }

    /// Takes in what the heartbeats of a stream have said, and answers where that is not to wait.
    fn take_beat(&mut self, epoll: &Epoll, at: usize) -> Result<(), String> {
        let Some(beat) = self.streams[at].beat.take() else { return Ok(()) };
        let answers = self.beats.take_in(beat).map_err(|error| error.to_string())?;
        if answers {
            self.beat(epoll);
        }
        Ok(())
    }

    /// One read: to where a body belongs, and behind that into the decoder, so many bytes at most.
    fn read(&mut self, at: usize, most: usize) {
        let stream = &mut self.streams[at];
        let room = stream.decoder.room();
        let most = most.min(room.len());
        let room = &mut room[..most];
        let body = stream.arriving.as_mut().map(Arriving::rest).unwrap_or_default();
        let size = body.len() + room.len();
        if size == 0 {
            return;
        }
        let result = match body.is_empty() {
            true => self.carrier.read(at, room),
            false => {
                let parts = &mut [IoSliceMut::new(body), IoSliceMut::new(room)];
                self.carrier.read_parts(at, parts)
            }
        };
        match result {
            Ok(0) => {
                stream.readable = false;
                stream.ended = true;
                let partial = stream.decoder.is_partial() || stream.arriving.is_some();
                let cut = if partial { " inside a frame" } else { "" };
                self.die(&format!("closed the connection{cut}"));
            }
            Ok(count) => {
                let count_behind = match &mut stream.arriving {
                    Some(arriving) => arriving.filled(count),
                    None => count,
                };
                stream.decoder.filled(count_behind);
                // Less than asked for: it is empty now, and epoll tells when it no longer is.
                stream.readable = count == size;
                self.heard = true;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_later(&error) => stream.readable = false,
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                self.distrust(&error.to_string());
            }
            Err(error) => {
                stream.readable = false;
                stream.ended = true;
                self.die(&format!("broke the connection: {error}"));
            }
        }
    }

    /// Gives credit back once a quarter of the window was taken.
    fn grant(&mut self, epoll: &Epoll, at: usize) {
        let stream = &mut self.streams[at];
        if stream.owed < stream.window / 4 || !stream.outbox.control_is_free() || !self.is_alive() {
            return;
        }
        let stream = &mut self.streams[at];
        let owed = std::mem::take(&mut stream.owed);
        stream.may_receive += owed;
        let frame = credit(stream.class, owed);
        self.control(epoll, at, &frame);
    }

    /// The timer fired: speaks, and counts when nothing was heard. A heartbeat goes with what is most urgent: the peer reads that
    /// first, however much else there is.
    pub(super) fn tick(&mut self, epoll: &Epoll, ticks_max: u32, lease: Duration) {
        if !self.is_alive() {
            return;
        }
        if std::mem::take(&mut self.heard) {
            self.silent_ticks = 0;
        } else {
            self.silent_ticks += 1;
        }
        for stream in &mut self.streams {
            // A frame that comes so slowly that it wakes nobody is a sign of life too.
            stream.readable |= stream.expects && !stream.ended;
        }
        if self.silent_ticks >= ticks_max {
            self.die(&format!("was silent for its lease of {lease:?}"));
            return;
        }
        self.beat(epoll);
    }

    /// Says that this slice is there, unless the last time waits still.
    fn beat(&mut self, epoll: &Epoll) {
        if self.is_alive() && self.streams[URGENT].outbox.control_is_free() {
            let beat = self.beats.next(boot_time_ns());
            self.control(epoll, URGENT, &heartbeat(Class::Interrupt, beat));
        }
    }

    /// This peer, and when it was there at the latest that is known, if that is later than was told before.
    pub(super) fn take_heard(&mut self) -> Option<(SliceId, u64)> {
        self.beats.take_told().map(|at| (self.slice, at))
    }

    /// Reports the loss once all that came before it was handed over.
    pub(super) fn report_loss(&mut self, epoll: &Epoll, sink: &mut dyn FnMut(Event<'_>)) -> bool {
        if !self.has_unreported_loss() || self.has_work() {
            return false;
        }
        if let Life::Dying(cause) = std::mem::replace(&mut self.life, Life::Lost) {
            self.carrier.deregister(epoll);
            sink(Event::Lost { peer: self.slice, cause });
        }
        true
    }

    fn has_work(&self) -> bool {
        self.streams.iter().any(|stream| stream.readable || stream.has_frame())
    }

    /// Ends a poll. Returns whether work is left.
    pub(super) fn settle(&mut self) -> bool {
        match self.life {
            Life::Lost => false,
            Life::Dying(_) => true,
            Life::Alive => {
                if self.carrier.arm() {
                    for stream in &mut self.streams {
                        stream.readable = true;
                        stream.writable = true;
                    }
                }
                self.expect();
                self.has_work()
            }
        }
    }

    /// Tells the carrier how many bytes are missing of partial frames: a partial frame is of no use.
    fn expect(&mut self) {
        if !self.is_alive() {
            return;
        }
        for at in 0..self.streams.len() {
            let stream = &mut self.streams[at];
            let missing = match stream.readable {
                true => 0,
                false => stream.missing().min(MISSING_MAX),
            };
            let expects = missing >= MISSING_MIN;
            if !expects && !stream.expects {
                continue;
            }
            stream.expects = expects;
            if let Err(error) = self.carrier.expect(at, if expects { missing } else { 0 }) {
                self.die(&format!("cannot be waited for: {error}"));
            }
        }
    }
}
