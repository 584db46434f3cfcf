//! Do the tests fail when they should? Planted faults, each of which the pool must report.

use std::hint;
use std::process;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::affinity::Topology;
use crate::pool::{Args, Env, Job, Pool};

/// What is planted, and what the error must contain.
const PLANTED: [(&str, Job, &str); 4] = [
    ("hang", hang, "timeout after 1 s, no reply from cpus"),
    ("crash", crash, "died: Signal(6)"),
    ("panic", panic, if cfg!(panic = "abort") { "died: Signal(6)" } else { "the worker panicked" }),
    ("wrong", wrong, "a wrong count of 7"),
];

/// Runs each planted fault on the first CPU, and a sound job after it.
///
/// # Errors
/// The first fault that was not reported as it should be.
pub(crate) fn run() -> Result<()> {
    let topology = Topology::read()?;
    let mut pool = Pool::new(&topology.cpus)?;
    for (name, job, wanted) in PLANTED {
        pool.set_limit(Duration::from_secs(1));
        match pool.run(&[0], job, Args::default()) {
            Ok(_) => bail!("{name}: not reported"),
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains(wanted), "{name}: reported as {text:?}");
            }
        }
        pool.set_limit(Duration::from_secs(60));
        let values = pool.run(&[0], sound, [1, 2, 3, 4])?;
        ensure!(values[0][0] == 10, "after {name}: a sound job gave {:?}", values[0]);
    }
    Ok(())
}

fn hang(_: &Env<'_>) -> Result<()> {
    loop {
        hint::spin_loop();
    }
}

fn crash(_: &Env<'_>) -> Result<()> {
    process::abort()
}

fn panic(env: &Env<'_>) -> Result<()> {
    assert!(env.ranks > 1, "planted");
    Ok(())
}

fn wrong(_: &Env<'_>) -> Result<()> {
    bail!("a wrong count of 7")
}

fn sound(env: &Env<'_>) -> Result<()> {
    env.give(0, env.args.iter().sum());
    Ok(())
}
