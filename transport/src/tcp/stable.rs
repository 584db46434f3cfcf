//! Pages that go into a stream from where they lie in the memory file, without a copy.
//!
//! ```text
//!   head --(send, "more follows")--> socket <--(sendfile: references to pages)-- memory file
//! ```
//!
//! What the peer gets is what the pages hold when it, or the adapter, reads them: later than the call. A segment that is sent again
//! after that is one that the peer has, and its TCP drops it.

use crate::carrier::is_later;
use crate::memory::PageMemory;
use rustix::fs::sendfile;
use rustix::net::{SendFlags, send};
use std::fs::File;
use std::io::{self, IoSlice};
use std::net::TcpStream;

/// Less than this is copied: one call for head and pages costs less than two.
const BYTES_MIN: usize = 32 * 1024;
/// Room for the heads of a frame.
const HEAD_MAX: usize = 128;

/// The memory that pages are sent from, if any was exposed.
#[derive(Debug, Default)]
pub(super) struct StablePages {
    memory: Option<PageMemory>,
}

impl StablePages {
    pub(super) fn expose(&mut self, memory: &PageMemory) {
        self.memory = Some(memory.clone());
    }

    /// Writes the parts of a frame, of which the last is pages of the memory. None where that cannot be done so: nothing was written.
    ///
    /// Of pages that the socket has no room for, and after an error, fewer bytes are written; what comes next tells of the
    /// error again.
    pub(super) fn write(
        &mut self,
        stream: &TcpStream,
        parts: &[IoSlice<'_>],
    ) -> Option<io::Result<usize>> {
        let (pages, heads) = parts.split_last().filter(|(pages, _)| pages.len() >= BYTES_MIN)?;
        let (file, mut offset) = self.file_offset(pages)?;
        let mut head = [0; HEAD_MAX];
        let mut length = 0;
        for part in heads {
            head.get_mut(length..length + part.len())?.copy_from_slice(part);
            length += part.len();
        }
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        let mut done = match send(stream, &head[..length], flags) {
            Ok(count) => count,
            Err(error) => return Some(Err(error.into())),
        };
        while (length..length + pages.len()).contains(&done) {
            match sendfile(stream, file, Some(&mut offset), length + pages.len() - done) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => {
                    // Not tried again if the file cannot be sent from; its pages are copied. If the stream has ended, so does the peer.
                    if !is_later(&error.into()) {
                        self.memory = None;
                    }
                    break;
                }
            }
        }
        Some(Ok(done))
    }

    /// Where in the memory file the pages lie.
    fn file_offset(&self, pages: &[u8]) -> Option<(&File, u64)> {
        let memory = self.memory.as_ref()?;
        let offset = pages.as_ptr().addr().checked_sub(memory.start())?;
        let end = offset.checked_add(pages.len())?;
        (end <= memory.bytes()).then_some(())?;
        Some((memory.file()?, u64::try_from(offset).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::loopback;
    use crate::testing::{PAGE, PAGES, bytes_of, fill_page, memory};
    use std::io::{ErrorKind, Read};

    fn exposed() -> (StablePages, PageMemory) {
        let (mut stable, memory) = (StablePages::default(), memory());
        stable.expose(&memory);
        (stable, memory)
    }

    fn parts<'a>(head: [&'a [u8]; 2], pages: &'a [u8]) -> [IoSlice<'a>; 3] {
        [head[0], head[1], pages].map(IoSlice::new)
    }

    #[test]
    fn pages_go_by_reference() {
        let (mut stable, memory) = exposed();
        let (near, mut far) = loopback().unwrap();
        (0..PAGES).for_each(|page| fill_page(&memory, page, 1));
        let pages = bytes_of(&memory, 3 * PAGE, 16 * PAGE);
        let written = stable.write(&near, &parts([b"ab", b"cde"], pages)).unwrap().unwrap();
        assert_eq!(written, 5 + 16 * PAGE);
        // Nobody may do this. That it arrives shows that nothing was copied.
        fill_page(&memory, 7, 2);
        let mut came = vec![0; written];
        far.read_exact(&mut came).unwrap();
        assert_eq!(&came[..5], b"abcde");
        let expected: Vec<u8> = (3..19).flat_map(|page| [1 + u8::from(page == 7); PAGE]).collect();
        assert!(came[5..] == expected);
    }

    #[test]
    fn what_cannot_go_by_reference_is_left_alone() {
        let (mut stable, memory) = exposed();
        let (near, mut far) = loopback().unwrap();
        far.set_nonblocking(true).unwrap();
        let elsewhere = vec![0; 16 * PAGE];
        assert!(stable.write(&near, &parts([b"a", b"b"], &elsewhere)).is_none(), "other memory");
        let few = bytes_of(&memory, 0, 7 * PAGE);
        assert!(stable.write(&near, &parts([b"a", b"b"], few)).is_none(), "few pages");
        let pages = bytes_of(&memory, 0, 16 * PAGE);
        assert!(
            stable.write(&near, &parts([&[0; HEAD_MAX], b"b"], pages)).is_none(),
            "a long head"
        );
        assert!(
            StablePages::default().write(&near, &parts([b"a", b"b"], pages)).is_none(),
            "nothing was exposed"
        );
        assert_eq!(
            far.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "nothing was sent"
        );
    }

    #[test]
    fn full_socket_takes_a_part() {
        let (mut stable, memory) = exposed();
        let (near, mut far) = loopback().unwrap();
        near.set_nonblocking(true).unwrap();
        let pages = bytes_of(&memory, 0, PAGES * PAGE);
        let mut written = 0;
        let last = loop {
            match stable.write(&near, &parts([b"a", b"b"], pages)).unwrap() {
                Ok(count) => written += count,
                Err(error) => break error,
            }
            assert!(written < 1 << 30, "it is never full");
        };
        assert_eq!(last.kind(), ErrorKind::WouldBlock);
        assert!(stable.memory.is_some(), "a full socket says nothing of the file");
        drop(near);
        let mut came = Vec::new();
        far.read_to_end(&mut came).unwrap();
        assert_eq!(came.len(), written);
    }
}
