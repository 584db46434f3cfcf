//! The Debian system on a plain QEMU machine, without Tessera.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lab::distro::{CPU_PORT, Distro, HTTP_PORT, Plain, PlainConfig};

use crate::distro::guest::{Guest, Place};
use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::console::Console;

const POLL: Duration = Duration::from_millis(200);
const QUIET: Duration = Duration::from_secs(15);
const END_LIMIT: Duration = Duration::from_secs(180);
const SSH_PORT: u16 = 22;

/// What `./x distro check` takes.
#[derive(Args, Debug)]
pub struct CheckOptions {
    /// Memory of the machine in MiB
    #[arg(long, default_value_t = 512)]
    memory: u32,
    /// Processors of the machine
    #[arg(long, default_value_t = 2)]
    smp: u16,
    /// Words added to the kernel's command line
    #[arg(long, default_value = "quiet mitigations=off cryptomgr.notests 8250.nr_uarts=1")]
    cmdline: String,
    /// Use KVM instead of emulation
    #[arg(long)]
    kvm: bool,
    /// Print the console
    #[arg(long)]
    loud: bool,
    /// Most seconds until the web server answers
    #[arg(long, default_value_t = 600)]
    limit: u64,
}

/// Boots the system, fetches objects, logs in, and powers it off.
///
/// # Errors
/// Whatever is not as it should be.
pub fn run(options: &CheckOptions, files: &Distro, progress: &Progress) -> Result<()> {
    ensure!((1..=64).contains(&options.smp), "{} processors: use 1 to 64", options.smp);
    let interrupted = Interrupted::listen()?;
    let config = PlainConfig {
        memory_mib: options.memory,
        processors: options.smp,
        cmdline: options.cmdline.clone(),
        kvm: options.kvm,
    };
    let log = files.folder.join("check-qemu.log");
    let start = Instant::now();
    let mut machine = Plain::start(files, &config, &log, &|line| progress.say(line))?;
    let how = if options.kvm { "KVM" } else { "emulated" };
    progress.say(&format!("a plain QEMU machine boots: {how}, {} processors", options.smp));
    let until = start + Duration::from_secs(options.limit);
    let mut console = Console::default();
    while !console.prompted() {
        if interrupted.is_set() {
            bail!("interrupted");
        }
        if let Some(status) = machine.ended()? {
            let said = fs::read_to_string(&log).unwrap_or_default();
            bail!("QEMU ended with {status} before the login prompt: {}", said.trim());
        }
        ensure!(Instant::now() < until, "no login prompt within {} s; try --loud", options.limit);
        listen(&machine, &mut console, options.loud, progress);
        progress.say_if_quiet(QUIET, || "the guest is starting".to_owned());
    }
    progress.say(&format!("login prompt after {:.1} s", start.elapsed().as_secs_f64()));
    let ports = [SSH_PORT, HTTP_PORT].into_iter().chain((0..options.smp).map(|cpu| CPU_PORT + cpu));
    let program = std::env::current_exe().context("find the running program")?;
    let guest = Guest {
        place: Place::Here(
            ports.filter_map(|port| Some((port, machine.port(port)?))).collect::<BTreeMap<_, _>>(),
        ),
        distro: files,
        program: program.to_str().context("the program's path is not UTF-8")?.to_owned(),
        cpus: options.smp,
        progress,
        interrupted: &interrupted,
    };
    guest.wait_for(HTTP_PORT, until, &mut || {
        listen(&machine, &mut console, options.loud, progress);
        Ok(())
    })?;
    progress.say(&format!("first answer after {:.1} s", start.elapsed().as_secs_f64()));
    guest.check_objects()?;
    guest.check_system()?;
    guest.check_cpus()?;
    guest.power_off()?;
    let status = machine.wait(END_LIMIT)?;
    ensure!(status.success(), "QEMU ended with {status}");
    if let Some(line) = console.trouble() {
        bail!("the guest's kernel says: {line}");
    }
    progress.say("powered off");
    Ok(())
}

fn listen(machine: &Plain, console: &mut Console, loud: bool, progress: &Progress) {
    if let Some(bytes) = machine.console(POLL) {
        for line in console.take(&bytes) {
            if loud {
                progress.say(&format!("console: {line}"));
            }
        }
    }
}
