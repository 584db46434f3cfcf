//! The rules between objects, as functions of what is known.
//!
//! | rule | function |
//! |---|---|
//! | each field has one writer | [`vm_may_become`], [`host_may_become`] |
//! | an older observation means "in progress" | [`in_progress`] |
//! | only a child of the current assignment follows it, under no older term | [`may_follow`] |
//! | an agent acts on the newest term and generation that it has seen, and on the same one again | [`Accepted::judge`] |
//! | nothing starts before all its hosts have reserved room | [`may_start`] |
//! | a new leader waits for a lease before it calls a host lost | [`is_lost`] |
//! | an operation whose assignment has been superseded stops | [`superseded`] |

use std::collections::BTreeMap;

use thiserror::Error;

use crate::assignment::Assignment;
use crate::host::Host;
use crate::keys::Name;
use crate::numbers::{Generation, Term};
use crate::operation::Operation;
use crate::vm::Vm;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// Somebody who uses VMs.
    User,
    /// Somebody who runs hosts.
    Operator,
    /// The agent of the host.
    Agent,
    /// The orchestrator that leads.
    Orchestrator,
}

/// A change that its writer may not make.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotYours {
    /// It is another one's field, or it never changes.
    #[error("{field} is not changed by the {writer:?}")]
    Field {
        /// Which one.
        field: &'static str,
        /// Who wanted to.
        writer: Writer,
    },
    /// What is wanted has changed, and the generation has not been advanced by one, or the reverse.
    #[error("generation {found} follows {before}, and {wanted} should")]
    Generation {
        /// What it was.
        before: Generation,
        /// What it is to be.
        found: Generation,
        /// What it should be.
        wanted: Generation,
    },
}

fn unchanged<T: PartialEq>(
    before: &T,
    after: &T,
    field: &'static str,
    writer: Writer,
) -> Result<(), NotYours> {
    if before == after { Ok(()) } else { Err(NotYours::Field { field, writer }) }
}

/// A number that counts changes of something.
fn advanced(changed: bool, before: Generation, found: Generation) -> Result<(), NotYours> {
    let wanted = if changed { Generation(before.0.saturating_add(1)) } else { before };
    if found == wanted { Ok(()) } else { Err(NotYours::Generation { before, found, wanted }) }
}

/// Whether a writer may change a VM so.
///
/// # Errors
/// Where it may not.
pub fn vm_may_become(writer: Writer, before: &Vm, after: &Vm) -> Result<(), NotYours> {
    unchanged(&before.name, &after.name, "name", writer)?;
    unchanged(&before.uid, &after.uid, "uid", writer)?;
    if after.life < before.life {
        return Err(NotYours::Field { field: "life", writer });
    }
    if writer != Writer::User {
        unchanged(&before.desired, &after.desired, "desired", writer)?;
    }
    if writer != Writer::Orchestrator {
        unchanged(&before.observed, &after.observed, "observed", writer)?;
        unchanged(&before.life, &after.life, "life", writer)?;
    }
    advanced(before.desired != after.desired, before.generation, after.generation)
}

/// Whether a writer may change a host so.
///
/// # Errors
/// Where it may not.
pub fn host_may_become(writer: Writer, before: &Host, after: &Host) -> Result<(), NotYours> {
    unchanged(&before.name, &after.name, "name", writer)?;
    if writer != Writer::Operator {
        unchanged(&before.desired, &after.desired, "desired", writer)?;
    }
    if writer != Writer::Agent {
        return unchanged(&before.facts, &after.facts, "facts", writer);
    }
    let (Some(old), Some(new)) = (&before.facts, &after.facts) else {
        // What is known of a host is not forgotten.
        return if after.facts.is_some() {
            Ok(())
        } else {
            unchanged(&before.facts, &after.facts, "facts", writer)
        };
    };
    // A host that has started anew counts from anywhere.
    if old.boot_id != new.boot_id {
        return Ok(());
    }
    advanced(old != new, old.generation, new.generation)
}

