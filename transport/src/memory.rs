//! Memory that a slice exposes to its peers, for remote writes from and into it.
#![expect(unsafe_code, reason = "whoever exposes memory vouches for it")]
// UNSAFETY: nothing here touches the memory; adapters do, once it is registered.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// A mapping of this slice's pages, and what keeps it mapped.
#[derive(Clone)]
pub struct PageMemory {
    start: usize,
    bytes: usize,
    file: Option<Arc<File>>,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl PageMemory {
    /// The mapping of so many bytes at an address.
    ///
    /// # Safety
    /// While `keep` lives, the range stays mapped, readable and writable, to the same file, and no page of
    /// it is ever given back to the kernel or replaced (no hole is punched): an adapter would go on with
    /// the old page. The bytes may change at any time, so they are reached by pointers only.
    #[must_use]
    pub unsafe fn new(start: usize, bytes: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { start, bytes, file: None, _keep: keep }
    }

    /// Names the memory file that is mapped, from its first byte on: slices of the same machine may write
    /// pages into it. Its size must be sealed.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn in_file(self, file: &File) -> io::Result<Self> {
        Ok(Self { file: Some(Arc::new(file.try_clone()?)), ..self })
    }

    /// The memory file, if one was named.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// Its first address.
    #[must_use]
    pub fn start(&self) -> usize {
        self.start
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for PageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, bytes, .. } = self;
        f.debug_struct("PageMemory").field("start", start).field("bytes", bytes).finish()
    }
}
