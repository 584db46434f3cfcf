//! What a step wants sent: frames out, pages of a run together.
//!
//! ```text
//!   effects --page for one who lends its memory--> written there by the adapter, head after it (placing)
//!      |------Data of a neighbour, given alike---> parcel --full, or something else--> one frame
//!      \------anything else----------------------------------------------------------> one frame
//! ```
//! Frames of one class to one slice leave in the order of the effects. What finds no room waits ([`crate::backlog`]).

use crate::engine::{Engine, EngineError};
use crate::ram::GuestRam;
use crate::trace::Company;
use dsm_protocol::{Access, Effect, Gfn, Message};
use transport::{Class, SendError};
use wire::{BATCH_MAX, Batch, Epoch, PAGE_SIZE, SliceId};

/// So many pages are a run: their frames are large, and writing each at once costs one copy less
/// than writing them together.
const MANY: usize = 16;

/// Pages that go out together.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    to: SliceId,
    first: Gfn,
    pages: u16,
    access: Access,
    held_us: u32,
    /// A bit for each page that is not all zeros.
    bodies: u64,
    bytes: Vec<u8>,
}

impl Parcel {
    /// Takes the page of a message in; false if it does not belong to those that are here.
    fn take(&mut self, to: SliceId, message: &Message, ram: &GuestRam) -> bool {
        let Message::Data { gfn, access, acks: 0, held_us, table: None } = *message else {
            return false;
        };
        if self.pages == 0 {
            (self.to, self.first, self.access, self.held_us) = (to, gfn, access, held_us);
            self.bodies = 0;
            self.bytes.clear();
        }
        let next = Gfn(self.first.0 + u64::from(self.pages));
        let alike = (self.to, self.access, self.held_us) == (to, access, held_us);
        if !alike || next != gfn || self.pages == BATCH_MAX {
            return false;
        }
        if append_page(ram, gfn, &mut self.bytes) {
            self.bodies |= 1 << self.pages;
        }
        self.pages += 1;
        true
    }

    /// Appends the head of the frame: one page travels as the message that it came in.
    fn head(&self, epoch: Epoch, head: &mut Vec<u8>) {
        let Self { first, pages, access, held_us, bodies, .. } = *self;
        if pages == 1 {
            let message = Message::Data { gfn: first, access, acks: 0, held_us, table: None };
            message.encode(epoch, bodies != 0, head);
        } else {
            Batch { epoch, first, pages, access, held_us, bodies }.encode(head);
        }
    }
}

/// Appends the bytes of a page; nothing, and false, if they are all zeros.
fn append_page(ram: &GuestRam, gfn: Gfn, bytes: &mut Vec<u8>) -> bool {
    let start = bytes.len();
    ram.append_to(gfn, bytes);
    let zero = bytes[start..] == [0u8; PAGE_SIZE];
    if zero {
        bytes.truncate(start);
    }
    !zero
}

impl Engine {
    pub(crate) fn carry_out(&mut self) -> Result<(), EngineError> {
        // Small frames go out together.
        let is_page =
            |effect: &&Effect| matches!(effect, Effect::Send { message: Message::Data { .. }, .. });
        let pages = self.effects.iter().filter(is_page).count();
        let corked = self.effects.len() > 1 && pages < MANY;
        self.company = if pages < MANY { Company::Alone } else { Company::InRun };
        if corked {
            self.transport.cork(true);
        }
        let result = self.carry_out_effects();
        if corked {
            self.transport.cork(false);
        }
        result?;
        self.drain_backlog()
    }

    fn carry_out_effects(&mut self) -> Result<(), EngineError> {
        while !self.effects.is_empty() {
            let mut effects = std::mem::replace(&mut self.effects, std::mem::take(&mut self.spare));
            for effect in effects.drain(..) {
                match effect {
                    Effect::Send { to, message } => self.send_message(to, &message)?,
                    Effect::Released { token } => {
                        if let Some((to, class, frame)) = self.releases.remove(&token) {
                            self.send_parcel()?;
                            self.send_whole(to, class, frame)?;
                        }
                    }
                    Effect::Pinned { token } => {
                        // The VMM may write the page now.
                        self.send_parcel()?;
                        self.pinned(token)?;
                    }
                }
            }
            self.spare = effects;
            self.send_parcel()?;
        }
        Ok(())
    }

    fn send_message(&mut self, to: SliceId, message: &Message) -> Result<(), EngineError> {
        self.trace.sent(to, message, self.company);
        let page = message.gfn().filter(|_| message.has_body());
        if let Some(gfn) = page {
            self.store.ram.moved(gfn);
        }
        if let Some(gfn) = page.filter(|gfn| self.may_place(to, message, *gfn)) {
            self.send_parcel()?;
            if self.place(to, message, gfn) {
                return Ok(());
            }
        }
        if self.parcel.take(to, message, &self.store.ram) {
            return Ok(());
        }
        self.send_parcel()?;
        if self.parcel.take(to, message, &self.store.ram) {
            return Ok(());
        }
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let full = page.is_some_and(|gfn| append_page(&self.store.ram, gfn, &mut body));
        self.moved.copies += u64::from(full);
        let result =
            self.send_with_head(to, &body, |epoch, head| message.encode(epoch, full, head));
        self.body = body;
        result
    }

    /// Sends the pages that wait for neighbours.
    fn send_parcel(&mut self) -> Result<(), EngineError> {
        if self.parcel.pages == 0 {
            return Ok(());
        }
        let mut parcel = std::mem::take(&mut self.parcel);
        self.moved.copies += u64::from(parcel.bodies.count_ones());
        let result =
            self.send_with_head(parcel.to, &parcel.bytes, |epoch, head| parcel.head(epoch, head));
        parcel.pages = 0;
        self.parcel = parcel;
        result
    }

    fn send_with_head(
        &mut self,
        to: SliceId,
        body: &[u8],
        encode: impl FnOnce(Epoch, &mut Vec<u8>),
    ) -> Result<(), EngineError> {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        encode(self.node.epoch(), &mut head);
        let result = self.send_frame(to, Class::Coherence, &head, body);
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
    fn send_whole(&mut self, to: SliceId, class: Class, frame: Vec<u8>) -> Result<(), EngineError> {
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

    fn drain_backlog(&mut self) -> Result<(), EngineError> {
        if self.backlog.is_empty() {
            return Ok(());
        }
        let Self { backlog, transport, .. } = self;
        let drained = backlog.drain(|to, class, frame| transport.send(to, class, frame, &[]));
        drained.map_err(|(to, reason)| EngineError::Stuck { to, reason })
    }
}
