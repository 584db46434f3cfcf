//! Metrics of the agent and of the orchestrator, over HTTP, in the text formats that Prometheus reads.
//!
//! ```text
//!   GET /metrics --a place among CONNECTIONS_MAX--> newer than FRESH? --yes--> the page of before
//!                                                        \--no, one at a time--> Source::tell --> Page --> text
//! ```
//! A page is told anew each time, from what there is: what has gone leaves no row behind, and rows are as many as things are.

#![forbid(unsafe_code)]

mod answer;
mod page;
mod server;

pub use page::{Label, Page};
pub use server::{CONNECTIONS_MAX, Listening, MetricsError, REQUEST_LIMIT, Source, serve};
