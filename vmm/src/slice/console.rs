//! The guest's console on the way to the user, watched for a kernel panic.
//!
//! A stock guest without a pvpanic driver tells of its panic only here, and then resets.

use std::io::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PANIC: &[u8] = b"Kernel panic - not syncing";

/// Writes through and remembers whether a panic went by.
#[derive(Debug)]
pub(crate) struct PanicWatch<W> {
    inner: W,
    seen: Arc<AtomicBool>,
    matched: usize,
}

impl<W: Write> PanicWatch<W> {
    pub(crate) fn new(inner: W, seen: Arc<AtomicBool>) -> Self {
        Self { inner, seen, matched: 0 }
    }
}

impl<W: Write> Write for PanicWatch<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        for byte in bytes {
            // The text has no proper prefix that is also a suffix, except its first letter.
            self.matched = match *byte {
                byte if byte == PANIC[self.matched] => self.matched + 1,
                byte => usize::from(byte == PANIC[0]),
            };
            if self.matched == PANIC.len() {
                self.seen.store(true, Ordering::Relaxed);
                self.matched = 0;
            }
        }
        self.inner.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_with_panic_in_pieces_is_seen() {
        let seen = Arc::new(AtomicBool::new(false));
        let mut watch = PanicWatch::new(Vec::new(), Arc::clone(&seen));

        watch.write_all(b"[1.0] KKernel pan").unwrap();
        assert!(!seen.load(Ordering::Relaxed));
        watch.write_all(b"ic - not syncing: VFS").unwrap();

        assert!(seen.load(Ordering::Relaxed));
        assert_eq!(watch.inner, b"[1.0] KKernel panic - not syncing: VFS");
    }
}
