//! What users and operators ask the orchestrator of a cluster.
//!
//! ```text
//!   options --connect--> leader ── vm | host | op | cluster ──> messages ──output──> table, JSON, YAML, names
//!   VM file --wanted--> what a VM is to be
//! ```

mod connect;
mod endpoint;
pub(crate) mod host;
pub(crate) mod op;
mod output;
pub(crate) mod status;
pub(crate) mod vm;
mod wanted;
mod watch;
