//! Lock-free byte rings in a shared memfd: one writer and one reader each.
//!
//! Each direction starts with a page of cursors, then one ring per class. `tail` counts the bytes
//! ever written, `head` the bytes ever read; their difference is what is inside. The peer is another
//! process and may be broken: each side keeps its own cursor in private memory too, believes the
//! peer's cursor only after checking it, and copies bytes out before looking at them.
//!
//! Sleeping and ringing is the usual pair of flag and fence:
//!
//! ```text
//!  reader: armed = 1; fence; look at tails        writer: publish tail; fence; armed? ring
//!  writer: wants = 1; fence; look at head         reader: publish head; fence; wants? ring
//! ```
//!
//! With both fences at least one of the two sees the other, so no wake-up is lost.
#![expect(unsafe_code, reason = "memory shared with another process is reached by pointers")]
// UNSAFETY: mapping a memfd and touching memory that another process writes cannot be expressed by
// references to plain bytes; all of it is in this module, behind bounds-checked functions.

use crate::traits::Class;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of one ring, a power of two, more than one largest frame.
const RING_BYTES: usize = 256 * 1024;
const HEADER_BYTES: usize = 4096;
const CLASSES: usize = Class::COUNT;
const DIRECTION_BYTES: usize = HEADER_BYTES + CLASSES * RING_BYTES;
/// Bytes of the whole region.
pub(super) const REGION_BYTES: usize = 2 * DIRECTION_BYTES;
const CLASS_STRIDE: usize = 256;
const HEAD_OFFSET: usize = 64;
const WANTS_OFFSET: usize = 128;
const ARMED_OFFSET: usize = 1024;
const _: () = assert!(RING_BYTES.is_power_of_two());
const _: () = assert!(CLASSES * CLASS_STRIDE <= ARMED_OFFSET);

/// Which of the two processes writes a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    First,
    Second,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    fn base(self) -> usize {
        match self {
            Self::First => 0,
            Self::Second => DIRECTION_BYTES,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

/// What an operation moved, and whether the other side waits for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) count: usize,
    pub(super) ring: bool,
}

/// A mapped region, with our own cursors by direction and class.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    /// Bytes we wrote, or read, of each ring. A side uses a direction one way only.
    cursors: [[u64; CLASSES]; 2],
}

