//! The coherence protocol of the distributed shared memory, as a pure state machine.
//!
//! [`Node`] is one slice's share of the protocol: the home of some pages, a holder and a requester
//! of any. It takes one [`Input`] at a time and appends [`Effect`]s. It has no clock (time comes
//! with each step), no threads and no I/O; page contents are behind [`PageStore`]. The same code
//! runs in the engine, in the simulator and under the model checker.
//!
//! An ordinary page, as one slice sees it:
//!
//! ```text
//!            Data/Grant complete (read)              Data/Grant complete (write)
//!   Invalid ---------------------------> Shared -------------------------------> Exclusive
//!      ^  \______________________________________________________________________^   |
//!      |        Invalidate, Fetch keep none            Fetch keep read: back to Shared |
//!      +-----------------------------------------------------------------------------+
//! ```
//!
//! A page-table page that several slices walk leaves this scheme and becomes a *replica*
//! everywhere (class R): everyone may write it, changes travel entry by entry before anything else
//! that its writer sends. `tables` and `release` hold that part.
//!
//! The state of each role lies apart from what the node does in that role:
//!
//! | role | state | what the node does |
//! |---|---|---|
//! | home | `pages` (directory), `serving`, `home_moves` | `home`, `home_move`, `leave`, `join` |
//! | holder | `pages` (copies), `recalls`, `hold_windows`, `pins` | `holder`, `holding` |
//! | requester | `outstanding_requests` | `requester` |
//! | replicas | `tables`, `releases` | `release`, `roots`, `requester` |
//!
//! `saved` writes all of it down, and makes a node of what was written.
//!
//! `node` joins them, and `dispatch` gives each message to its role.
//!
//! `docs/protocol/coherence.md` is the specification with the message sequences.

#![forbid(unsafe_code)]

mod cells;
mod channels;
mod config;
mod dispatch;
mod effect;
pub mod entry;
mod error;
mod hold;
mod hold_windows;
mod holder;
mod holding;
mod home;
mod home_move;
mod home_moves;
mod homes;
mod input;
mod join;
mod leave;
mod mechanisms;
mod no_pages;
mod node;
mod outstanding_requests;
mod page_set;
mod pages;
mod pins;
mod planted;
pub mod prediction;
mod recalls;
mod release;
mod releases;
mod requester;
mod roots;
pub mod saved;
mod serving;
mod stats;
mod store;
mod tables;

pub use config::Config;
pub use effect::Effect;
pub use error::ProtocolError;
pub use hold::{HoldError, HoldPolicy};
pub use homes::{HomeError, HomeRange, HomeTable};
pub use input::Input;
pub use join::CannotJoin;
pub use leave::CannotLeave;
pub use mechanisms::{Mechanism, Mechanisms, UnknownMechanism};
pub use no_pages::NoPages;
pub use node::Node;
pub use page_set::PageSet;
pub use pages::frame_pieces;
pub use planted::PlantedBug;
pub use stats::{ReplicaStats, Stats};
pub use store::{Merge, PageStore};
pub use tables::Replicate;
pub use wire::{
    Access, Asked, DirectoryEntry, Entry, Epoch, Gfn, Half, Held, Level, Message, SliceId, Table,
    VcpuId,
};
