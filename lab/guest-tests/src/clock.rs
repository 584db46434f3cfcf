//! Does time ever go back from one CPU to the next?
//!
//! A token goes round all CPUs in shared memory and carries the time at which it was sent. Each
//! receiver reads its own clock after it saw the token: that reading must not be below the sent one.
//! The smallest difference seen bounds the skew from one side: it is latency plus skew.

use std::sync::atomic::Ordering;

use anyhow::{Result, bail, ensure};

use crate::arena::{spin_until, tsc};
use crate::bench::Bench;
use crate::pool::{Env, Values};
use crate::sys;

/// The time stamp counter round all CPUs; differences in cycles.
pub(crate) fn counter(bench: &mut Bench) -> Result<String> {
    ring(bench, 0, "cycles")
}

/// CLOCK_MONOTONIC round all CPUs; differences in nanoseconds.
pub(crate) fn monotonic(bench: &mut Bench) -> Result<String> {
    ring(bench, 1, "ns")
}

fn ring(bench: &mut Bench, clock: u64, unit: &str) -> Result<String> {
    let all: Vec<_> = (0..bench.topology.cpus.len()).collect();
    let trips = bench.turns()?;
    let values = bench.pool.run(&all, ring_job, [trips, clock, 0, 0])?;
    judge(trips, unit, &values)
}

fn judge(trips: u64, unit: &str, values: &[Values]) -> Result<String> {
    let back: u64 = values.iter().map(|worker| worker[1]).sum();
    let smallest: Vec<_> = values.iter().map(|worker| worker[0].cast_signed()).collect();
    if back > 0 {
        bail!("time went back {back} times, smallest delta to each cpu {smallest:?} {unit}");
    }
    Ok(format!("trips={trips} smallest_delta_{unit}={smallest:?}"))
}

const TURN: usize = 0;
const SENT: usize = 1;

fn ring_job(env: &Env<'_>) -> Result<()> {
    let page = env.arena.page(1);
    let read = if env.args[1] == 0 { tsc } else { sys::monotonic_ns };
    let (rank, ranks) = (u64::try_from(env.rank)?, u64::try_from(env.ranks)?);
    let (mut smallest, mut back, mut own) = (i64::MAX, 0, read());
    for trip in 0..env.args[0] {
        let turn = trip * ranks + rank;
        spin_until(|| page[TURN].load(Ordering::Acquire) == turn);
        let now = read();
        let sent = page[SENT].load(Ordering::Relaxed);
        if turn > 0 {
            smallest = smallest.min(now.wrapping_sub(sent).cast_signed());
            back += u64::from(now < sent);
        }
        ensure!(now >= own, "the clock of one cpu went back from {own} to {now}");
        own = read();
        page[SENT].store(own, Ordering::Relaxed);
        page[TURN].store(turn + 1, Ordering::Release);
    }
    env.give(0, smallest.cast_unsigned());
    env.give(1, back);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_on_time_that_went_back_is_failure() {
        let behind: Values = [(-5i64).cast_unsigned(), 2, 0, 0, 0, 0, 0, 0];
        let text = format!("{:#}", judge(9, "ns", &[behind]).unwrap_err());
        assert_eq!(text, "time went back 2 times, smallest delta to each cpu [-5] ns");
    }

    #[test]
    fn verdict_on_time_that_went_on_is_pass() {
        let ahead: Values = [7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(judge(9, "ns", &[ahead]).unwrap(), "trips=9 smallest_delta_ns=[7]");
    }
}
