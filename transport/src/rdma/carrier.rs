//! The queue pairs to one peer as byte streams, one for each class.
//!
//! Waking: the completion queue is armed when a poll ends, for received messages only, because
//! nobody waits for an acknowledgement of the adapter; a writer that waits for a free slot arms it
//! for all. Until an event came the queue stays armed, so nothing is slept through:
//!
//! ```text
//!  armed --completion--> event in the channel --wakeup--> (poll) --arm, look once more--> armed
//! ```
//!
//! A lost packet is told of by the next one: the other adapter sees the gap. When nothing follows, the
//! adapter sends it again only after a long time (`setup`). So what was not acknowledged for a while is
//! followed by a nudge (`nudges`).
//!
//! A socket to the same process tells of its end at once; a cut cable shows as retries that were used
//! up, or as the lease, whichever is first.

use super::completion::Done;
use super::device::Port;
use super::lane::Lane;
use super::nudges::Nudges;
use super::pool::SLOTS;
use super::remote_write::{self, RemoteWrites};
use super::verbs::Link;
use crate::carrier::{Carrier, Wakeup, watch};
use crate::traits::Class;
use std::array;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;

const OFFSET_CHANNEL: u64 = 0;
const OFFSET_LIFE: u64 = 1;
const OFFSET_DEVICE: u64 = 2;
const OFFSET_BELL: u64 = 3;
const OFFSET_NUDGES: u64 = 4;
/// How long the last words may take to arrive.
const PARTING: Duration = Duration::from_millis(500);

/// One peer's queue pairs, slots and sign of life.
#[derive(Debug)]
pub(crate) struct RdmaCarrier {
    place: String,
    link: Link,
    lanes: [Lane; Class::COUNT],
    /// Remote writes of each class.
    remote_writes: [RemoteWrites; Class::COUNT],
    life: TcpStream,
    /// Rung by ourselves: room was found while nobody polled.
    bell: EventFd,
    nudges: Nudges,
    nudge_timer: TimerFd,
    done: Vec<Done>,
    /// Why nothing can be sent or received any more.
    broken: Option<String>,
    armed: bool,
    /// Armed for all completions, not only for received messages.
    armed_for_all: bool,
    given_up: bool,
}

impl RdmaCarrier {
    pub(super) fn new(
        link: Link,
        lanes: [Lane; Class::COUNT],
        life: TcpStream,
    ) -> io::Result<Self> {
        let place = life.peer_addr().map_or_else(
            |_| String::from("an unknown address"),
            |address| format!("{address} by RDMA"),
        );
        life.set_nonblocking(true)?;
        let bell = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(Self {
            place,
            remote_writes: remote_write::CLASSES
                .map(|on| RemoteWrites::new(if on { link.remote_write_bytes() } else { 0 })),
            link,
            lanes,
            life,
            bell,
            nudges: Nudges::default(),
            nudge_timer: TimerFd::new().map_err(io::Error::from)?,
            done: Vec::new(),
            broken: None,
            armed: false,
            armed_for_all: false,
            given_up: false,
        })
    }

    fn fail(&mut self, what: &str) {
        let port: &Port = &self.link.port;
        self.broken.get_or_insert_with(|| format!("{what} ({port})"));
    }

