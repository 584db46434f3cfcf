//! Bytes that wait for room in one stream: one byte queue with the ends of the frames in it.
//!
//! Data is bounded by the credits of the stream and by a number of frames; control frames are
//! bounded because at most one may wait at a time.

use std::collections::VecDeque;
use std::io::IoSlice;

/// The send queue of one peer and class.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: VecDeque<u8>,
    /// Stream positions at which waiting data frames end.
    ends: VecDeque<u64>,
    /// Stream position of the first waiting byte.
    written: u64,
    /// Stream position of the end of the last control frame.
    control_end: u64,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Data frames that are not wholly written.
    pub(crate) fn frames(&self) -> usize {
        self.ends.len()
    }

    /// Whether no control frame waits.
    pub(crate) fn control_is_free(&self) -> bool {
        self.control_end <= self.written
    }

    fn end(&self) -> u64 {
        self.written + u64::try_from(self.bytes.len()).expect("a length fits u64")
    }

    /// Appends what is left of a data frame of which `skip` bytes were written already.
    pub(crate) fn push_data(&mut self, parts: &[&[u8]], mut skip: usize) {
        debug_assert!(skip == 0 || self.is_empty());
        self.written += u64::try_from(skip).expect("a length fits u64");
        for part in parts {
            let from = skip.min(part.len());
            self.bytes.extend(&part[from..]);
            skip -= from;
        }
        if !self.bytes.is_empty() {
            self.ends.push_back(self.end());
        }
    }

    pub(crate) fn push_control(&mut self, frame: &[u8]) {
        self.bytes.extend(frame);
        self.control_end = self.end();
    }

    /// What to write next, as the two halves of the ring.
    pub(crate) fn slices(&self) -> [IoSlice<'_>; 2] {
        let (first, second) = self.bytes.as_slices();
        [IoSlice::new(first), IoSlice::new(second)]
    }

    /// Says that the first `count` bytes of [`Self::slices`] were written.
    pub(crate) fn consume(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
        self.written += u64::try_from(count).expect("a length fits u64");
        while self.ends.front().is_some_and(|end| *end <= self.written) {
            self.ends.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_counts_frames_until_their_last_byte() {
        let mut outbox = Outbox::default();
        outbox.push_data(&[b"abc", b"defg"], 5);
        outbox.push_data(&[b"h"], 0);
        outbox.push_control(b"xy");

        let held: Vec<u8> = outbox.slices().iter().flat_map(|part| part.to_vec()).collect();
        assert_eq!(held, b"fghxy");
        assert_eq!(outbox.frames(), 2);
        outbox.consume(1);
        assert_eq!(outbox.frames(), 2);
        outbox.consume(1);
        assert_eq!(outbox.frames(), 1);
        assert!(!outbox.control_is_free());
        outbox.consume(3);
        assert_eq!(outbox.frames(), 0);
        assert!(outbox.control_is_free() && outbox.is_empty());
    }
}
