//! What a step wants sent: frames out, pages of a run together.
//!
//! ```text
//!   effects --Data of a neighbour, given alike---> parcel --full, or something else--> one frame
//!      |                                             \--for one who lends its memory--> written there,
//!      |                                                                    one frame after it (placing)
//!      \------anything else----------------------------------------------------------> one frame
//! ```
//! Frames of one class to one slice leave in the order of the effects. What finds no room waits ([`crate::backlog`]).

use crate::engine::Engine;
use crate::error::EngineError;
use crate::ram::GuestRam;
use crate::trace::Company;
use dsm_protocol::{Effect, Gfn, Message};
use std::sync::Arc;
use transport::{Class, Payload, SendError};
use wire::{BATCH_MAX, Batch, Epoch, PAGE_SIZE, SliceId};

/// So many pages are a run: their frames are large, and writing each at once costs one copy less
/// than writing them together.
const MANY: usize = 16;

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

/// A run is asked for behind pages that are waited for; all other messages of a pair keep their order.
fn class_of(message: &Message) -> Class {
    if matches!(message, Message::GetRun { .. }) { Class::Run } else { Class::Coherence }
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
        let most = self.run_pages(to);
        if self.parcel.take(to, message, &self.store.ram, most) {
            return Ok(());
        }
        self.send_parcel()?;
        if self.parcel.take(to, message, &self.store.ram, most) {
            return Ok(());
        }
        if page.is_some_and(|gfn| self.may_place(to, message, gfn) && self.place(to, message, gfn))
        {
            return Ok(());
        }
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let full = page.is_some_and(|gfn| append_page(&self.store.ram, gfn, &mut body));
        self.moved.copies += u64::from(full);
        let class = class_of(message);
        let result = self.send_with_head(to, class, Payload::Passing(&body), |epoch, head| {
            message.encode(epoch, full, head);
        });
        self.body = body;
        result
    }

    /// How many pages go out together at most.
    fn run_pages(&self, to: SliceId) -> u16 {
        if self.transport.places(to) {
            return BATCH_MAX;
        }
        Batch::pages_in(self.transport.run_bytes(to))
    }

    /// Sends the pages that wait for neighbours.
    fn send_parcel(&mut self) -> Result<(), EngineError> {
        let parcel = std::mem::take(&mut self.parcel);
        if parcel.pages == 0 || self.place_parcel(&parcel) {
            return Ok(());
        }
        let ram = Arc::clone(&self.store.ram);
        let mut spare = std::mem::take(&mut self.body);
        let (body, copied) = parcel.body(&ram, &mut spare);
        self.moved.copies += u64::from(copied);
        let result = self.send_with_head(parcel.to, parcel.class(), body, |epoch, head| {
            parcel.head(epoch, false, head);
        });
        self.body = spare;
        result
    }

    fn send_with_head(
        &mut self,
        to: SliceId,
        class: Class,
        body: Payload<'_>,
        encode: impl FnOnce(Epoch, &mut Vec<u8>),
    ) -> Result<(), EngineError> {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        encode(self.node.epoch(), &mut head);
        let result = self.send_frame(to, class, &head, body);
        self.head = head;
        result
    }

    fn send_frame(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        body: Payload<'_>,
    ) -> Result<(), EngineError> {
        if self.try_send(to, class, head, body)? {
            return Ok(());
        }
        self.put_off(to, class, [head, body.bytes()].concat())
    }

    /// Sends a frame that is in one piece.
    fn send_whole(&mut self, to: SliceId, class: Class, frame: Vec<u8>) -> Result<(), EngineError> {
        if self.try_send(to, class, &frame, Payload::Passing(&[]))? {
            Ok(())
        } else {
            self.put_off(to, class, frame)
        }
    }

    /// False when there is no room, or others wait for it.
    fn try_send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        body: Payload<'_>,
    ) -> Result<bool, EngineError> {
        if self.backlog.holds(to, class) {
            return Ok(false);
        }
        match self.transport.send_payload(to, class, head, body) {
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
