//! Frames to other slices: the transport, and all that waits for it.
//!
//! ```text
//!   message --page of data--> batch --no neighbour, or full--> one frame
//!      |                        \--peer exposes its memory--> remote write, then one frame (`remote_write`)
//!      \------anything else-----------------------------------------------------------> one frame
//! ```
//!
//! Frames of one class to one slice leave in the order of the messages. A frame that finds no room waits
//! ([`super::backlog`]).

use super::backlog::Backlog;
use super::page_batch::PageBatch;
use crate::error::EngineError;
use crate::memory::GuestRam;
use crate::observe::{Company, PageMoves, Trace};
use dsm_protocol::{Effect, Gfn, Mechanisms, Message};
use transport::{Class, FRAME_BYTES_MAX, SendError, Transport};
use wire::{BATCH_MAX, Batch, Epoch, PAGE_SIZE, SliceId};

/// So many pages that each follow the one before are a run: their frames are large, and writing each at once costs one copy
/// less than writing them together.
const MANY: usize = 16;

/// Whether so many pages are sent as a run has. Correlated pages are as many, and each has a frame of its own.
fn is_run(effects: &[Effect]) -> bool {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send { message: Message::Data { gfn, .. }, .. } => Some(gfn.0),
        _ => None,
    });
    let neighbours = sent.clone().zip(sent.skip(1)).filter(|(one, next)| one.abs_diff(*next) == 1);
    neighbours.count() + 1 >= MANY
}

/// Appends the bytes of a page. Appends nothing, and says false, if they are all zeros.
fn append_page(ram: &GuestRam, gfn: Gfn, bytes: &mut Vec<u8>) -> bool {
    let start = bytes.len();
    ram.append_to(gfn, bytes);
    let zero = bytes[start..] == [0u8; PAGE_SIZE];
    if zero {
        bytes.truncate(start);
    }
    !zero
}

/// A run is asked for behind pages that are waited for. All other messages of a pair keep their order.
fn class_of(message: &Message) -> Class {
    if matches!(message, Message::GetRun { .. }) { Class::Run } else { Class::Coherence }
}

/// What a message is sent with.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    pub(super) ram: &'a GuestRam,
    pub(super) trace: &'a mut Trace,
    /// The epoch of every message of this slice.
    pub(super) epoch: Epoch,
}

/// The transport, and frames that are being put together or wait for room.
pub(crate) struct Outbound {
    pub(super) mechanisms: Mechanisms,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) backlog: Backlog,
    /// Slices that may write pages into our memory.
    pub(super) remote_writers: Vec<SliceId>,
    /// Our memory was offered to those who can take it.
    pub(super) is_offered: bool,
    /// How contents of pages went.
    pub(super) moved: PageMoves,
    /// Pages that go out together.
    batch: PageBatch,
    /// How the pages travel that are being sent.
    company: Company,
    /// Room that is used again, of a frame's head and of its body.
    pub(super) head: Vec<u8>,
    body: Vec<u8>,
}

impl Outbound {
    pub(super) fn new(transport: Box<dyn Transport>, mechanisms: Mechanisms) -> Self {
        Self {
            mechanisms,
            transport,
            backlog: Backlog::default(),
            remote_writers: Vec::new(),
            is_offered: false,
            moved: PageMoves::default(),
            batch: PageBatch::default(),
            company: Company::Alone,
            head: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Begins to carry effects out; small frames go out together. Give the answer to [`Self::end`].
    pub(super) fn begin(&mut self, effects: &[Effect]) -> bool {
        let run = is_run(effects);
        let corked = effects.len() > 1 && !run;
        self.company = if run { Company::InRun } else { Company::Alone };
        if corked {
            self.transport.cork(true);
        }
        corked
    }

    /// All effects are carried out.
    pub(super) fn end(&mut self, corked: bool) {
        if corked {
            self.transport.cork(false);
        }
    }

    /// Sends a message of the protocol, with its page if it has one.
    pub(super) fn send_message(
        &mut self,
        to: SliceId,
        message: &Message,
        sending: &mut Sending<'_>,
    ) -> Result<(), EngineError> {
        let (ram, epoch) = (sending.ram, sending.epoch);
        sending.trace.sent(to, message, self.company);
        let page = message.gfn().filter(|_| message.has_body());
        if let Some(gfn) = page {
            ram.moved(gfn);
        }
        let most = self.run_pages(to);
        if self.batch.take(to, message, ram, most) {
            return Ok(());
        }
        self.send_batch(ram, epoch)?;
        if self.batch.take(to, message, ram, most) {
            return Ok(());
        }
        // A page here is offered as a replica. Several slices get it, and processors may set accessed bits in it meanwhile.
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let full = page.is_some_and(|gfn| append_page(ram, gfn, &mut body));
        self.moved.copies += u64::from(full);
        let class = class_of(message);
        let result = self.send_with_head(to, class, &body, |head| {
            message.encode(epoch, full, head);
        });
        self.body = body;
        result
    }

    /// How many pages go out together at most.
    fn run_pages(&self, to: SliceId) -> u16 {
        if self.has_remote_write(to) { BATCH_MAX } else { Batch::pages_in(FRAME_BYTES_MAX) }
    }

    /// Sends the pages that wait for neighbours.
    pub(super) fn send_batch(&mut self, ram: &GuestRam, epoch: Epoch) -> Result<(), EngineError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.pages == 0 || self.remote_write(&batch, ram, epoch) {
            return Ok(());
        }
        let mut spare = std::mem::take(&mut self.body);
        let (body, copied) = batch.body(ram, &mut spare);
        self.moved.copies += u64::from(copied);
        let result = self.send_with_head(batch.to, batch.class(), body, |head| {
            batch.head(epoch, false, head);
        });
        self.body = spare;
        result
    }

    fn send_with_head(
        &mut self,
        to: SliceId,
        class: Class,
        body: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), EngineError> {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        encode(&mut head);
        let result = self.send_frame(to, class, &head, body);
        self.head = head;
        result
    }

    fn send_frame(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), EngineError> {
        if self.try_send(to, class, head, body)? {
            return Ok(());
        }
        self.put_off(to, class, [head, body].concat())
    }

    /// Sends a frame that is in one piece.
    pub(super) fn send_joined(
        &mut self,
        to: SliceId,
        class: Class,
        frame: Vec<u8>,
    ) -> Result<(), EngineError> {
        if self.try_send(to, class, &frame, &[])? { Ok(()) } else { self.put_off(to, class, frame) }
    }

    /// False when there is no room, or others wait for it.
    fn try_send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, EngineError> {
        if self.backlog.holds(to, class) {
            return Ok(false);
        }
        match self.transport.send(to, class, head, body) {
            // A lost peer is reported by the next poll.
            Ok(()) | Err(SendError::Gone) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(reason) => Err(EngineError::Stuck { to, reason }),
        }
    }

    fn put_off(&mut self, to: SliceId, class: Class, frame: Vec<u8>) -> Result<(), EngineError> {
        let taken = self.backlog.push(to, class, frame);
        if taken { Ok(()) } else { Err(EngineError::Stuck { to, reason: SendError::Full }) }
    }

    /// Sends what waits and finds room now.
    pub(super) fn drain_backlog(&mut self) -> Result<(), EngineError> {
        if self.backlog.is_empty() {
            return Ok(());
        }
        let Self { backlog, transport, .. } = self;
        let drained = backlog.drain(|to, class, frame| transport.send(to, class, frame, &[]));
        drained.map_err(|(to, reason)| EngineError::Stuck { to, reason })
    }
}