/// What is wanted has not been seen yet. That is no error.
#[must_use]
pub fn in_progress(vm: &Vm) -> bool {
    vm.observed.generation < vm.generation
}

/// Why an assignment does not follow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotNext {
    /// It is another VM's.
    #[error("it is of another VM")]
    OtherVm,
    /// Its parent is not the current one.
    #[error("it follows {parent:?}, and the current one is {current:?}")]
    Parent {
        /// What it follows.
        parent: Option<Generation>,
        /// What there is.
        current: Option<Generation>,
    },
    /// A leader that is deposed has decided it.
    #[error("term {found} after {current}")]
    Term {
        /// Of the assignment.
        found: Term,
        /// Of the current one.
        current: Term,
    },
    /// The VM's data plane would go back.
    #[error("its epoch is smaller")]
    Epoch,
}

/// Whether an assignment may become the current one.
///
/// # Errors
/// Where it may not.
pub fn may_follow(current: Option<&Assignment>, next: &Assignment) -> Result<(), NotNext> {
    let generation = current.map(|current| current.generation);
    if next.parent != generation {
        return Err(NotNext::Parent { parent: next.parent, current: generation });
    }
    let Some(current) = current else { return Ok(()) };
    if current.vm != next.vm {
        return Err(NotNext::OtherVm);
    }
    if next.term < current.term {
        return Err(NotNext::Term { found: next.term, current: current.term });
    }
    if next.epoch < current.epoch { Err(NotNext::Epoch) } else { Ok(()) }
}

/// The newest order that an agent has taken for a VM; it outlives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Accepted {
    /// Of the leader.
    pub term: Term,
    /// Of the assignment.
    pub generation: Generation,
    /// A digest of the assignment.
    pub content: [u8; 16],
}

/// What an agent does with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is newer: done, and remembered.
    New,
    /// It is the same once more: ensured again.
    Again,
    /// A leader that is deposed, or an assignment that is superseded: refused (`STALE_TERM`, `STALE_GENERATION`).
    Stale,
    /// The same generation says something else: refused (`GENERATION_CONFLICT`).
    Conflict,
}

impl Accepted {
    /// Judges an order; `known` is the newest that was taken.
    #[must_use]
    pub fn judge(known: Option<&Self>, order: &Self) -> Verdict {
        let Some(known) = known else { return Verdict::New };
        if order.term < known.term || order.generation < known.generation {
            return Verdict::Stale;
        }
        if order.generation > known.generation {
            return Verdict::New;
        }
        if order.content != known.content {
            return Verdict::Conflict;
        }
        if order.term > known.term { Verdict::New } else { Verdict::Again }
    }
}

/// Why something does not start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("host {0} has reserved nothing, or not for long enough")]
pub struct NotReserved(pub Name);

/// Whether all hosts of an assignment keep room for it, up to after `until`; when each reservation ends is given by host.
///
/// # Errors
/// For the first host that does not.
pub fn may_start(
    assignment: &Assignment,
    reservations: &BTreeMap<Name, u64>,
    until: u64,
) -> Result<(), NotReserved> {
    let kept = |host: &Name| reservations.get(host).is_some_and(|end| *end > until);
    let mut hosts = assignment.slices.iter().map(|part| &part.host);
    hosts.find(|host| !kept(host)).map_or(Ok(()), |host| Err(NotReserved(host.clone())))
}

/// Whether a leader may call a host lost: nothing has been heard for a lease, nor since this leader began to listen. In one unit of one clock.
#[must_use]
pub fn is_lost(now: u64, heard: Option<u64>, leads_since: u64, lease: u64) -> bool {
    let last = heard.unwrap_or(0).max(leads_since);
    now.saturating_sub(last) > lease
}

/// Whether an operation stops at its next step, and is undone: something else is to be by now, or somebody else runs it.
#[must_use]
pub fn superseded(operation: &Operation, current: Option<&Assignment>, term: Term) -> bool {
    operation.term < term
        || current.is_some_and(|current| current.generation > operation.generation)
}
