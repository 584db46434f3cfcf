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
pub(super) struct InFlight<T> {
    limits: Limits,
    lost: bool,
    last_tag: u64,
    bytes: u64,
    /// What is not under way any more, and whoever waits for it has not been told.
    leaving: usize,
    /// By tag, with the bytes that count against the limits.
    waiting: HashMap<u64, (u64, T)>,
}

impl<T> InFlight<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, lost: false, last_tag: 0, bytes: 0, leaving: 0, waiting: HashMap::new() }
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

    /// Counts it out; [`Self::told`] is to follow.
    pub(super) fn leave(&mut self, tag: u64) -> Option<T> {
        let (bytes, what) = self.waiting.remove(&tag)?;
        self.bytes -= bytes;
        self.leaving += 1;
        Some(what)
    }

    /// Those who waited for so much of what has left know. True when nothing is under way now.
    pub(super) fn told(&mut self, count: usize) -> bool {
        self.leaving -= count;
        self.count() == 0
    }

    /// How much is under way, with what has left and nobody knows of.
    pub(super) fn count(&self) -> usize {
        self.waiting.len() + self.leaving
    }

    /// The device is gone: gives all that is under way, and refuses everything from now on.
    /// [`Self::told`] is to follow.
    pub(super) fn lose(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.lost = true;
        self.bytes = 0;
        self.leaving += self.waiting.len();
        std::mem::take(&mut self.waiting).into_values().map(|(_, what)| what)
    }
}
