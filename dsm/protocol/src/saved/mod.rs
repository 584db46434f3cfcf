//! The saved form of a node: what one slice's share of the protocol needs to go on in another process.
//!
//! ```text
//!   all vCPUs stop --> set_resting, Input::Release on each node --> all released, nothing under way, every message has come
//!        --Node::save--> NodeState of each slice --check_all--> written down ... read --check_all--> Node::restore
//! ```
//! A node alone can tell that nothing of its own is under way ([`Node::in_flight`](crate::Node::in_flight)). It cannot
//! tell whether a message to it is still on its way, for not every message is answered: a request that a replica has
//! answered, a wish to end a replica that ended meanwhile, a root. So each form has the number of messages that
//! went to each peer and came from it, and [`check_all`] compares them.
//!
//! The contents of pages are not in the form. They are read from the slice that has the truth about a page, which its
//! home knows ([`NodeState::keepers`]):
//!
//! | the home says | the truth is with |
//! |---|---|
//! | one slice has it for writing | that slice |
//! | slices may read it | the home if it is one of them, else the first: all have the same |
//! | everyone has a replica | the home: after the flush all are the same but for accessed and dirty bits, which nobody misses (decision 4) |
//!
//! Twins need no contents either. After the flush a twin is equal to its page, and [`Node::save`](crate::Node::save)
//! refuses a replica of which this is not so. The form has the hash of each twin: forms of replicas that differ are
//! found, and so is memory that is not the one that was saved.
//!
//! Left out: hold windows and their history, counters, for how long roots have been idle (all are learnt anew); requests
//! that a replica has answered, and the note at their home that it dropped them (no message about them is on its way).

mod check;
mod frames;
mod rest;
mod state;
mod together;
mod transfer;

pub use frames::FrameRuns;
pub use rest::NotAtRest;
pub use state::{
    Channel, Here, HolderKind, HoldersState, HomeState, NodeState, ReplicaState, RootState, TableHalf,
    TableScope,
};
pub use together::{Disagreement, check_all};
