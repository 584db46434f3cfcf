//! The agent of a host: it owns the slices that run there, as processes that outlive it.
//!
//! ```text
//!   orchestrator --requests--> agent --starts, signals--> slices (processes of their own)
//!                                │
//!                                └── journal: what it has promised, on the disk before it acts
//! ```
//! What it does is decided in [`decide`], without a clock, a disk or a process. [`runtime`] carries it out: [`journal`] is its file,
//! [`processes`] are its slices, and [`logs`] what these say.

#![forbid(unsafe_code)]

pub mod decide;
pub mod journal;
pub mod logs;
pub mod processes;
pub mod runtime;
