//! The guest's mapping: which page of the memory file a vCPU reaches, and with which access.
//!
//! KVM and the vCPUs go through the page tables of this process. userfaultfd stops whoever touches a page that is not
//! mapped there, or stores to one that is write-protected, until the engine has seen to it.
//!
//! ```text
//!              touched: event "missing" or "minor"            stored to: event "write-protected"
//!                    |                                              |
//!   not mapped --UFFDIO_CONTINUE, wp--> mapped, write-protected --UFFDIO_WRITEPROTECT off--> mapped
//!      ^  ^                                  |          ^                                      |
//!      |  +-------- MADV_DONTNEED -----------+          +----- UFFDIO_WRITEPROTECT on ---------+
//!      +----------------------------------- MADV_DONTNEED -------------------------------------+
//! ```
//!
//! [`GuestMapping`] and [`Userfaultfd`](userfaultfd::Userfaultfd) are all that is asked of the kernel for it. In a VM
//! Linux stands behind them (`host_mapping`, `linux`). In the simulator it is a kernel of state machines (`fake`)
//! that refuses what Linux refuses. `conformance` runs the same calls against both. `uffd` says what is done about a
//! refusal. `memory_file` makes the file behind a mapping.
//!
//! This room owns no state of pages: [`crate::mapping`] does. It is a room of its own because guest memory
//! ([`crate::memory`]) is made of these mappings, and the state of pages is kept on top of guest memory.

#[cfg(test)]
mod conformance;
mod error;
#[cfg(any(test, feature = "simulate"))]
pub(crate) mod fake;
mod guest_mapping;
mod host_mapping;
mod linux;
mod memory_file;
mod sizes;
mod span;
mod uffd;
mod userfaultfd;

pub use error::UffdError;
pub(crate) use guest_mapping::GuestMapping;
pub use linux::check_host;
pub(crate) use memory_file::{fix_size, memory_file};
pub(crate) use sizes::HUGE;
#[cfg(any(test, feature = "simulate"))]
pub(crate) use sizes::PAGE;
pub(crate) use span::Span;
pub(crate) use uffd::{Installed, Uffd};
pub(crate) use userfaultfd::{Fault, FaultWatch};
