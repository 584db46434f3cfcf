//! What of the memory file was made ready at the start.

use crate::kernel::HUGE;

/// What was made ready.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// For each 2 MiB of the file, whether it is a huge page.
    huge: Vec<bool>,
}

impl Prepared {
    /// For each 2 MiB of the file, whether it is a huge page.
    pub(super) fn new(huge: Vec<bool>) -> Self {
        Self { huge }
    }

    /// True for a chunk at this offset that has been a huge page from the start.
    pub(super) fn is_huge(&self, offset: usize) -> bool {
        self.huge.get(offset / HUGE) == Some(&true)
    }
}
