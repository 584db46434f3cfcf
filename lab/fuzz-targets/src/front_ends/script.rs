//! What the guest does, from the input.

use super::HIGH;

/// The input, taken piece by piece; zeros when it is used up.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl Script<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Mostly in memory or near its ends.
    pub(crate) fn address(&mut self) -> u64 {
        let word = u64::from(self.word());
        if word & 0x8000 == 0 { word } else { HIGH + (word & 0x7fff) }
    }

    pub(crate) fn bytes(&mut self, most: u8) -> Vec<u8> {
        let count = self.byte() % most;
        (0..count).map(|_| self.byte()).collect()
    }
}
