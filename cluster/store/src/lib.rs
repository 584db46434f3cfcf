//! Where the orchestrator keeps its state: objects under keys, written by transactions that a leader's term fences.
//!
//! ```text
//!   orchestrator ──Store──┬── MemoryStore ──┐
//!                         ├── RedbStore ────┴── machine (pure) ── history, objects, election
//!                         │      └ a thread: groups of commits, one file
//!                         └── EtcdStore ── gRPC ── etcd, for several orchestrators
//!   request: what a writer does that does not know whether it has written
//!   lease:   up to when a leader may decide
//! ```
//! **Three numbers.** A *revision* counts commits: readers, pages and watchers name what they have seen by it. A *term* counts leaders:
//! what a deposed one writes is refused. A *request id* names what somebody wants: however often it is tried, it happens once.

#![forbid(unsafe_code)]

mod entry;
mod error;
mod etcd;
mod ids;
mod key;
mod lease;
mod local;
pub mod machine;
mod memory;
mod planted;
mod redb;
pub mod request;
mod store;
mod txn;

pub use self::redb::{OpenError, RedbStore};
pub use entry::{Batch, Change, Entry, Notice, PAGE_MAX, Page, PageToken, Read, Value};
pub use error::{CommitError, Conflict, Lost, RenewError, StoreError, WatchError};
pub use etcd::{EtcdOptions, EtcdOptionsError, EtcdStore, EtcdTls, EtcdWatcher};
pub use ids::{Revision, Term};
pub use key::{KEY_BYTES_MAX, Key, KeyError, Prefix};
pub use lease::{
    BootTime, Candidate, LEASE_MAX, Leader, Leadership, NAME_BYTES_MAX, Tenure, decides_until,
};
pub use local::LocalWatcher;
pub use machine::Limits;
pub use memory::MemoryStore;
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use store::{Store, Watch, keep};
pub use txn::{Compare, TXN_BYTES_MAX, TXN_PARTS_MAX, Txn, TxnError, VALUE_BYTES_MAX, Write};
