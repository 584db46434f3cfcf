//! What an orchestrator keeps about VMs and hosts. Objects, the form in which a store has them, and rules: all of it pure.
//!
//! ```text
//!   Vm (what is wanted) ──generation──> Assignment (where, for ever) ──slices──> Slice (what an agent sees)
//!    ^ user                   └ parent: only a child of the current one follows       on Host (agent, operator)
//!   Operation: what is done about it, and was     Checkpoint: what it can go on from
//! ```
//! | object | key | who writes it |
//! |---|---|---|
//! | [`Vm`] | `vms/VM` | `desired`: the user; `observed`: the orchestrator |
//! | [`Assignment`] | `assignments/VM/GENERATION` | the orchestrator, once |
//! | [`Host`] | `hosts/HOST` | `facts`: its agent; `desired`: the operator |
//! | [`Slice`] | `slices/VM/NUMBER` | the agent of its host |
//! | [`Operation`] | `operations/ID` | whoever runs it |
//! | [`Checkpoint`] | `checkpoints/VM/ID` | the orchestrator |
//! | [`Secret`] | `secrets/UID` | the orchestrator, once |
//! | [`Asked`] | `asked/ID` | the orchestrator, with what was asked for |
//!
//! Heartbeats are nowhere: who leads has them in memory.

#![forbid(unsafe_code)]

mod asked;
mod assignment;
mod checkpoint;
mod form;
mod host;
mod keys;
mod numbers;
mod operation;
pub mod rules;
mod secret;
mod slice;
mod vm;

pub use asked::Asked;
pub use assignment::{Assignment, AssignmentError, Former, Part};
pub use checkpoint::{Checkpoint, RELEASED_MAX};
pub use form::{FORM_BYTES_MAX, FormError, Object};
pub use host::{Facts, Host, HostDesired, NumaNode};
pub use keys::{Name, NameError, Uid, UidError};
pub use numbers::{Epoch, Generation, Term};
pub use operation::{Operation, OperationResult, Step, Verb};
pub use secret::Secret;
pub use slice::{Slice, SliceState};
pub use vm::{
    CheckpointPolicy, Disk, EVERY_S, GoesOn, Guest, KEEP, Nic, RunStrategy, SharingClass, Vm,
    VmDesired, VmObserved, VmState,
};
