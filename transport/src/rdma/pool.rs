//! The pool of slots that messages lie in, pinned for one peer.
#![expect(unsafe_code, reason = "a mapping of its own")]
// UNSAFETY: the mapping is reached by pointers; `verbs` says who touches which slot when.

use super::lane::SPARE;
use crate::traits::Class;
use std::io::{self, ErrorKind};
use std::ptr::{self, NonNull};

/// Slots of each class, and so messages under way.
pub(super) const SLOTS: [u16; Class::COUNT] = [64, 128, 128, 32];
/// Bytes of a slot of each class. A page with its head fits one of the second and third.
pub(super) const SLOT_BYTES: [usize; Class::COUNT] = [1024, 8192, 8192, 16384];
/// Where the slots of a class start in the pool: those to receive into, then those to send from.
fn start_of(class: usize) -> usize {
    let before = (0..class).map(|class| slots(class) * SLOT_BYTES[class]);
    before.sum()
}

/// Slots of both directions.
fn slots(class: usize) -> usize {
    usize::from(received(class)) + usize::from(SLOTS[class])
}

/// Slots to receive into.
pub(super) fn received(class: usize) -> u16 {
    SLOTS[class] + SPARE
}

/// Pinned memory of one peer.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

impl Pool {
    pub(super) fn map() -> io::Result<Self> {
        let bytes = start_of(SLOTS.len());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child process would otherwise turn pages that the adapter writes into copies of them.
        // SAFETY: the range is the mapping just made; the advice changes only what `fork` does.
        unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// A byte of a slot, with `count` bytes of the slot behind it; slots to send from follow those to
    /// receive into.
    pub(super) fn at(&self, class: usize, slot: usize, byte: usize, count: usize) -> NonNull<u8> {
        assert!(slot < slots(class), "slot {slot} of class {class}");
        assert!(byte + count <= SLOT_BYTES[class], "{count} bytes at {byte} of a slot");
        let offset = start_of(class) + slot * SLOT_BYTES[class] + byte;
        // SAFETY: the assertions keep the offset inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: `start` is what `mmap` gave for exactly this length, and nothing borrows from it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
