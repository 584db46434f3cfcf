//! Keeps the guest's time stamp counters of all slices together for as long as the VM runs.
//!
//! Crystals differ by some parts per million and change with their temperature, so offsets that are right at
//! the start are wrong by tens of milliseconds after an hour. This module decides by how much each slice steps
//! forward. It is pure: ticks come in, steps go out.
//!
//! ```text
//!   coordinator: exchanges with a companion --narrow--> Interval --+--> History --narrower--> Interval --+
//!              exchanges with another one, the same way -----------------------------------------------+
//!                                                                                                      |
//!                                                        a step for each slice <-- Discipline <--------+
//! ```
//!
//! **What an exchange proves.** The coordinator reads its guest clock at `sent`, the companion its own at
//! `answered`, the coordinator again at `received`. When the companion read its clock, the coordinator's showed
//! something from `sent` to `received`. So the companion is ahead by `answered - received` at least and by
//! `answered - sent` at most. All exchanges of a round must be right at once: their intervals are intersected.
//!
//! **What earlier rounds prove.** Crystals differ by a rate that hardly changes. So two earlier rounds bound where the
//! clocks can be now, also when each answer of this round was slow ([`History`]).
//!
//! **How often.** The next round comes when crystals may have drifted by half of what a message takes. A round ends
//! with the first exchange that is fast and finds nothing wrong ([`Pace`]).
//!
//! **No vCPU sees time go back.** Nothing is ever subtracted: slices that are behind step forward to the one
//! that is ahead. All vCPUs of a slice are out of the guest while its offset changes (`machine::gate`). And a
//! message between two slices that takes as long as the exchanges of the round arrives later than it was sent, by the
//! clocks of both, as long as zero lies in the interval. While it does, nothing is done: that clocks are apart is not
//! proven, and noise would drive all of them forward, because a step of one slice is followed by the others. Once it
//! does not, the slice that is behind steps to one eighth of the interval's width past the near edge.

use std::time::Duration;

mod discipline;
mod history;
mod interval;
mod pace;
#[cfg(test)]
mod tests;

/// Steps of more than this, in parts per million of the time that passes, are not for crystals: the guest's time would
/// be driven by a counter that is broken, or by a slice that lies. Ten times of what the worst crystals need, so that
/// noise never gets there.
pub(crate) const RATE_PPM: u64 = 1000;

pub(crate) use discipline::{Discipline, RunAway, Why};
pub(crate) use history::History;
pub(crate) use interval::{Exchange, Interval};
pub(crate) use pace::{DRIFT_PPM, Pace};

/// So long a time in ticks of a counter of `khz`.
pub(crate) fn ticks(time: Duration, khz: u32) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(khz) / 1_000_000).unwrap_or(u64::MAX)
}
