//! Slices that have joined a VM after its start, and where they are: a host whose slice has left has another one then.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By the number of a slice that has joined, the slice of the start whose host it has.
#[derive(Debug, Default)]
pub(crate) struct Joined(Mutex<BTreeMap<usize, usize>>);

impl Joined {
    /// Of a VM that nobody joins.
    pub(crate) fn nobody() -> &'static Self {
        static NOBODY: Joined = Joined(Mutex::new(BTreeMap::new()));
        &NOBODY
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another VM begins.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// A slice has joined, on the host of this one.
    pub(crate) fn note(&self, slice: usize, host: usize) {
        self.lock().insert(slice, host);
    }

    /// The slice of the start whose host a slice has.
    pub(crate) fn host(&self, slice: usize) -> usize {
        self.lock().get(&slice).copied().unwrap_or(slice)
    }

    /// A number above those of all slices of a VM that began with so many.
    pub(crate) fn bound(&self, slices: usize) -> usize {
        self.lock().last_key_value().map_or(slices, |(last, _)| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_that_has_joined_is_on_the_host_of_another_one() {
        let joined = Joined::default();
        assert_eq!((joined.host(1), joined.bound(2)), (1, 2));
        joined.note(2, 1);
        assert_eq!((joined.host(0), joined.host(2), joined.bound(2)), (0, 1, 3));
        joined.clear();
        assert_eq!(joined.bound(2), 2);
        assert_eq!(Joined::nobody().host(3), 3);
    }
}
