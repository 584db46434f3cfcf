//! One class of one peer: frames that came, frames that wait to go, and credits both ways.

use super::direct_receive::{Arriving, is_worth_it};
use crate::frame::{Beat, Decoder, Received, cost};
use crate::memory::PageMemory;
use crate::outbox::Outbox;
use crate::traits::{Class, DIRECT_HEAD_MAX, Event};
use wire::SliceId;

/// One class of one peer.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) class: Class,
    pub(super) decoder: Decoder,
    /// A body on its way to where it belongs; what comes after it is in the decoder.
    pub(super) arriving: Option<Arriving>,
    /// The owner did not say where the body of the frame belongs that is half here.
    pub(super) declined: bool,
    /// The carrier was told to wait for the rest of a frame.
    pub(super) expects: bool,
    pub(super) outbox: Outbox,
    /// Bytes may be there to read.
    pub(super) readable: bool,
    /// What heartbeats said that the peer has not taken in.
    pub(super) beat: Option<Beat>,
    /// Room may be there to write.
    pub(super) writable: bool,
    /// Its end was read.
    pub(super) ended: bool,
    pub(super) window: u32,
    /// Bytes we may still send.
    pub(super) may_send: u32,
    /// Bytes the peer may still send.
    pub(super) may_receive: u32,
    /// Bytes the owner took that the peer was not told of.
    pub(super) owed: u32,
}

impl Stream {
    pub(super) fn new(class: Class, window: u32) -> Self {
        Self {
            class,
            decoder: Decoder::new(class),
            arriving: None,
            declined: false,
            expects: false,
            outbox: Outbox::default(),
            readable: true,
            beat: None,
            writable: true,
            ended: false,
            window,
            may_send: window,
            may_receive: window,
            owed: 0,
        }
    }

    /// Bytes that are missing of the frame that is half here.
    pub(super) fn missing(&self) -> usize {
        match &self.arriving {
            Some(arriving) => arriving.left(),
            None => self.decoder.half_frame().map_or(0, |(length, here)| length - here.len()),
        }
    }

    /// Whether there are credits and room for a frame of so many bytes.
    pub(super) fn admits(&self, length: u32, queue_frames: usize) -> bool {
        self.may_send >= cost(length) && self.outbox.frames() < queue_frames
    }

    /// Hands whole frames over and takes control frames in.
    pub(super) fn deliver(
        &mut self,
        from: SliceId,
        budget: usize,
        sink: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, String> {
        let mut handed = self.tell_received(from, budget, sink)?;
        if self.arriving.is_some() {
            return Ok(handed);
        }
        while handed < budget {
            match self.decoder.next_frame().map_err(|error| format!("broke the format: {error}"))? {
                None => break,
                Some(Received::Heartbeat(beat)) => {
                    self.beat = Some(self.beat.unwrap_or_default().and(beat));
                }
                Some(Received::Credit(bytes)) => {
                    let sum = self.may_send.checked_add(bytes).filter(|sum| *sum <= self.window);
                    self.may_send = sum.ok_or_else(|| {
                        format!("broke the credit rule: it gave back {bytes} bytes it never got")
                    })?;
                }
                Some(Received::Data(bytes)) => {
                    let length = u32::try_from(bytes.len()).expect("the decoder bounds it");
                    take_credit(&mut self.may_receive, &mut self.owed, length)?;
                    self.declined = false;
                    handed += 1;
                    sink(Event::Frame { from, class: self.class, bytes });
                }
            }
        }
        Ok(handed)
    }

    /// Tells of a body that is where it belongs.
    fn tell_received(
        &mut self,
        from: SliceId,
        budget: usize,
        sink: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, String> {
        let complete = self.arriving.take_if(|arriving| budget > 0 && arriving.is_complete());
        let Some(arriving) = complete else { return Ok(0) };
        take_credit(&mut self.may_receive, &mut self.owed, arriving.length)?;
        let length = usize::try_from(arriving.length).unwrap_or(usize::MAX);
        sink(Event::DirectlyReceived { from, bytes: arriving.head(), length });
        Ok(1)
    }

    /// Asks where the body of the frame belongs that is half here.
    pub(super) fn offer(
        &mut self,
        from: SliceId,
        memory: &PageMemory,
        sink: &mut dyn FnMut(Event<'_>),
    ) {
        if self.arriving.is_some() || self.declined {
            return;
        }
        let Some((length, here)) = self.decoder.half_frame() else { return };
        let has_credit = u32::try_from(length).is_ok_and(|length| cost(length) <= self.may_receive);
        if !has_credit || !is_worth_it(length, here) {
            return;
        }
        let mut direct_receive = None;
        let bytes = &here[..DIRECT_HEAD_MAX];
        sink(Event::Head { from, bytes, length, direct_receive: &mut direct_receive });
        self.arriving = direct_receive.and_then(|at| Arriving::begin(memory, at, length, here));
        if self.arriving.is_some() {
            self.decoder.drop_half();
        } else {
            self.declined = true;
        }
    }

    /// Whether `deliver` has something to say.
    pub(super) fn has_frame(&self) -> bool {
        match &self.arriving {
            Some(arriving) => arriving.is_complete(),
            None => self.decoder.has_frame(),
        }
    }
}

/// A frame has come: its credit is used up, and owed back.
fn take_credit(may_receive: &mut u32, owed: &mut u32, length: u32) -> Result<(), String> {
    let cost = cost(length);
    *may_receive = may_receive
        .checked_sub(cost)
        .ok_or_else(|| format!("broke the credit rule: a frame of {length} bytes has no credit"))?;
    *owed += cost;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HEAD_BYTES, data_head};

    fn stream(may_receive: u32, frames: usize) -> Stream {
        let mut decoder = Decoder::new(Class::Bulk);
        let mut bytes = data_head(4, Class::Bulk).to_vec();
        bytes.extend(b"data");
        let bytes = bytes.repeat(frames);
        decoder.room()[..bytes.len()].copy_from_slice(&bytes);
        decoder.filled(bytes.len());
        Stream {
            class: Class::Bulk,
            decoder,
            arriving: None,
            declined: false,
            expects: false,
            outbox: Outbox::default(),
            beat: None,
            readable: false,
            writable: true,
            ended: false,
            window: 1000,
            may_send: 1000,
            may_receive,
            owed: 0,
        }
    }

    #[test]
    fn frame_without_credit_is_refused() {
        let cost = u32::try_from(HEAD_BYTES + 4).unwrap();
        let mut stream = stream(2 * cost, 3);
        let mut seen = 0;

        let result = stream.deliver(SliceId(1), 10, &mut |_| seen += 1);

        assert_eq!(seen, 2);
        assert_eq!(stream.owed, 2 * cost);
        assert!(result.unwrap_err().contains("has no credit"));
    }

    #[test]
    fn budget_ends_the_delivery() {
        let mut stream = stream(1000, 3);

        assert_eq!(stream.deliver(SliceId(1), 2, &mut |_| {}), Ok(2));
        assert!(stream.decoder.has_frame());
        assert_eq!(stream.deliver(SliceId(1), 2, &mut |_| {}), Ok(1));
    }
}
