//! Predictors: what a slice will want next, from what it has wanted so far.
//!
//! They decide only what a slice asks for, and when. To the protocol a predicted write is a write, and a
//! window of pages is an [`Input::Prefetch`](crate::Input::Prefetch), or one for each page.
//!
//! | | says |
//! |---|---|
//! | [`Runs`], a [`Predictor`] | the pages behind a run, of whatever stride |
//! | [`Correlations`], a [`Predictor`] | pages that were missed together with this one before |
//! | [`WritePrediction`] | whether a page that is read will be written |

pub mod correlations;
pub mod predictor;
pub mod runs;
pub mod window;
pub mod write_prediction;

pub use correlations::Correlations;
pub use predictor::{Predictor, Touch};
pub use runs::Runs;
pub use window::{Miss, Window};
pub use write_prediction::WritePrediction;
