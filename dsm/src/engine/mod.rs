//! The engine of one slice: one thread that owns the protocol, the store and the transport.
//!
//! ```text
//!   faults ---(faults)---\                           /--(store)--> guest mapping
//!   frames ---(frames,    >--> step --> effects -----<
//!              inbox)    /              (effects)     \--(outbound)--> page batches, remote writes,
//!   commands -(execute)-/                                             backlog --> transport
//!
//!   each turn: faults, commands, frames, a tick; then what is overdue, expired probes, pieces to map
//! ```
//!
//! * `event_loop` owns the state and goes round. `wait_policy` and `schedule` say how it waits.
//! * `handle`, `command`, `waker`: how other threads reach it.
//! * `prefetching` steps the protocol with what [`crate::prefetch`] proposes.
//! * `home_moves` (with `homes`) has homes of frames move, and brings pages to their home.
//! * `leaving` parts with a slice that shares memory no longer; `joining` adds one that begins to.
//! * `saved` brings the engine to `rest` and saves its node; `restored` goes on from a saved one.
//! * `snapshot` has memory protected and frozen, so that it can be read while the guest runs.
//! * `overdue` ends the VM when a step of the protocol is lost.

mod backlog;
mod clock;
mod command;
mod config;
mod copying;
mod effects;
mod event_loop;
mod execute;
mod faults;
mod frames;
mod handle;
mod home_moves;
mod homes;
mod inbox;
mod join;
mod joining;
mod leave;
mod leaving;
mod outbound;
mod overdue;
mod page_batch;
mod poll;
mod prefetching;
mod remote_write;
mod reporting;
mod rest;
mod restored;
mod saved;
pub mod schedule;
mod snapshot;
mod snapshot_error;
mod uplink;
mod wait_policy;
mod waker;

#[cfg(feature = "simulate")]
pub(crate) use clock::Clock;
#[cfg(feature = "simulate")]
pub(crate) use command::Command;
pub use command::{CopyError, Tuning};
pub use config::EngineConfig;
pub use event_loop::Engine;
pub use handle::Handle;
pub use homes::HomeMoveError;
#[cfg(feature = "simulate")]
pub(crate) use homes::{HomeMove, Pull};
pub use join::JoinError;
pub use leave::LeaveError;
#[cfg(feature = "simulate")]
pub(crate) use poll::Ready;
pub use rest::{RestError, Unrest};
pub use snapshot_error::SnapshotError;
pub use uplink::Uplink;
