//! Chunks that were read a short time ago: whoever asks for one page asks for its neighbours next.

use std::ops::RangeInclusive;
use std::sync::Arc;

/// Chunks that were read from, and are kept: 32 MiB, or twice as many as there are parts, each of which may have some of what is
/// read next; 256 MiB at most.
const CACHED: RangeInclusive<usize> = 16..=128;

/// A chunk: which checkpoint of the chain, which of its parts, which of that one's chunks.
pub(crate) type Key = (usize, usize, u32);

/// Chunks that were read last, the latest last.
#[derive(Debug)]
pub(crate) struct Cache {
    chunks: Vec<(Key, Arc<Vec<u8>>)>,
    most: usize,
}

impl Cache {
    /// Of a chain with so many parts.
    pub(crate) fn new(parts: usize) -> Self {
        Self { chunks: Vec::new(), most: (2 * parts).clamp(*CACHED.start(), *CACHED.end()) }
    }

    pub(crate) fn get(&mut self, key: Key) -> Option<Arc<Vec<u8>>> {
        let at = self.chunks.iter().position(|(cached, _)| *cached == key)?;
        let entry = self.chunks.remove(at);
        let pages = Arc::clone(&entry.1);
        self.chunks.push(entry);
        Some(pages)
    }

    pub(crate) fn put(&mut self, key: Key, pages: Arc<Vec<u8>>) {
        self.chunks.retain(|(cached, _)| *cached != key);
        if self.chunks.len() == self.most {
            self.chunks.remove(0);
        }
        self.chunks.push((key, pages));
    }
}
