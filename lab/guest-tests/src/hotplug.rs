//! CPU hotplug: the last CPU goes offline and comes back, and a program runs on it again.
//!
//! Only where the machine is ours (we are its pid 1): never on a developer's machine.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::affinity::parse_list;
use crate::bench::{Bench, SKIP};
use crate::pool::Env;
use crate::sys;

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Takes the last CPU down and up again, `rounds` times (10 at most).
pub(crate) fn run(bench: &mut Bench) -> Result<String> {
    if !bench.owns_machine {
        return Ok(format!("{SKIP}only as pid 1"));
    }
    let last = bench.topology.cpus.len() - 1;
    let cpu = bench.topology.cpus[last].id;
    if last == 0 {
        return Ok(format!("{SKIP}needs 2 cpus"));
    }
    if !fs::exists(switch(cpu)).unwrap_or(false) {
        return Ok(format!("{SKIP}no {}", switch(cpu)));
    }
    if is_isolated(cpu) {
        // Linux 6.12 accounts deadline bandwidth against the default domain and answers EBUSY, on
        // one host as well.
        return Ok(format!("{SKIP}Linux keeps cpu {cpu} online: isolcpus= isolates its domain"));
    }
    let cycles = bench.rounds.min(10);
    for cycle in 1..=cycles {
        // A worker pinned to a CPU that goes away would lose its place.
        bench.pool.retire(last);
        let number = [u64::try_from(cpu)?, 0, 0, 0];
        bench.pool.run(&[0], toggle_job, number).with_context(|| format!("cycle {cycle}"))?;
        bench.pool.run(&[last], place_job, number).with_context(|| format!("cycle {cycle}"))?;
    }
    Ok(format!("cpu={cpu} cycles={cycles}"))
}

fn switch(cpu: usize) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/online")
}

fn is_isolated(cpu: usize) -> bool {
    let text = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
    parse_list(&text).is_ok_and(|cpus| cpus.contains(&cpu))
}

fn is_online(cpu: usize) -> Result<bool> {
    let text = fs::read_to_string(ONLINE).with_context(|| format!("cannot read {ONLINE}"))?;
    Ok(parse_list(&text)?.contains(&cpu))
}

fn toggle_job(env: &Env<'_>) -> Result<()> {
    let cpu = env.size(0);
    for (value, wanted) in [("0", false), ("1", true)] {
        fs::write(switch(cpu), value)
            .with_context(|| format!("cannot write {value} for cpu {cpu}"))?;
        ensure!(is_online(cpu)? == wanted, "cpu {cpu} after writing {value}: online {}", !wanted);
    }
    Ok(())
}

fn place_job(env: &Env<'_>) -> Result<()> {
    let here = sys::current_cpu();
    ensure!(here == Some(env.size(0)), "running on {here:?} instead of cpu {}", env.args[0]);
    Ok(())
}
