//! The transport proper, written once over any [`Carrier`]: queues, credits, lease, order, loss.
//!
//! Everything that can wake the owner sits in one epoll instance: the carrier's descriptors, a
//! timer for the lease, and an eventfd (`wake`) for work that `poll` left behind because its budget
//! was used up. So `readiness` is level-triggered: it stays readable while there is work.
//!
//! Life of a peer:
//!
//! ```text
//!  alive --(end of stream, error, lease)--> dying --(what had come is handed over)--> lost
//!    └-----------(broken format or credit rule: nothing more is believed)--------------^
//!  any --(remove_peer: the owner knows)--> gone from the list
//! ```
//!
//! Silence is counted in observed timer ticks, not in time: when this process itself was stopped,
//! its peers are not to blame.

mod beats;
mod direct_receive;
mod membership;
mod peer;
mod stream;

use crate::carrier::{Carrier, TOKENS, watch};
use crate::config::Config;
use crate::frame::class_index;
use crate::link::{AddPeerError, FormerPeer, PeerLink};
use crate::memory::PageMemory;
use crate::sys::borrow;
use crate::traits::{Class, Event, SendError, Transport};
pub(crate) use membership::link;
use peer::Peer;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;
use wire::SliceId;

const TOKEN_TIMER: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
/// Silent ticks, of a quarter lease each, that end the lease. The first may be cut short.
const SILENT_TICKS_MAX: u32 = 5;

/// All peers of one slice and what wakes it.
pub(crate) struct Engine<C: Carrier> {
    local: SliceId,
    ids: Vec<SliceId>,
    peers: Vec<Peer<C>>,
    config: Config,
    epoll: Epoll,
    timer: TimerFd,
    wake: EventFd,
    woken: bool,
    events: Vec<EpollEvent>,
    /// The first token of the next peer.
    next_base: u64,
    /// The peer that is served first in the next poll.
    turn: usize,
    /// Frames are only queued, but for interrupts.
    corked: bool,
    /// Memory for bodies to be received into.
    memory: Option<PageMemory>,
    /// Frames of runs that one poll hands over at most.
    runs_max: usize,
}

impl<C: Carrier> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("local", &self.local)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl<C: Carrier> Engine<C> {
    /// Takes over the carriers, one per peer. `config` was validated.
    pub(crate) fn new(
        local: SliceId,
        mut carriers: Vec<(SliceId, C)>,
        config: Config,
    ) -> io::Result<Self> {
        carriers.sort_by_key(|(slice, _)| *slice);
        let epoll = Epoll::new()?;
        let mut timer = TimerFd::new().map_err(io::Error::from)?;
        let beat = config.beat();
        timer.reset(beat, Some(beat)).map_err(io::Error::from)?;
        let wake = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let add = || ControlOperation::Add;
        watch(&epoll, add(), timer.as_raw_fd(), EventSet::IN, TOKEN_TIMER)?;
        watch(&epoll, add(), wake.as_raw_fd(), EventSet::IN, TOKEN_WAKE)?;
        let mut engine = Self {
            local,
            ids: Vec::new(),
            peers: Vec::new(),
            config,
            epoll,
            timer,
            wake,
            woken: false,
            events: vec![EpollEvent::default(); 2],
            next_base: 0,
            turn: 0,
            corked: false,
            memory: None,
            runs_max: usize::MAX,
        };
        for (place, (slice, carrier)) in carriers.into_iter().enumerate() {
            engine.insert(place, Peer::new(slice, carrier, &engine.config))?;
        }
        Ok(engine)
    }

    pub(crate) fn local(&self) -> SliceId {
        self.local
    }

    pub(crate) fn peers(&self) -> &[SliceId] {
        &self.ids
    }

