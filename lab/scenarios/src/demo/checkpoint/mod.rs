//! `./x demo --checkpoint`: a Debian system over two hosts, under load, is written down, killed, and goes on on one host and on
//! three.
//!
//! ```text
//!   boot on two ─> clocks, compute, fio, a connection, requests ─> checkpoint refused for the disk, then written
//!                                                                    in spite of it, while the VM runs on
//!     ─> checkpoint --end: status 0 ─> copy of the disk
//!     ─> on one ─> under load ─> all killed ─> the disk put back
//!     ─> on one, from the same ─> under load ─> checkpoint --end ─> on three ─> under load
//!     ─> consolidated to one ─> fio verifies, results the same, clocks never back, connection whole, no kernel warning ─> power off: status 0
//! ```
//! The disk is a raw image, which a checkpoint has no state of: the demo copies it while no VM has it.

mod life;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::Command;
use lab::distro::{self, Distro};
use outcome::table;
use serde_json::{Value, json};

use crate::soak::load::Load;
use crate::soak::migrate::check_kernel;
use crate::soak::{clocks, compute, loopback, verify};
use crate::vm::VmOptions;
use crate::vm::distro::{TAP, disk};
use crate::vm::layout::Layout;
use crate::vm::output::Output;
use crate::vm::relocate::Said;
use crate::vm::saves::{self, Written};
use crate::vm::scenario::Scenario;
use life::{Alive, End, Where, first, live};

/// On emulated hosts Debian boots several times as fast as with a vCPU on each.
const LAYOUT: &str = "2+0";
/// Hosts that the VM goes on on in the end.
pub(super) const HOSTS: usize = 3;
/// Memory of the VM in MiB: it can be shared out evenly over 1 to 3 slices.
const MEMORY_MIB: u32 = 528;
/// For a copy of the disk.
const COPY_LIMIT: Duration = Duration::from_secs(900);
/// Name of the checkpoint that the VM goes on from twice.
const FIRST: &str = "on-two";
/// Name of the last one.
const SECOND: &str = "on-one";
/// Name of one that is written while the VM runs on.
const LIVE: &str = "live";
const COLUMNS: [&str; 6] = ["checkpoint", "took ms", "stood still ms", "MiB", "pages", "then"];

/// What came of the run.
#[derive(Debug, Default)]
struct Told {
    rows: Vec<Vec<String>>,
    requests: u64,
    good: Vec<String>,
}

/// What the VM needs for it.
pub(super) fn prepare(vm: &mut VmOptions) -> Result<()> {
    if vm.hosts.is_none() {
        vm.layout.get_or_insert(LAYOUT.parse()?);
    }
    vm.default_memory(MEMORY_MIB);
    let layout: Layout = vm.layout()?;
    ensure!(layout.slices() == 2, "--layout {layout}: --checkpoint begins with two slices");
    ensure!(layout.all() > 1, "--layout {layout}: one vCPU cannot be spread");
    vm.offer_all(&layout);
    Ok(())
}

/// Leads all lives of the VM; true when all was good, and the report.
pub(super) fn run(scenario: &Scenario<'_>, distro: &Distro) -> Result<(bool, Value)> {
    let mut told = Told::default();
    let output = scenario.output(scenario.loud);
    let began = Instant::now();
    let led = lead(scenario, distro, &output, &mut told);
    ensure!(!scenario.interrupted.is_set(), "interrupted");
    println!("\n{}", table::text(&COLUMNS, &told.rows, 1));
    told.good.iter().for_each(|line| println!("{line}"));
    println!(
        "the disk: a raw image, copied after a checkpoint with --end, and put back before the VM went on from it again"
    );
    let problems: Vec<String> = match &led {
        Ok(()) => Vec::new(),
        Err(error) => [vec![format!("{error:#}")], output.tail()].concat(),
    };
    problems.iter().for_each(|line| println!("problem: {line}"));
    let rows: Vec<_> = told.rows.iter().map(|row| json!(row)).collect();
    let report = json!({
        "substrate": scenario.lab.substrate().to_string(),
        "mode": scenario.lab.mode(),
        "passed": problems.is_empty(),
        "problems": problems,
        "seconds": began.elapsed().as_secs_f64(),
        "columns": COLUMNS,
        "checkpoints": rows,
    });
    Ok((led.is_ok(), report))
}

fn lead(
    scenario: &Scenario<'_>,
    distro: &Distro,
    output: &Arc<Output>,
    told: &mut Told,
) -> Result<()> {
    saves::prepare(scenario.lab)?;
    first(scenario)?.tap(TAP, distro::HOST_ADDRESS)?;
    let layout = |vcpus: &[u32]| Layout::of(vcpus.to_vec());
    let all = scenario.layout.all();
    let two = Where { layout: scenario.layout.clone(), from: None };
    live(scenario, distro, two, output, &mut |alive| on_two(alive, told))
        .context("on two hosts")?;
    copy(scenario, Copy::Keep)?;
    let one = || -> Result<_> { Ok(Where { layout: layout(&[all])?, from: Some(FIRST) }) };
    live(scenario, distro, one()?, output, &mut |alive| {
        under_load(alive, "on one host", told)?;
        Ok(End::Killed)
    })
    .context("on one host, until it is killed")?;
    if let Some(row) = told.rows.last_mut() {
        row[5].push_str(", where it is killed first");
    }
    copy(scenario, Copy::PutBack)?;
    live(scenario, distro, one()?, output, &mut |alive| on_one_again(alive, told))
        .context("on one host again")?;
    let three = layout(&[all - 1, 1, 0])?;
    let three = Where { layout: three, from: Some(SECOND) };
    live(scenario, distro, three, output, &mut |alive| on_three(alive, told))
        .context("on three hosts")?;
    saves::clear(scenario.lab)
}

