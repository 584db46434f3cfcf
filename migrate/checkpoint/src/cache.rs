//! Chunks that were read a short time ago: whoever asks for one page asks for its neighbours next.

use std::sync::Arc;

/// Chunks that single pages were read from, and are kept: 32 MiB.
const CACHED: usize = 16;

/// A chunk: which checkpoint of the chain, which of its parts, which of that one's chunks.
pub(crate) type Key = (usize, usize, u32);

/// Chunks that were read last, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Cache(Vec<(Key, Arc<Vec<u8>>)>);

impl Cache {
    pub(crate) fn get(&mut self, key: Key) -> Option<Arc<Vec<u8>>> {
        let at = self.0.iter().position(|(cached, _)| *cached == key)?;
        let entry = self.0.remove(at);
        let pages = Arc::clone(&entry.1);
        self.0.push(entry);
        Some(pages)
    }

    pub(crate) fn put(&mut self, key: Key, pages: Arc<Vec<u8>>) {
        self.0.retain(|(cached, _)| *cached != key);
        if self.0.len() == CACHED {
            self.0.remove(0);
        }
        self.0.push((key, pages));
    }
}
