//! Checkpoints in folders that are theirs alone: written, read, damaged, interrupted and merged.

mod assembled;
mod chain;
mod damage;
mod golden;
mod interrupted;
mod refusals;
mod round_trip;
mod support;
