//! vCPUs that come and go by ACPI while the machine runs: somebody outside announces one and asks for it again.
//!
//! ```text
//!   wait for a CPU that is present and not on line ─> write its switch ─> a program runs there ─> it says so
//!        ^──────────────────── not present any more <─ wait: the kernel takes it off line by itself <─┘
//! ```

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::affinity::parse_list;
use crate::report::Score;
use crate::sys;

const PRESENT: &str = "/sys/devices/system/cpu/present";
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Whoever is outside may have much to do before.
const PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(20);
/// Steps of the program: some hundreds of interrupts long.
const STEPS: u64 = 50_000_000;

/// Uses a CPU that comes and sees it go, so often, and prints a line at each.
pub(crate) fn run(times: u64) -> Score {
    let mut score = Score::default();
    for number in 1..=times {
        let came = comes();
        let cpu = came.as_ref().ok().copied();
        score.add(
            &format!("vcpus-comes-{number}"),
            &came.and_then(|cpu| Ok(format!("cpu={cpu} node={}", node_of(cpu)?))),
        );
        let Some(cpu) = cpu else { break };
        score.add(&format!("vcpus-goes-{number}"), &goes(cpu).map(|()| format!("cpu={cpu}")));
    }
    score.finish();
    score
}

fn list(path: &str) -> Result<Vec<usize>> {
    parse_list(&fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?)
}

/// Waits for a CPU and runs on it.
fn comes() -> Result<usize> {
    let cpu = wait("no CPU has come", || {
        let online = list(ONLINE)?;
        Ok(list(PRESENT)?.into_iter().find(|cpu| !online.contains(cpu)))
    })?;
    let switch = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    // The kernel makes the switch after it has counted the CPU.
    wait("it has no switch", || Ok(fs::exists(&switch)?.then_some(())))?;
    fs::write(&switch, "1").with_context(|| format!("cannot write {switch}"))?;
    let ran = thread::spawn(move || {
        sys::pin_to(cpu).with_context(|| format!("cannot pin to cpu {cpu}"))?;
        let mut state = 1_u64;
        for step in 0..STEPS {
            state = std::hint::black_box(state.rotate_left(7) ^ step);
        }
        Ok(sys::current_cpu())
    });
    let here: Result<Option<usize>> =
        ran.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the program panicked")));
    let here = here?;
    ensure!(here == Some(cpu), "running on {here:?} instead of cpu {cpu}");
    Ok(cpu)
}

/// The memory node that the kernel has put a CPU on.
fn node_of(cpu: usize) -> Result<usize> {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut nodes = names.filter_map(|name| name.strip_prefix("node")?.parse().ok());
    nodes.next().with_context(|| format!("{folder} has no node"))
}

/// Waits until a CPU is gone.
fn goes(cpu: usize) -> Result<()> {
    wait("the CPU stays", || Ok((!list(PRESENT)?.contains(&cpu)).then_some(())))?;
    ensure!(!list(ONLINE)?.contains(&cpu), "cpu {cpu} is on line and not there");
    Ok(())
}

fn wait<T>(what: &'static str, look: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < end, "{what} for {} s", PATIENCE.as_secs());
        thread::sleep(POLL);
    }
}
