//! Counting from all CPUs at once: not one increment may be lost.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use crate::arena::{Barrier, LINE_WORDS, spin_until};
use crate::bench::Bench;
use crate::pool::{Env, Job};

/// `lock xadd` on one word.
pub(crate) fn xadd(bench: &mut Bench) -> Result<String> {
    let each = 1000 * u64::from(bench.rounds);
    count(bench, xadd_job, each)
}

/// `lock cmpxchg` on one word.
pub(crate) fn cmpxchg(bench: &mut Bench) -> Result<String> {
    let each = 1000 * u64::from(bench.rounds);
    count(bench, cmpxchg_job, each)
}

/// Plain increments on one page under a ticket lock on another: the lock orders them.
pub(crate) fn lock(bench: &mut Bench) -> Result<String> {
    let each = bench.turns()?;
    count(bench, lock_job, each)
}

fn count(bench: &mut Bench, job: Job, each: u64) -> Result<String> {
    let all: Vec<_> = (0..bench.topology.cpus.len()).collect();
    bench.pool.run(&all, job, [each, 0, 0, 0])?;
    let total = bench.pool.arena.page(COUNT_PAGE)[0].load(Ordering::Acquire);
    let expected = each * u64::try_from(all.len())?;
    ensure!(total == expected, "total {total}, expected {expected}");
    Ok(format!("total={total} cpus={}", all.len()))
}

const COUNT_PAGE: usize = 1;
const LOCK_PAGE: usize = 2;

fn xadd_job(env: &Env<'_>) -> Result<()> {
    let word = &env.arena.page(COUNT_PAGE)[0];
    repeat(env, || Ok(word.fetch_add(1, Ordering::AcqRel)))
}

fn cmpxchg_job(env: &Env<'_>) -> Result<()> {
    let word = &env.arena.page(COUNT_PAGE)[0];
    repeat(env, || {
        let mut old = word.load(Ordering::Relaxed);
        while let Err(now) =
            word.compare_exchange(old, old + 1, Ordering::AcqRel, Ordering::Relaxed)
        {
            ensure!(now != old, "cmpxchg failed though it found {now}");
            old = now;
        }
        Ok(old)
    })
}

fn lock_job(env: &Env<'_>) -> Result<()> {
    let word = &env.arena.page(COUNT_PAGE)[0];
    let lock = env.arena.page(LOCK_PAGE);
    let (next, serving): (&AtomicU64, &AtomicU64) = (&lock[0], &lock[LINE_WORDS]);
    repeat(env, || {
        let ticket = next.fetch_add(1, Ordering::Relaxed);
        spin_until(|| serving.load(Ordering::Acquire) == ticket);
        // Not a locked operation: only the lock keeps the others out.
        let old = word.load(Ordering::Relaxed);
        word.store(old + 1, Ordering::Relaxed);
        serving.store(ticket + 1, Ordering::Release);
        Ok(old)
    })
}

/// Starts together, then increments; each old value must be above the last one seen.
fn repeat(env: &Env<'_>, mut increment: impl FnMut() -> Result<u64>) -> Result<()> {
    Barrier::new(env.arena, env.ranks).wait();
    let mut last = None;
    for turn in 0..env.args[0] {
        let old = increment()?;
        ensure!(last < Some(old), "increment {turn} found {old} after {last:?}");
        last = Some(old);
    }
    Ok(())
}
