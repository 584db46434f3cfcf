//! Predictors: what a slice will want next, from what it has wanted so far.
//!
//! They decide only what a slice asks for, and when. To the protocol a predicted write is a write, and a
//! window of pages is an [`Input::Prefetch`](crate::Input::Prefetch), or one for each page.

pub mod correlations;
pub mod runs;
pub mod streams;
pub mod strides;
pub mod window;
pub mod write_prediction;

pub use correlations::{Correlations, Miss};
pub use runs::Runs;
pub use streams::Streams;
pub use strides::Strides;
pub use window::Window;
pub use write_prediction::WritePrediction;
