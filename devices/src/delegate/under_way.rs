//! What one slice has asked of a device of another and has no answer to.

use super::Limits;
use std::collections::HashMap;

/// Why something cannot go under way.
#[derive(Debug)]
pub(super) struct Refused<T> {
    pub(super) what: T,
    /// There is too much under way; else the device is lost, and that only.
    pub(super) full: bool,
}

/// Requests or messages under way, within the limits.
pub(super) struct UnderWay<T> {
    limits: Limits,
    lost: bool,
    last_tag: u64,
    bytes: u64,
    /// By tag, with the bytes that count against the limits.
    waiting: HashMap<u64, (u64, T)>,
}

impl<T> UnderWay<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, lost: false, last_tag: 0, bytes: 0, waiting: HashMap::new() }
    }

    /// Counts something in and gives it a tag, unless it is too much or the device is lost.
    pub(super) fn enter(&mut self, bytes: u64, what: T) -> Result<u64, Refused<T>> {
        let full = self.waiting.len() >= self.limits.requests as usize
            || self.bytes + bytes > self.limits.bytes;
        if self.lost || full {
            return Err(Refused { what, full });
        }
        self.last_tag += 1;
        self.bytes += bytes;
        self.waiting.insert(self.last_tag, (bytes, what));
        Ok(self.last_tag)
    }

    /// Counts it out.
    pub(super) fn leave(&mut self, tag: u64) -> Option<T> {
        let (bytes, what) = self.waiting.remove(&tag)?;
        self.bytes -= bytes;
        Some(what)
    }

    /// The device is gone: gives all that is under way, and refuses everything from now on.
    pub(super) fn lose(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.lost = true;
        self.bytes = 0;
        std::mem::take(&mut self.waiting).into_values().map(|(_, what)| what)
    }
}
