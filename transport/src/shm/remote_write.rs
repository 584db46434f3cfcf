//! Pages that go straight from one slice's memory file into another's on the same machine.
//!
//! ```text
//!   expose --(the memory file, over the life socket)--> peer: checks it, and may write pages into it
//!   remote write --(one write of all pages into the peer's file)--> their frame, through the ring
//! ```
//!
//! A write into the file needs no mapping of it, and neither fault nor zeros where the file has no page yet.
//! Nothing that the peer does to its file can hurt the writer: the write fails, and the pages go as bytes.
#![expect(unsafe_code, reason = "pages are written from where they lie")]
// UNSAFETY: guest memory is reached by pointers, never by references; the kernel reads it.

use super::ring::sealed_size;
use crate::memory::PageMemory;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr::with_exposed_provenance;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Announces the memory file.
const MEMORY_FILE: u8 = b'g';
const PAGE: u64 = 4096;
/// The size of an exposed file can never change.
const FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// The memory files that two slices expose to each other.
#[derive(Debug, Default)]
pub(super) struct SharedFiles {
    own: Option<PageMemory>,
    /// The peer's memory file, and its bytes.
    peer: Option<(File, u64)>,
}

impl SharedFiles {
    /// Offers our memory. False if it lies in no file that could be offered, or was offered before.
    pub(super) fn expose(&mut self, memory: &PageMemory, life: &UnixStream) -> io::Result<bool> {
        let Some(file) = memory.file().filter(|_| self.own.is_none()) else { return Ok(false) };
        life.send_with_fd(&[MEMORY_FILE][..], file.as_raw_fd()).map_err(io::Error::from)?;
        self.own = Some(memory.clone());
        Ok(true)
    }

    /// Takes in what came over the life socket: the peer's memory file, once. Says what is wrong.
    pub(super) fn take_in(&mut self, mark: u8, file: Option<File>) -> Result<(), &'static str> {
        let file = file.filter(|_| mark == MEMORY_FILE && self.peer.is_none());
        let file = file.ok_or("sent bytes where only its end was expected")?;
        // A file in memory: writes to it do not wait for a disk.
        let size = sealed_size(&file, FIXED).ok().flatten();
        let size = size.ok_or("exposed memory that can change its size")?;
        self.peer = Some((file, size));
        Ok(())
    }

    /// The peer is gone: an open file would keep all its memory.
    pub(super) fn let_go(&mut self) {
        self.peer = None;
    }

    /// Whether pages can be written into the peer's memory: both have the same.
    pub(super) fn has_remote_write(&self) -> bool {
        let bytes = |own: &PageMemory| u64::try_from(own.bytes()).ok();
        let own = self.own.as_ref().and_then(bytes);
        own.is_some() && own == self.peer.as_ref().map(|(_, size)| *size)
    }

    /// Writes pages into the peer's memory. False if that cannot be.
    pub(super) fn remote_write(&self, offset: u64, pages: u16) -> bool {
        let (Some(own), Some((file, size))) = (&self.own, &self.peer) else { return false };
        let bytes = u64::from(pages) * PAGE;
        let end = offset.checked_add(bytes).filter(|end| self.has_remote_write() && end <= size);
        if end.is_none() || !offset.is_multiple_of(PAGE) {
            return false;
        }
        let (Ok(at), Ok(bytes)) = (usize::try_from(offset), usize::try_from(bytes)) else {
            return false;
        };
        write_all(file, own.start() + at, bytes, offset)
    }
}