    pub(crate) fn epoll_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    pub(crate) fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let length = head.len().saturating_add(payload.len());
        if length > class.frame_bytes_max() {
            return Err(SendError::TooLarge);
        }
        let length = u32::try_from(length).map_err(|_| SendError::TooLarge)?;
        let index = self.ids.binary_search(&to).map_err(|_| SendError::Gone)?;
        self.send_to(index, class, length, head, payload)
    }

    fn send_to(
        &mut self,
        index: usize,
        class: Class,
        length: u32,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let peer = &mut self.peers[index];
        let class_at = usize::from(class_index(class));
        // Interrupts have a stream of their own, and a vCPU may wait for one.
        let result = if self.corked && class != Class::Interrupt {
            peer.queue(class_at, length, head, payload)
        } else {
            peer.send(&self.epoll, class_at, length, head, payload)
        };
        if peer.has_unreported_loss() {
            self.wake();
        }
        result
    }

    /// True when the memory was offered to all peers.
    pub(crate) fn expose(&mut self, memory: &PageMemory) -> bool {
        self.memory = Some(memory.clone());
        let mut all = !self.peers.is_empty();
        for peer in &mut self.peers {
            all &= peer.expose(memory);
        }
        if self.peers.iter().any(Peer::has_unreported_loss) {
            self.wake();
        }
        all
    }

    pub(crate) fn has_remote_write(&self, peer: SliceId) -> bool {
        self.ids.binary_search(&peer).is_ok_and(|index| self.peers[index].has_remote_write())
    }

    pub(crate) fn remote_write(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        offset: u64,
        pages: u16,
    ) -> Result<(), SendError> {
        let length = u32::try_from(head.len()).map_err(|_| SendError::TooLarge)?;
        let index = self.ids.binary_search(&to).map_err(|_| SendError::Gone)?;
        let result =
            self.peers[index].remote_write(usize::from(class_index(class)), length, offset, pages);
        match result {
            Ok(()) => self.send_to(index, class, length, head, &[]),
            Err(error) => {
                if self.peers[index].has_unreported_loss() {
                    self.wake();
                }
                Err(error)
            }
        }
    }

    pub(crate) fn look(&mut self) -> bool {
        self.peers.iter_mut().any(Peer::look)
    }

    pub(crate) fn limit_runs(&mut self, frames: usize) {
        self.runs_max = frames;
    }

    pub(crate) fn cork(&mut self, on: bool) {
        self.corked = on;
        if on {
            return;
        }
        for peer in &mut self.peers {
            peer.flush(&self.epoll);
        }
        if self.peers.iter().any(Peer::has_unreported_loss) {
            self.wake();
        }
    }

    pub(crate) fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let ticked = self.gather();
        for peer in &mut self.peers {
            peer.flush(&self.epoll);
        }
        let mut handed: usize = 0;
        let count = self.peers.len();
        for (at, class) in Class::ALL.into_iter().enumerate() {
            // What is more urgent is looked for again after a few frames of runs: each is many pages.
            let end = if class == Class::Run {
                budget.min(handed.saturating_add(self.runs_max))
            } else {
                budget
            };
            for step in 0..count {
                let peer = &mut self.peers[(self.turn + step) % count];
                let memory = self.memory.as_ref();
                handed += peer.pump(&self.epoll, at, end - handed, memory, sink);
            }
        }
        self.turn = if count == 0 { 0 } else { (self.turn + 1) % count };
        if ticked {
            for peer in &mut self.peers {
                peer.tick(&self.epoll, SILENT_TICKS_MAX, self.config.lease);
            }
        }
        for peer in &mut self.peers {
            if handed < budget && peer.report_loss(&self.epoll, sink) {
                handed += 1;
            }
        }
        self.settle();
        handed
    }

    pub(crate) fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
        let heard = self.peers.iter_mut().filter_map(Peer::take_heard);
        heard.for_each(|(peer, at)| sink(peer, at));
    }

    /// Turns epoll events into flags of the streams. Returns whether the timer fired.
    fn gather(&mut self) -> bool {
        let mut ticked = false;
        let count = self.epoll.wait(0, &mut self.events).unwrap_or(0);
        for at in 0..count {
            let event = self.events[at];
            match event.data() {
                TOKEN_TIMER => ticked = self.timer.wait().is_ok(),
                TOKEN_WAKE => {
                    // The counter only says "there is work"; an empty one says it no longer.
                    let _ = self.wake.read();
                    self.woken = false;
                }
                token => {
                    if let Some(peer) = self.peer_of(token) {
                        peer.wakeup(token % TOKENS, event.event_set());
                    }
                }
            }
        }
        ticked
    }

    /// Makes `readiness` say what is left, and the carriers say what comes next.
    fn settle(&mut self) {
        let mut work = false;
        for peer in &mut self.peers {
            work |= peer.settle();
        }
        if work {
            self.wake();
        }
    }

    fn wake(&mut self) {
        if !self.woken {
            // It cannot be full: it is written once between two reads.
            self.woken = self.wake.write(1).is_ok();
        }
    }
}

/// A transport that is an engine over one kind of carrier.
pub(crate) trait OverEngine: Send {
    type Carrier: Carrier;

    fn engine(&self) -> &Engine<Self::Carrier>;
    fn engine_mut(&mut self) -> &mut Engine<Self::Carrier>;
}

impl<T: OverEngine> Transport for T {
    fn local(&self) -> SliceId {
        self.engine().local()
    }

    fn peers(&self) -> &[SliceId] {
        self.engine().peers()
    }

    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.engine_mut().send(to, class, head, payload)
    }

    fn cork(&mut self, on: bool) {
        self.engine_mut().cork(on);
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.engine_mut().poll(budget, sink)
    }

    fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
        self.engine_mut().take_heard(sink);
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        borrow(self, self.engine().epoll_fd())
    }

    fn look(&mut self) -> bool {
        self.engine_mut().look()
    }

    fn limit_runs(&mut self, frames: usize) {
        self.engine_mut().limit_runs(frames);
    }

    fn add_peer(&mut self, link: PeerLink) -> Result<(), AddPeerError> {
        self.engine_mut().add_peer(link)
    }

    fn remove_peer(&mut self, peer: SliceId) -> Option<FormerPeer> {
        self.engine_mut().remove_peer(peer)
    }

    fn expose(&mut self, memory: &PageMemory) -> bool {
        self.engine_mut().expose(memory)
    }

    fn has_remote_write(&self, peer: SliceId) -> bool {
        self.engine().has_remote_write(peer)
    }

    fn remote_write(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        offset: u64,
        pages: u16,
    ) -> Result<(), SendError> {
        self.engine_mut().remote_write(to, class, head, offset, pages)
    }
}
