//! Models: small clusters of which every interleaving is tried.
//!
//! A [`Scenario`] says who is there and what each vCPU does, [`Cluster`] is one state of it, and
//! `properties` says what must hold in each state. The modules below make the scenarios.

mod actions;
mod cluster;
pub mod epochs;
mod explore;
pub mod home_moves;
mod join;
pub mod joining;
mod leave;
pub mod leaving;
pub mod lost;
pub mod ordinary;
mod properties;
pub mod replicas;
mod scenario;

pub use actions::Action;
pub use cluster::{Cluster, Violation};
pub use explore::{prove, refute, refute_within};
pub use model_check::full;
pub use properties::names;
pub use scenario::{Op, Prologue, Scenario, Vcpu};
