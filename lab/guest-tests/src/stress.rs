//! Long runs that hammer what a causal replica of kernel page tables must get right: vmalloc space
//! that one CPU maps and unmaps (kernel stacks, modules) while others read through it.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bench::Bench;
use crate::config::{Stress, StressKind};
use crate::pool::Env;
use crate::sys::{self, Ended, Forked};

const MODULES: &str = "/modules";
/// Files whose reading walks module memory, vmalloc space or kernel stacks.
const READ_THROUGH: [&str; 3] = ["/proc/modules", "/proc/vmallocinfo", "/proc/self/stack"];
/// The symbols of the modules come last in it, after some 200,000 others: read it less often.
const SYMBOLS: (&str, u64) = ("/proc/kallsyms", 64);

/// Name of the result line.
pub(crate) fn name(kind: StressKind) -> &'static str {
    match kind {
        StressKind::Forks => "stress-forks",
        StressKind::Modules => "stress-modules",
    }
}

/// Runs one stress for its time; the limit is set by the caller.
pub(crate) fn run(bench: &mut Bench, stress: Stress) -> Result<String> {
    let end = sys::monotonic_ns() + stress.seconds * 1_000_000_000;
    let all: Vec<_> = (0..bench.topology.cpus.len()).collect();
    match stress.kind {
        StressKind::Forks => {
            let values = bench.pool.run(&all, fork_job, [end, 0, 0, 0])?;
            let children: u64 = values.iter().map(|worker| worker[0]).sum();
            Ok(format!("children={children} cpus={}", all.len()))
        }
        StressKind::Modules => {
            ensure!(!module_files()?.is_empty(), "no *.ko files in {MODULES}");
            let values = bench.pool.run(&all, module_job, [end, 0, 0, 0])?;
            let loads = values.first().map_or(0, |worker| worker[0]);
            let reads: u64 = values.iter().skip(1).map(|worker| worker[0]).sum();
            Ok(format!("loads={loads} reads={reads} cpus={}", all.len()))
        }
    }
}

/// Time limit: the time asked for, as much again, and a minute.
pub(crate) fn limit(stress: Stress) -> Duration {
    Duration::from_secs(2 * stress.seconds + 60)
}

fn over(env: &Env<'_>) -> bool {
    sys::monotonic_ns() >= env.args[0]
}

/// Children forked before they are waited for.
const STORM: usize = 8;

fn fork_job(env: &Env<'_>) -> Result<()> {
    let mut children = 0;
    while !over(env) {
        let mut pids = Vec::with_capacity(STORM);
        for _ in 0..STORM {
            match sys::fork().context("cannot fork")? {
                Forked::Child => sys::exit_now(0),
                Forked::Parent(pid) => pids.push(pid),
            }
        }
        for pid in pids {
            let ended = sys::wait_for(pid, true).context("cannot wait")?;
            ensure!(ended == Some(Ended::Exit(0)), "child {children}: {ended:?}");
            children += 1;
        }
    }
    env.give(0, children);
    Ok(())
}

fn module_job(env: &Env<'_>) -> Result<()> {
    let mut turns = 0;
    let files = module_files()?;
    // With one CPU the loader has to read as well.
    let reads = env.rank > 0 || env.ranks == 1;
    while !over(env) {
        if env.rank == 0 {
            load_and_unload(&files)?;
            turns += u64::try_from(files.len())?;
        }
        if reads {
            turns += u64::from(env.rank > 0);
            for file in READ_THROUGH {
                // Not every kernel has each of them.
                let _ = fs::read(file);
            }
            if turns % SYMBOLS.1 == SYMBOLS.1 - 1 {
                let _ = fs::read(SYMBOLS.0);
            }
        }
    }
    env.give(0, turns);
    Ok(())
}

/// Module files in the order of their names, which is the order of loading.
fn module_files() -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(MODULES) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {MODULES}"))?.path();
        if path.extension().is_some_and(|extension| extension == "ko") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn load_and_unload(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        sys::load_module(file.as_raw_fd())
            .with_context(|| format!("cannot load {}", path.display()))?;
    }
    for path in files.iter().rev() {
        let name = module_name(path).with_context(|| format!("bad name {}", path.display()))?;
        sys::unload_module(&name).with_context(|| format!("cannot unload {}", path.display()))?;
    }
    Ok(())
}

/// Name of a module in the kernel: that of its file, dashes become underscores, and a number that
/// only fixes the order of loading (`10-`) does not belong to it.
fn module_name(path: &Path) -> Option<CString> {
    let stem = path.file_stem()?.to_str()?;
    let name = match stem.split_once('-') {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => stem,
    };
    CString::new(name.replace('-', "_")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_name_of_a_file_is_the_kernels() {
        let name = |path: &str| module_name(Path::new(path)).unwrap().into_string().unwrap();
        assert_eq!(name("/modules/crc-itu-t.ko"), "crc_itu_t");
        assert_eq!(name("/modules/10-xor.ko"), "xor");
    }
}