    /// Takes all completions in.
    fn drain(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        loop {
            let more = self.link.poll(&mut done);
            for one in done.drain(..) {
                self.take(one);
            }
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.fail(&error.to_string());
                    break;
                }
            }
        }
        self.done = done;
    }

    fn take(&mut self, done: Done) {
        match done {
            Done::Sent { class, slot } => {
                self.nudges.acknowledged(class);
                self.lanes[class].sent(slot);
                self.remote_writes[class].sent(slot);
            }
            Done::Written => {}
            Done::Nudged { class } => self.nudges.arrived(class),
            Done::NoteSent { class } => {
                self.nudges.acknowledged(class);
                self.lanes[class].note_done();
                self.note(class);
            }
            Done::Received { class, slot, length, credits } => {
                let lane = &mut self.lanes[class];
                if !lane.credit(credits) {
                    self.fail("broke the slot rule: it gave back slots it never had");
                } else if length == 0 {
                    self.post(class, slot);
                } else if !lane.arrive(slot, length) {
                    self.fail("broke the slot rule: a message came without a credit");
                }
            }
            Done::Failed { class, cause } => {
                self.fail(&format!(
                    "cannot be reached by the queue pair of class {class}: {cause}"
                ));
            }
        }
    }

    /// Posts a slot again.
    fn post(&mut self, class: usize, slot: u16) {
        if self.broken.is_none()
            && let Err(error) = self.link.post_receive(class, slot)
        {
            self.fail(&format!("cannot be listened to: {error}"));
        }
    }

    /// Gives credits back when enough are owed.
    fn note(&mut self, class: usize) {
        if self.broken.is_none()
            && let Some(credits) = self.lanes[class].take_note()
        {
            match self.link.post_note(class, credits) {
                Ok(()) => self.posted(class),
                Err(error) => self.fail(&format!("cannot be sent to: {error}")),
            }
        }
    }

    /// Something is under way from now on.
    fn posted(&mut self, class: usize) {
        if let Some(time) = self.nudges.posted(class) {
            self.set_timer(time);
        }
    }

    fn set_timer(&mut self, time: Duration) {
        if let Err(error) = self.nudge_timer.reset(time, None) {
            self.fail(&format!("cannot be timed: {error}"));
        }
    }

    /// The timer fired: follows up what is not acknowledged.
    fn nudge(&mut self) {
        // The counter only says that it fired.
        let _ = self.nudge_timer.wait();
        self.drain();
        let (late, again) = self.nudges.fired();
        for class in (0..late.len()).filter(|class| late[*class]) {
            if self.broken.is_none()
                && let Err(error) = self.link.post_nudge(class)
            {
                self.fail(&format!("cannot be sent to: {error}"));
            }
        }
        if let Some(time) = again {
            self.set_timer(time);
        }
    }

    fn check(&self) -> io::Result<()> {
        self.broken.as_ref().map_or(Ok(()), |cause| Err(io::Error::other(cause.clone())))
    }

    fn arm_for(&mut self, all: bool) {
        if self.armed && (self.armed_for_all || !all) {
            return;
        }
        match self.link.arm(all) {
            Ok(()) => (self.armed, self.armed_for_all) = (true, all),
            Err(error) => self.fail(&format!("cannot be waited for: {error}")),
        }
    }

    fn descriptors(&self) -> [(u64, RawFd, EventSet); 5] {
        [
            (OFFSET_CHANNEL, self.link.channel_fd(), EventSet::IN),
            (OFFSET_LIFE, self.life.as_raw_fd(), EventSet::IN | EventSet::READ_HANG_UP),
            (OFFSET_DEVICE, self.link.async_fd(), EventSet::IN),
            (OFFSET_BELL, self.bell.as_raw_fd(), EventSet::IN),
            (OFFSET_NUDGES, self.nudge_timer.as_raw_fd(), EventSet::IN),
        ]
    }

    fn life_says(&mut self) -> Option<String> {
        match self.life.read(&mut [0; 1]) {
            Ok(0) => Some(String::from("closed the connection")),
            Ok(_) => Some(String::from("sent bytes where only its end was expected")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(format!("broke the connection: {error}")),
        }
    }

    fn device_says(&mut self) {
        while let Some((what, fatal)) = self.link.device_event() {
            if fatal {
                self.fail(&what);
            }
        }
    }
}

impl Carrier for RdmaCarrier {
    fn location(&self) -> &str {
        &self.place
    }

    fn register(&self, epoll: &Epoll, base: u64) -> io::Result<()> {
        for (offset, fd, events) in self.descriptors() {
            watch(epoll, ControlOperation::Add, fd, events, base + offset)?;
        }
        Ok(())
    }

    fn deregister(&mut self, epoll: &Epoll) {
        for (_, fd, _) in self.descriptors() {
            // It fails only when the descriptor is not in, and that is the aim.
            let _ = epoll.ctl(ControlOperation::Delete, fd, EpollEvent::default());
        }
        // The peer must learn that it is given up, although the carrier lives on.
        let _ = self.life.shutdown(Shutdown::Both);
    }

