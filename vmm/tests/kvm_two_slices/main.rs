//! A VM of two slices in this process that is paused and resumed, and whose parts move, while both of its vCPUs work on
//! the same memory, interrupt each other and use devices, on this machine's KVM.

mod api;
mod checkpoints;
mod device_moves;
mod guest;
mod joins;
mod lazy;
mod moves;
mod pauses;
mod relocations;
mod rig;

use std::iter::successors;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One VM at a time: a look takes in the memory of all slices in this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Times until the next thing happens, by a fixed seed.
fn moments(seed: u64) -> impl Iterator<Item = Duration> {
    let next = |seed: &u64| Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    successors(Some(seed), next).skip(1).map(|seed| Duration::from_micros((seed >> 33) % 20_000))
}
