//! Models of what `migrate` decides, explored to the end: each crate of machines is changed only together with these.

#![forbid(unsafe_code)]

pub mod borrowed;
pub mod checkpoint;
pub mod cut;
pub mod handover;
pub mod supervise;

pub use model_check::full;