    fn wakeup(&mut self, offset: u64, _events: EventSet) -> Wakeup {
        let mut gone = None;
        match offset {
            OFFSET_CHANNEL => {
                if self.link.take_event() {
                    (self.armed, self.armed_for_all) = (false, false);
                }
            }
            OFFSET_LIFE => gone = self.life_says(),
            OFFSET_DEVICE => self.device_says(),
            OFFSET_NUDGES => self.nudge(),
            // An empty counter was emptied before.
            _ => drop(self.bell.read()),
        }
        self.drain();
        self.given_up |= gone.is_some();
        let readable = array::from_fn(|class: usize| self.lanes[class].has_arrived());
        let writable = array::from_fn(|class: usize| self.lanes[class].take_room());
        Wakeup { readable, writable, gone: gone.or_else(|| self.broken.clone()) }
    }

    fn read(&mut self, class: usize, into: &mut [u8]) -> io::Result<usize> {
        if !self.lanes[class].has_arrived() {
            self.drain();
        }
        let mut count = 0;
        while count < into.len()
            && let Some(front) = self.lanes[class].front()
        {
            let some = (front.length - front.taken).min(into.len() - count);
            self.link.copy_out(class, front.slot, front.taken, &mut into[count..count + some]);
            count += some;
            if let Some(slot) = self.lanes[class].took(some) {
                self.post(class, slot);
            }
        }
        if count == 0 {
            self.check()?;
            return Err(ErrorKind::WouldBlock.into());
        }
        self.note(class);
        Ok(count)
    }

    fn write(&mut self, class: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut written = 0;
        while written < length {
            let slot = self.lanes[class].take_slot().or_else(|| {
                self.drain();
                self.lanes[class].take_slot()
            });
            self.check()?;
            let Some(slot) = slot else { break };
            let count = self.link.fill(class, slot, parts, written);
            let credits = self.lanes[class].take_owed();
            let pages = self.remote_writes[class].take(slot);
            if let Err(error) = self.link.post_send(class, slot, count, credits, pages) {
                self.fail(&format!("cannot be sent to: {error}"));
                self.check()?;
            }
            self.posted(class);
            written += count;
        }
        if written == 0 && length > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(written)
    }

    fn has_remote_write(&self) -> bool {
        self.remote_writes.iter().any(RemoteWrites::is_on)
    }

    fn remote_write_pages(&mut self, class: usize, offset: u64, pages: u16) -> io::Result<bool> {
        if !self.remote_writes[class].has_room(pages) {
            self.drain();
        }
        self.check()?;
        Ok(self.remote_writes[class].push(offset, pages))
    }

    fn look(&mut self) -> bool {
        self.drain();
        self.broken.is_some() || self.lanes.iter().any(Lane::has_arrived)
    }

    fn want_room(&mut self, _epoll: &Epoll, _base: u64, class: usize, on: bool) -> io::Result<()> {
        self.lanes[class].want_room(on);
        if on {
            self.arm_for(true);
            // Room may have appeared between the failed write and the wish for it.
            self.drain();
            self.check()?;
            if self.lanes[class].has_room() {
                self.bell.write(1)?;
            }
        }
        Ok(())
    }

    fn arm(&mut self) -> bool {
        let all = self.lanes.iter().any(Lane::wants_room);
        self.arm_for(all);
        self.drain();
        let mut work = self.broken.is_some();
        for lane in &mut self.lanes {
            work |= lane.has_arrived() | lane.take_room();
        }
        work
    }
}

impl Drop for RdmaCarrier {
    /// The adapter forgets what it did not send yet, so the last words are waited for.
    fn drop(&mut self) {
        let end = Instant::now() + PARTING;
        while !self.given_up
            && self.broken.is_none()
            && self.lanes.iter().any(Lane::is_sending)
            && Instant::now() < end
        {
            if self.life_says().is_some() {
                break;
            }
            self.drain();
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Lanes with all slots free, as both ends start.
pub(super) fn lanes() -> [Lane; Class::COUNT] {
    SLOTS.map(Lane::new)
}