// SAFETY: the mapping belongs to this value alone, is not tied to a thread, and every access goes
// through `&mut self` or atomics.
unsafe impl Send for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` is what `mmap` gave for exactly this length, and nothing borrows from it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), REGION_BYTES) };
    }
}

/// A fresh region file whose size can never change again.
pub(super) fn create() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string that outlives the call.
    let fd = unsafe { libc::memfd_create(c"tessera-rings".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(u64::try_from(REGION_BYTES).expect("a small constant"))?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes no pointer.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// A doorbell: a non-blocking eventfd.
pub(super) fn doorbell() -> io::Result<File> {
    // SAFETY: the call takes no pointer.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Makes a descriptor from a peer non-blocking: a doorbell that blocks would stop its ringer.
pub(super) fn set_nonblocking(file: &File) -> io::Result<()> {
    // SAFETY: the call takes no pointer.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = flags | libc::O_NONBLOCK;
    // SAFETY: the call takes no pointer.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Bytes of a memory file from a peer, if it has all of these seals.
pub(super) fn sealed_size(file: &File, wanted: libc::c_int) -> io::Result<Option<u64>> {
    let size = file.metadata()?.len();
    // SAFETY: the call takes no pointer.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    Ok((seals >= 0 && seals & wanted == wanted).then_some(size))
}

/// Whether a file from a peer has the right size for ever: touching a shrunken one would kill us.
pub(super) fn is_sealed(file: &File) -> io::Result<bool> {
    let size = sealed_size(file, libc::F_SEAL_SHRINK)?;
    Ok(size.and_then(|size| usize::try_from(size).ok()) == Some(REGION_BYTES))
}

fn bad(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("broke the shared memory: {what}"))
}

impl Region {
    /// Maps a region file, which has [`REGION_BYTES`] bytes.
    pub(super) fn map(file: &File) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), REGION_BYTES, rights, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("a null mapping"))?;
        Ok(Self { start, cursors: [[0; CLASSES]; 2] })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < REGION_BYTES);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    fn cursor(&self, direction: Side, class: usize, offset: usize) -> &AtomicU64 {
        assert!(class < CLASSES);
        let at = self.at(direction.base() + class * CLASS_STRIDE + offset).cast::<AtomicU64>();
        // SAFETY: aligned (mmap gives pages, the offsets are multiples of 64), inside the mapping,
        // alive as long as `self`, and both processes touch it by atomics only.
        unsafe { &*at }
    }

    fn flag(&self, direction: Side, offset: usize) -> &AtomicU32 {
        let at = self.at(direction.base() + offset).cast::<AtomicU32>();
        // SAFETY: as in `cursor`.
        unsafe { &*at }
    }

    fn tail(&self, direction: Side, class: usize) -> &AtomicU64 {
        self.cursor(direction, class, 0)
    }

    fn head(&self, direction: Side, class: usize) -> &AtomicU64 {
        self.cursor(direction, class, HEAD_OFFSET)
    }

    fn wants(&self, direction: Side, class: usize) -> &AtomicU32 {
        self.flag(direction, class * CLASS_STRIDE + WANTS_OFFSET)
    }

    fn armed(&self, direction: Side) -> &AtomicU32 {
        self.flag(direction, ARMED_OFFSET)
    }

    /// The two stretches of a ring that `count` bytes from `position` cover.
    fn stretches(
        direction: Side,
        class: usize,
        position: u64,
        count: usize,
    ) -> [(usize, usize); 2] {
        let mask = u64::try_from(RING_BYTES - 1).expect("a small constant");
        let from = usize::try_from(position & mask).expect("the mask bounds it");
        let base = direction.base() + HEADER_BYTES + class * RING_BYTES;
        let first = count.min(RING_BYTES - from);
        [(base + from, first), (base, count - first)]
    }

    fn span(tail: u64, head: u64) -> io::Result<usize> {
        let span = usize::try_from(tail.wrapping_sub(head)).unwrap_or(usize::MAX);
        if span > RING_BYTES { Err(bad("a cursor is out of range")) } else { Ok(span) }
    }

    /// Free bytes of a ring that we write.
    fn room(&self, direction: Side, class: usize) -> io::Result<usize> {
        let tail = self.cursors[direction.index()][class];
        let head = self.head(direction, class).load(Ordering::Acquire);
        Ok(RING_BYTES - Self::span(tail, head)?)
    }

    /// Bytes inside a ring that we read.
    fn held(&self, direction: Side, class: usize) -> io::Result<usize> {
        let head = self.cursors[direction.index()][class];
        let tail = self.tail(direction, class).load(Ordering::Acquire);
        Self::span(tail, head)
    }

    /// Writes what fits.
    pub(super) fn write(
        &mut self,
        direction: Side,
        class: usize,
        parts: &[IoSlice<'_>],
    ) -> io::Result<Moved> {
        let mut room = self.room(direction, class)?;
        let mut count = 0;
        let mut position = self.cursors[direction.index()][class];
        for part in parts {
            let size = part.len().min(room);
            let mut done = 0;
            for (offset, length) in Self::stretches(direction, class, position, size) {
                let to = if length == 0 { continue } else { self.at(offset) };
                let from = part[done..done + length].as_ptr();
                // SAFETY: `from` covers `length` bytes by the slice above; `to` does by
                // `stretches`, which stays inside this ring; private and shared memory are apart.
                unsafe { ptr::copy_nonoverlapping(from, to, length) };
                done += length;
            }
            room -= size;
            count += size;
            position += u64::try_from(size).expect("a length fits u64");
        }
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.cursors[direction.index()][class] = position;
        self.tail(direction, class).store(position, Ordering::Release);
        fence(Ordering::SeqCst);
        Ok(Moved { count, ring: take(self.armed(direction)) })
    }

    /// Reads what is there.
    pub(super) fn read(
        &mut self,
        direction: Side,
        class: usize,
        into: &mut [u8],
    ) -> io::Result<Moved> {
        let count = self.held(direction, class)?.min(into.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let position = self.cursors[direction.index()][class];
        let mut done = 0;
        for (offset, length) in Self::stretches(direction, class, position, count) {
            let from = if length == 0 { continue } else { self.at(offset) };
            let to = into[done..done + length].as_mut_ptr();
            // SAFETY: as in `write`. A broken peer may change the bytes meanwhile; they are plain
            // bytes of any value, checked only after this copy.
            unsafe { ptr::copy_nonoverlapping(from, to, length) };
            done += length;
        }
        let position = position + u64::try_from(count).expect("a length fits u64");
        self.cursors[direction.index()][class] = position;
        self.head(direction, class).store(position, Ordering::Release);
        fence(Ordering::SeqCst);
        Ok(Moved { count, ring: take(self.wants(direction, class)) })
    }

    /// Says whether the writer wants to be rung for room. Returns whether there is room already.
    pub(super) fn want_room(
        &mut self,
        direction: Side,
        class: usize,
        on: bool,
    ) -> io::Result<bool> {
        self.wants(direction, class).store(u32::from(on), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(on && self.room(direction, class)? > 0)
    }

    /// Says that the reader wants to be rung for bytes. Returns whether there are bytes already,
    /// or something that must be looked at.
    pub(super) fn arm(&mut self, direction: Side) -> bool {
        self.armed(direction).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (0..CLASSES).any(|class| !matches!(self.held(direction, class), Ok(0)))
    }
}

/// Takes a wish: true for one taker.
fn take(flag: &AtomicU32) -> bool {
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::thread;

    fn both() -> (Region, Region) {
        let file = create().unwrap();
        (Region::map(&file).unwrap(), Region::map(&file).unwrap())
    }

    fn bytes(from: usize, count: usize) -> Vec<u8> {
        (from..from + count).map(|n| u8::try_from(n % 251).unwrap()).collect()
    }

    #[test]
    fn ring_between_two_threads_keeps_every_byte() {
        let (mut writer, mut reader) = both();
        let total = 3 * RING_BYTES + 17;
        let sent = bytes(0, total);
        let source = sent.clone();

        let thread = thread::spawn(move || {
            let mut done = 0;
            while done < source.len() {
                let end = (done + 7001).min(source.len());
                match writer.write(Side::First, 1, &[IoSlice::new(&source[done..end])]) {
                    Ok(moved) => done += moved.count,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        let mut seen = Vec::new();
        let mut part = vec![0; 5003];
        while seen.len() < total {
            match reader.read(Side::First, 1, &mut part) {
                Ok(moved) => seen.extend_from_slice(&part[..moved.count]),
                Err(_) => thread::yield_now(),
            }
        }
        thread.join().unwrap();

        assert!(seen == sent);
    }

    #[test]
    fn full_ring_would_block_and_room_is_announced() {
        let (mut writer, mut reader) = both();
        let block = vec![1; RING_BYTES];
        assert_eq!(
            writer.write(Side::Second, 2, &[IoSlice::new(&block)]).unwrap().count,
            RING_BYTES
        );

        let error = writer.write(Side::Second, 2, &[IoSlice::new(&[1])]).unwrap_err();
        let room_now = writer.want_room(Side::Second, 2, true).unwrap();
        let moved = reader.read(Side::Second, 2, &mut [0; 10]).unwrap();

        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(!room_now);
        assert!(moved.ring);
    }

    #[test]
    fn region_file_cannot_shrink() {
        let file = create().unwrap();

        assert!(is_sealed(&file).unwrap());
        assert!(file.set_len(0).is_err());
    }

    proptest! {
        #[test]
        fn broken_cursor_of_the_peer_is_an_error_not_a_panic(value in 1u64..) {
            let (mut ours, theirs) = both();
            theirs.tail(Side::First, 0).store(value, Ordering::Release);
            theirs.head(Side::Second, 0).store(value, Ordering::Release);

            let read = ours.read(Side::First, 0, &mut [0; 64]);
            let write = ours.write(Side::Second, 0, &[IoSlice::new(&[1])]);

            prop_assert!(read.is_ok() || value > u64::try_from(RING_BYTES).unwrap());
            prop_assert!(write.is_err());
        }
    }
}
