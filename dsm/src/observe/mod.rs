//! What the engine tells about itself: counters, hot pages, and what happens to each page.
//!
//! ```text
//!   fault --> classify: which kind of page --> trace: counted per page --> report
//!   messages ---------------------------------^
//! ```
//!
//! This room never decides about coherence. The engine decides three things by what it finds here: when the VMM looks
//! at the roots of vCPUs, from which fault on a page takes part in correlation prefetch, and whether a worker's fault
//! is a page walk.

mod classify;
mod report;
mod trace;

pub(crate) use classify::Classifier;
pub use classify::PageClass;
pub(crate) use report::PageMoves;
pub use report::{ClassCounts, FaultCounts, HomeCounts, HotPage, PagesFrom, Report};
pub(crate) use trace::{Company, FaultKind, Trace};
pub use trace::{PageTrace, SITES_MAX, Site, Touch, TraceReport, Tracing};
