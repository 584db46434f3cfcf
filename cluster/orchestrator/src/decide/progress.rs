//! What of an operation that goes on is in memory only: whom it has asked, and who has answered. After a crash all of it is asked anew.
//! And how VMs have run of late, which another leader does not know.

use super::call::Place;
use super::ids::{CallId, Time};
use scheduler::HostId;
use state::{Name, Operation, OperationResult};
use std::collections::{BTreeMap, BTreeSet};

/// What of an operation is in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Work {
    /// Which.
    pub(crate) id: Name,
    /// Hosts that are asked, and by which call.
    pub(crate) asking: BTreeMap<Name, CallId>,
    /// Hosts that are still asked for an earlier step. They are asked nothing else before they have answered: what gives room back
    /// must not overtake what takes it.
    pub(crate) former: BTreeMap<Name, CallId>,
    /// Hosts that have done the step.
    pub(crate) done: BTreeSet<Name>,
    /// Where companions listen.
    pub(crate) addresses: BTreeMap<Name, String>,
    /// When the step began.
    pub(crate) since: u64,
    /// Nobody is asked again before.
    pub(crate) again: u64,
    /// The last call that was made when the step began: what was asked before does not count.
    pub(crate) after: CallId,
    /// Of a stop: the first slice ran when it began, and is asked to end the VM: it ends with it, whatever its status.
    pub(crate) is_first_asked: bool,
    /// Of a stop: when a slice was fenced of which all others hear.
    pub(crate) fenced_at: Option<u64>,
    /// Of an undoing: slices are over on all hosts.
    pub(crate) is_fenced: bool,
    /// Of a move: why the VM has not brought everything.
    pub(crate) refusal: Option<String>,
    /// Of a move: where parts of the VM are, as it has said since.
    pub(crate) places: Option<Vec<Place>>,
    /// Of a move: how often it has brought only a part.
    pub(crate) tried: u32,
    /// Of a move that is undone: parts of that which are done.
    pub(crate) undone: usize,
}

impl Work {
    pub(crate) fn new(id: Name, now: Time, after: CallId) -> Self {
        Self {
            id,
            asking: BTreeMap::new(),
            former: BTreeMap::new(),
            done: BTreeSet::new(),
            addresses: BTreeMap::new(),
            since: now.ms,
            again: 0,
            after,
            is_first_asked: false,
            fenced_at: None,
            is_fenced: false,
            refusal: None,
            places: None,
            tried: 0,
            undone: 0,
        }
    }

    /// Another step.
    pub(crate) fn turn(&mut self, now: Time, after: CallId) {
        self.former.append(&mut self.asking);
        self.done.clear();
        (self.refusal, self.places) = (None, None);
        (self.since, self.again, self.after) = (now.ms, 0, after);
    }
}

/// How a VM has run of late.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runs {
    /// It runs since then, or has run last.
    pub(crate) since: u64,
    /// How often it has ended soon after it ran, one time after another.
    pub(crate) soon: u32,
}

/// Starts of a VM that have failed since it ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FailedStarts {
    /// How many, one after another.
    pub(crate) count: u32,
    /// What the scheduler was told to avoid when it was asked last.
    pub(crate) told: Vec<HostId>,
    /// Hosts that are to blame, and until when they are avoided.
    pub(crate) hosts: BTreeMap<Name, u64>,
}

/// Says so, to who reads the log.
pub(crate) fn operation_is_over(operation: &Operation) {
    let Operation { id, vm, verb, life, .. } = operation;
    match &operation.result {
        Some(OperationResult::Failed { why }) => {
            tracing::warn!(operation = %id, %vm, ?verb, life, why, "an operation has failed");
        }
        Some(OperationResult::Done) => {
            tracing::info!(operation = %id, %vm, ?verb, life, "an operation is done");
        }
        None => {}
    }
}