/// Starts all that must go on, and has the VM written down: once while it runs on, and once with its end.
fn on_two(alive: &Alive<'_>, told: &mut Told) -> Result<End> {
    let (scenario, guest) = (alive.scenario, alive.guest);
    ask(scenario, "spread")?;
    clocks::start(guest)?;
    compute::start(guest)?;
    loopback::start(guest)?;
    verify::start(guest)?;
    let load = Load::start(scenario, guest)?;
    let refused = scenario.checkpoint(LIVE, &[])?;
    ensure!(
        refused.as_ref().is_err_and(|why| why.contains("cannot be kept")),
        "a VM with a raw disk is written down while it runs on: {refused:?}"
    );
    let options = ["--no-disk-guarantee"];
    write(alive, (LIVE, &options), "runs on, and is written once more", told)?;
    told.requests += load.end()?;
    saves::remove(scenario.lab, LIVE)?;
    under_load(alive, "on two hosts", told)?;
    end(alive, FIRST, "on one host, twice", told)
}

fn on_one_again(alive: &Alive<'_>, told: &mut Told) -> Result<End> {
    under_load(alive, "on one host again", told)?;
    end(alive, SECOND, "on three hosts", told)
}

/// Looks at all that has gone on.
fn on_three(alive: &Alive<'_>, told: &mut Told) -> Result<End> {
    under_load(alive, "on three hosts", told)?;
    // A guest on two emulated hosts takes many minutes for what follows.
    ask(alive.scenario, "consolidate")?;
    let guest = alive.guest;
    told.good = vec![
        format!("{} requests, none failed", told.requests),
        format!("{} passes of fio, all verified", verify::end(guest)?),
        format!("{} results, all the same", compute::end(guest)?),
        format!("{} readings of clocks, none went back", clocks::end(guest)?),
        format!("{} answers over one connection of the guest's own", loopback::end(guest)?),
    ];
    check_kernel(guest)?;
    guest.check_objects()?;
    guest.check_cpus()?;
    guest.power_off()?;
    Ok(End::Well)
}

fn ask(scenario: &Scenario<'_>, verb: &str) -> Result<()> {
    match scenario.ask_vm(&[verb])? {
        Said::Took(_) | Said::Nothing(_) => Ok(()),
        Said::GivenUp(why) => bail!("{verb}: {why}"),
    }
}

/// Some requests, all of which must be answered.
fn under_load(alive: &Alive<'_>, place: &str, told: &mut Told) -> Result<()> {
    let mut load = Load::start(alive.scenario, alive.guest)?;
    while !load.is_over() {
        alive.check()?;
        thread::sleep(Duration::from_millis(200));
    }
    let requests = load.end().with_context(|| place.to_owned())?;
    check_kernel(alive.guest)?;
    told.requests += requests;
    alive.scenario.progress.say(&format!("{place}: {requests} requests, none failed"));
    Ok(())
}

/// Writes a checkpoint with which the VM ends.
fn end(alive: &Alive<'_>, name: &str, then: &str, told: &mut Told) -> Result<End> {
    alive.guest.forget_login();
    write(alive, (name, &["--end", "--compress"]), then, told)?;
    Ok(End::Well)
}

fn write(
    alive: &Alive<'_>,
    (name, options): (&str, &[&str]),
    then: &str,
    told: &mut Told,
) -> Result<()> {
    let written = alive.scenario.checkpoint(name, options)?;
    let written: Written = match written {
        Ok(written) => written,
        Err(why) => bail!("checkpoint '{name}': {why}"),
    };
    let Written { milliseconds, paused_milliseconds, bytes, pages } = written;
    alive.scenario.progress.say(&format!("checkpoint '{name}': {written:?}"));
    told.rows.push(vec![
        name.to_owned(),
        format!("{milliseconds:.0}"),
        format!("{paused_milliseconds:.0}"),
        (bytes >> 20).to_string(),
        pages.to_string(),
        then.to_owned(),
    ]);
    Ok(())
}

/// What is done with the copy of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copy {
    Keep,
    PutBack,
}

/// Copies the disk, which no VM has now.
fn copy(scenario: &Scenario<'_>, what: Copy) -> Result<()> {
    let host = first(scenario)?;
    let disk = disk(&host)?;
    let copy = host.shared_inside()?.join("checkpoints/disk.copy").display().to_string();
    let line = match what {
        Copy::Keep => format!("dd if={disk} of={copy} bs=4M iflag=direct conv=sparse,fsync"),
        Copy::PutBack => {
            format!("dd if={copy} of={disk} bs=4M oflag=direct conv=notrunc,fsync")
        }
    };
    scenario.progress.say(&format!("disk of host 1: {line}"));
    host.output(&Command::shell(line), COPY_LIMIT).context("copy the disk").map(drop)
}