/// Writes memory of this process to a file.
fn write_all(file: &File, start: usize, bytes: usize, offset: u64) -> bool {
    let mut done = 0;
    while done < bytes {
        let from = with_exposed_provenance(start + done);
        let Ok(to) = libc::off_t::try_from(offset) else { return false };
        let Ok(ahead) = libc::off_t::try_from(done) else { return false };
        // SAFETY: the range lies in our exposed memory, which stays mapped as long as `own` is kept; the
        // kernel copies bytes that nobody changes meanwhile, and would cope if somebody did.
        let count = unsafe { libc::pwrite(file.as_raw_fd(), from, bytes - done, to + ahead) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => done += count,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::testing::{PAGE, PAGES, file, fill_page, memory, memory_in, page_of};
    use crate::traits::{Class, Event, SendError, Transport};
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};
    use wire::SliceId;

    const A: SliceId = SliceId(0);
    const B: SliceId = SliceId(1);

    fn pair() -> [crate::ShmTransport; 2] {
        crate::shm::mesh(2, &Config::default()).unwrap().try_into().unwrap()
    }

    /// Polls until there is something to say of the peer's memory.
    fn settle(end: &mut crate::ShmTransport) -> Option<String> {
        let (limit, mut lost) = (Instant::now() + Duration::from_secs(30), None);
        while Instant::now() < limit
            && lost.is_none()
            && !end.has_remote_write(A)
            && !end.has_remote_write(B)
        {
            end.poll(4, &mut |event| {
                if let Event::Lost { cause, .. } = event {
                    lost = Some(cause);
                }
            });
        }
        lost
    }

    #[test]
    fn pages_are_in_the_peers_memory_before_their_frame() {
        let [mut a, mut b] = pair();
        let exposed = [memory(), memory()];
        assert!(a.expose(&exposed[0]) && !a.has_remote_write(B) && b.expose(&exposed[1]));
        assert_eq!((settle(&mut a), settle(&mut b)), (None, None));
        assert!(a.has_remote_write(B) && b.has_remote_write(A) && !a.has_remote_write(A));
        for page in 0..8 {
            fill_page(&exposed[0], page, u8::try_from(page + 1).unwrap());
        }

        a.remote_write(B, Class::Coherence, b"five", u64::try_from(2 * PAGE).unwrap(), 5).unwrap();
        let mut seen = Vec::new();
        while seen.is_empty() {
            b.poll(4, &mut |event| {
                if let Event::Frame { bytes, .. } = event {
                    seen = bytes.to_vec();
                }
            });
        }

        assert_eq!(seen, b"five");
        let pages: Vec<u8> = (0..8).map(|page| page_of(&exposed[1], page)).collect();
        assert_eq!(pages, [0, 0, 3, 4, 5, 6, 7, 0]);
        let end = u64::try_from(PAGES * PAGE).unwrap();
        for (offset, pages) in [(end, 1), (end - 4096, 2), (5, 1), (u64::MAX - 4095, 1)] {
            let refused = a.remote_write(B, Class::Coherence, b"no", offset, pages);
            assert_eq!(refused, Err(SendError::Full), "{pages} pages at {offset}");
        }
    }

    #[test]
    fn memory_is_exposed_once_and_only_if_it_is_in_a_file() {
        let [mut a, _b] = pair();
        let exposed = memory();
        // SAFETY: the memory is that of `exposed`, which is never unmapped.
        let no_file =
            unsafe { PageMemory::new(exposed.start(), exposed.bytes(), std::sync::Arc::new(())) };
        assert!(!a.expose(&no_file) && a.expose(&exposed) && !a.expose(&exposed));
    }

    /// How often this process has a file open.
    fn opened(file: &File) -> usize {
        let inode = file.metadata().unwrap().ino();
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| std::fs::metadata(path).is_ok_and(|it| it.ino() == inode)).count()
    }

    #[test]
    fn memory_of_a_peer_that_is_gone_is_let_go_of() {
        let [mut a, mut b] = pair();
        let theirs = file(PAGES * PAGE, FIXED);
        let theirs_mapped = memory_in(&theirs);
        let before = opened(&theirs);
        assert!(a.expose(&memory()) && b.expose(&theirs_mapped));
        assert_eq!(settle(&mut a), None);
        assert_eq!((a.has_remote_write(B), opened(&theirs)), (true, before + 1));
        drop(b);
        let mut is_lost = false;
        while !is_lost {
            a.poll(4, &mut |event| is_lost |= matches!(event, Event::Lost { .. }));
        }
        assert_eq!((a.has_remote_write(B), opened(&theirs)), (false, before));
    }

    #[test]
    fn memory_of_another_size_is_not_written_to() {
        let [mut a, mut b] = pair();
        let other = memory_in(&file((PAGES + 1) * PAGE, FIXED));
        assert!(a.expose(&memory()) && b.expose(&other));
        for _ in 0..1000 {
            a.poll(4, &mut |event| panic!("{event:?}"));
        }
        assert!(!a.has_remote_write(B));
        assert_eq!(a.remote_write(B, Class::Coherence, b"no", 0, 1), Err(SendError::Full));
    }

    #[test]
    fn memory_that_can_shrink_ends_the_peer() {
        let [mut a, mut b] = pair();
        assert!(b.expose(&memory_in(&file(PAGES * PAGE, libc::F_SEAL_GROW))));
        let cause = settle(&mut a).expect("a loss");
        assert!(cause.contains("can change its size"), "{cause}");
    }
}
