//! A model of the rule of borrowed vCPUs: any window may follow any other one.
//!
//! ```text
//!   window (short of cores, quiet | less than home, as much) --> [Adaptive] --> stays, or all go to the other side
//! ```
//! Beside the rule stands what it has seen since the last move, counted by the model itself.

mod model;

pub use model::{Scenario, Window, names, prove, refute};
