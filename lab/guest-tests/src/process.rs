//! Processes across CPUs: futex and pipe ping-pong, fork and exec, signals.
//!
//! The counts must come out exact: a lost wake-up or a lost signal shows as a time-out, a doubled
//! one as a wrong count.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::arena::spin_until;
use crate::bench::Bench;
use crate::pool::Env;
use crate::sys::{self, Ended, Forked};

/// Futex ping-pong over each pair.
pub(crate) fn futex(bench: &mut Bench) -> Result<String> {
    let trips = 20 * u64::from(bench.rounds);
    bench.over_pairs(futex_job, [trips, 0, 0, 0], |_| Ok(()))?;
    Ok(format!("trips={trips} pairs={}", bench.pairs_text()))
}

fn futex_job(env: &Env<'_>) -> Result<()> {
    // The low half of the first word; x86 is little-endian, so it is at the word's own address.
    let word = sys::low_half(&env.arena.page(1)[0]);
    let trips = u32::try_from(env.args[0])?;
    for trip in 0..trips {
        let mine = 2 * trip + u32::try_from(env.rank)?;
        loop {
            let now = word.load(Ordering::Acquire);
            if now == mine {
                break;
            }
            ensure!(now.wrapping_add(1) == mine, "turn {now}, expected {mine}");
            sys::futex_wait(word, now, Duration::from_secs(3600));
        }
        word.store(mine + 1, Ordering::Release);
        sys::futex_wake(word);
    }
    Ok(())
}

/// Pipe ping-pong over each pair.
pub(crate) fn pipe(bench: &mut Bench) -> Result<String> {
    let trips = 5 * u64::from(bench.rounds);
    bench.over_pairs(pipe_job, [trips, 0, 0, 0], |_| Ok(()))?;
    Ok(format!("trips={trips} pairs={}", bench.pairs_text()))
}

fn pipe_job(env: &Env<'_>) -> Result<()> {
    for trip in 0..env.args[0] {
        if env.rank == 0 {
            env.pipes.there.send(trip)?;
            let got = env.pipes.back.receive()?;
            ensure!(got == trip, "trip {trip} came back as {got}");
        } else {
            let got = env.pipes.there.receive()?;
            ensure!(got == trip, "trip {trip} arrived as {got}");
            env.pipes.back.send(got)?;
        }
    }
    Ok(())
}

/// Fork and exec on every CPU at once.
pub(crate) fn fork_exec(bench: &mut Bench) -> Result<String> {
    let count = 2 * u64::from(bench.rounds);
    let all: Vec<_> = (0..bench.topology.cpus.len()).collect();
    bench.pool.run(&all, fork_exec_job, [count, 0, 0, 0])?;
    Ok(format!("programs={} cpus={}", count * u64::try_from(all.len())?, all.len()))
}

fn fork_exec_job(env: &Env<'_>) -> Result<()> {
    let cpu = env.cpu(env.rank).to_string();
    for turn in 0..env.args[0] {
        match sys::fork().context("cannot fork")? {
            Forked::Child => {
                sys::exec_self(&["child", &cpu]);
                sys::exit_now(111);
            }
            Forked::Parent(pid) => {
                let ended = sys::wait_for(pid, true).context("cannot wait")?;
                ensure!(ended == Some(Ended::Exit(CHILD_STATUS)), "program {turn}: {ended:?}");
            }
        }
    }
    Ok(())
}

/// Exit status of a child program that ran where it should.
const CHILD_STATUS: i32 = 42;

/// The program that [`fork_exec`] executes: tells by its status whether it runs on that CPU.
pub(crate) fn child(cpu: &str) -> u8 {
    let here = sys::current_cpu().map(|cpu| cpu.to_string());
    if here.as_deref() == Some(cpu) { u8::try_from(CHILD_STATUS).unwrap_or(0) } else { 1 }
}

/// SIGUSR1 to and fro between the processes of each pair.
pub(crate) fn signal_process(bench: &mut Bench) -> Result<String> {
    let trips = 10 * u64::from(bench.rounds);
    bench.over_pairs(signal_process_job, [trips, 0, 0, 0], |_| Ok(()))?;
    Ok(format!("trips={trips} pairs={}", bench.pairs_text()))
}

fn signal_process_job(env: &Env<'_>) -> Result<()> {
    let other = env.pid(1 - env.rank);
    let receive = || -> Result<()> {
        let from = sys::wait_signal(libc::SIGUSR1).context("cannot wait for SIGUSR1")?;
        ensure!(from == other, "signal from {from}, expected one from {other}");
        Ok(())
    };
    for _ in 0..env.args[0] {
        if env.rank == 0 {
            sys::kill(other, libc::SIGUSR1).context("cannot send SIGUSR1")?;
            receive()?;
        } else {
            receive()?;
            sys::kill(other, libc::SIGUSR1).context("cannot send SIGUSR1")?;
        }
    }
    Ok(())
}

static HANDLED: AtomicU64 = AtomicU64::new(0);
static HANDLER_TID: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    HANDLER_TID.store(sys::tid().unsigned_abs(), Ordering::Relaxed);
    HANDLED.fetch_add(1, Ordering::Release);
}

/// tgkill from one thread to another that computes on another CPU.
pub(crate) fn signal_thread(bench: &mut Bench) -> Result<String> {
    let count = 10 * u64::from(bench.rounds);
    bench.over_threads(signal_thread_job, [count, 0, 0, 0], |_| Ok(()))?;
    Ok(format!("signals={count} pairs={}", bench.pairs_text()))
}

fn signal_thread_job(env: &Env<'_>) -> Result<()> {
    sys::count_with(libc::SIGUSR2, count_signal).context("cannot handle SIGUSR2")?;
    HANDLED.store(0, Ordering::Relaxed);
    let far_cpu = env.size(3);
    let far_tid = AtomicU32::new(0);
    let stop = AtomicU32::new(0);
    thread::scope(|scope| {
        let far = scope.spawn(|| -> Result<()> {
            let pinned = sys::pin_to(far_cpu);
            far_tid.store(sys::tid().unsigned_abs(), Ordering::Release);
            pinned.with_context(|| format!("cannot pin to cpu {far_cpu}"))?;
            spin_until(|| stop.load(Ordering::Relaxed) != 0);
            Ok(())
        });
        spin_until(|| far_tid.load(Ordering::Acquire) != 0);
        let target = far_tid.load(Ordering::Relaxed);
        let sent = send_each(env.args[0], target);
        stop.store(1, Ordering::Relaxed);
        match far.join() {
            Ok(result) => result.and(sent),
            Err(_) => bail!("the far thread panicked"),
        }
    })
}

fn send_each(count: u64, target: u32) -> Result<()> {
    let tid = sys::Pid::try_from(target)?;
    for sent in 1..=count {
        sys::kill_thread(sys::pid(), tid, libc::SIGUSR2).context("cannot send SIGUSR2")?;
        spin_until(|| HANDLED.load(Ordering::Acquire) >= sent);
        let handled = HANDLED.load(Ordering::Relaxed);
        ensure!(handled == sent, "{handled} signals handled after {sent} sent");
        let by = HANDLER_TID.load(Ordering::Relaxed);
        ensure!(by == target, "signal handled by thread {by}, sent to {target}");
    }
    Ok(())
}
