//! Has a file written to stable storage while more of it is made.
//!
//! Else the kernel begins when much of its memory is dirty, or at the end, and the disk is idle until then.
//!
//! ```text
//!   writer: write, write, told(bytes) --every 8 MiB, unless it is busy--> thread: fdatasync
//!           end: waits for the thread, and hears how it went
//! ```
//! The kernel tells of a failed write once for each open file, so what the thread hears is kept for the end.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};

/// So many bytes are written before they are flushed.
const EACH: u64 = 8 << 20;

/// Flushes one file. Dropping this ends its thread sooner or later, which may hang in a file system and is not waited for.
#[derive(Debug)]
pub(crate) struct Flusher {
    /// Of a thread that waits, or is busy and has one more to do.
    bell: SyncSender<()>,
    thread: JoinHandle<io::Result<()>>,
    /// Bytes since it was rung last.
    since: u64,
}

impl Flusher {
    /// For this file.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub(crate) fn start(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        let (bell, rung) = sync_channel(1);
        let flush = move || rung.iter().try_for_each(|()| file.sync_data());
        let thread = Builder::new().name("checkpoint-flush".into()).spawn(flush)?;
        Ok(Self { bell, thread, since: 0 })
    }

    /// So many bytes more are in the file. Once a flush has failed it does nothing: the end will tell.
    pub(crate) fn written(&mut self, bytes: u64) {
        self.since += bytes;
        if self.since < EACH {
            return;
        }
        match self.bell.try_send(()) {
            Ok(()) | Err(TrySendError::Disconnected(())) => self.since = 0,
            Err(TrySendError::Full(())) => {}
        }
    }

    /// Waits for what is under way.
    ///
    /// # Errors
    /// A flush has failed: nobody knows which bytes are on the disk.
    pub(crate) fn end(self) -> io::Result<()> {
        drop(self.bell);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// What cannot be flushed: fdatasync of a pipe fails with EINVAL (fsync(2)).
    #[test]
    fn failure_of_a_flush_is_told_at_the_end() {
        let (_reader, writer) = io::pipe().unwrap();
        let file = File::from(OwnedFd::from(writer));
        let mut flusher = Flusher::start(&file).unwrap();
        flusher.written(EACH - 1);
        flusher.written(1);
        assert_eq!(flusher.end().unwrap_err().raw_os_error(), Some(libc::EINVAL));

        let mut flusher = Flusher::start(&file).unwrap();
        flusher.written(EACH - 1);
        flusher.end().unwrap();
    }
}
