//! What is done to the VM as a whole: one thing at a time.
//!
//! ```text
//!   nothing --begin--> an operation --what was returned is dropped--> nothing
//!                        \--begin--> Busy: refused
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// Something else goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(super) struct Busy(pub(super) Operation);

/// What may go on. A cut saves nothing on its way, hence none begins while parts move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Operation {
    /// All slices are at rest, come to rest, or go on.
    #[error("the VM is paused, or about to be")]
    Cut,
    /// Parts of the VM go to other slices.
    #[error("parts of the VM are being moved")]
    Move,
    /// All slices write down what they have.
    #[error("a checkpoint of the VM is written")]
    Checkpoint,
    /// The guest is asked about vCPUs.
    #[error("the guest is being told of vCPUs, or asked for them")]
    Hotplug,
}

/// What goes on. Of the coordinator, which begins all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<Option<Operation>>>);

impl Operations {
    fn lock(&self) -> MutexGuard<'_, Option<Operation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes on now.
    pub(super) fn current(&self) -> Option<Operation> {
        *self.lock()
    }

    /// Whether one could begin now.
    pub(super) fn idle(&self) -> Result<(), Busy> {
        self.current().map_or(Ok(()), |other| Err(Busy(other)))
    }

    /// Begins one. It goes on until what is returned is dropped.
    pub(super) fn begin(&self, operation: Operation) -> Result<Ongoing, Busy> {
        let mut current = self.lock();
        match *current {
            Some(other) => Err(Busy(other)),
            None => {
                *current = Some(operation);
                Ok(Ongoing(self.clone()))
            }
        }
    }
}

/// An operation that goes on.
#[derive(Debug)]
pub(super) struct Ongoing(Operations);

impl Drop for Ongoing {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_operation_at_a_time() {
        let operations = Operations::default();
        let cut = operations.begin(Operation::Cut).unwrap();
        assert_eq!(operations.begin(Operation::Move).unwrap_err(), Busy(Operation::Cut));
        assert_eq!(operations.idle(), Err(Busy(Operation::Cut)));
        drop(cut);
        let _one = operations.begin(Operation::Move).unwrap();
        assert_eq!(operations.begin(Operation::Move).unwrap_err(), Busy(Operation::Move));
    }
}
