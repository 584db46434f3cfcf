//! How many requests are being answered: whoever ends waits for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A request is being answered until this is dropped.
#[derive(Debug)]
pub struct Answering(Arc<AtomicUsize>);

impl Answering {
    pub(super) fn begin(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
