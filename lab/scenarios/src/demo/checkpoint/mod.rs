//! `./x demo --checkpoint`: a Debian system over two hosts, under load, is written down while it runs on, killed without mercy,
//! and goes on on one host and on three.
//!
//! ```text
//!   boot on two ─> clocks, compute, fio, a connection, requests ─> checkpoint, live (with --incremental: one more after ten
//!                                                                    minutes, an increment) ─> under load ─> all killed
//!     ─> on one ─> under load ─> all killed
//!     ─> on three, from the same ─> under load ─> checkpoint --end: status 0
//!     ─> on one ─> under load ─> fio verifies, results the same, clocks never back, connection whole, randomness reseeded,
//!                                no kernel warning ─> power off: status 0
//! ```
//! The disk is a qcow2 file in the folder that the hosts share: each checkpoint has its state, and a restore puts it back.

mod life;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::distro::{self, Distro};
use outcome::table;
use serde_json::{Value, json};

use crate::soak::load::Load;
use crate::soak::migrate::check_kernel;
use crate::soak::{clocks, compute, loopback, verify};
use crate::vm::VmOptions;
use crate::vm::distro::TAP;
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
/// Name of the checkpoint that is written on two hosts while the VM runs on, from which it goes on twice.
const LIVE: &str = "live";
/// Name of what that one is an increment of, with --incremental.
const FULL: &str = "full";
/// Name of the one with which the VM on three hosts ends.
const LAST: &str = "last";
/// For a login on a guest with vCPUs on several emulated hosts, beside all that goes on there.
const ASK_LIMIT: Duration = Duration::from_secs(900);
/// Between a checkpoint and its increment.
const BETWEEN: Duration = Duration::from_secs(600);
/// Says how often the guest's kernel has taken new randomness because its generation id has changed, and random bytes.
const RANDOMNESS: &str = "dmesg | grep -c 'reseeded due to virtual machine fork' || true; cat /proc/sys/kernel/random/uuid";
const COLUMNS: [&str; 6] = ["checkpoint", "took ms", "stood still ms", "MiB", "pages", "then"];

/// What came of the run.
#[derive(Debug, Default)]
struct Told {
    rows: Vec<Vec<String>>,
    requests: u64,
    /// What the guest's source of randomness gave after each restore.
    random: Vec<String>,
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
pub(super) fn run(
    scenario: &Scenario<'_>,
    distro: &Distro,
    incremental: bool,
) -> Result<(bool, Value)> {
    let mut told = Told::default();
    let output = scenario.output(scenario.loud);
    let began = Instant::now();
    let led = lead(scenario, (distro, incremental), &output, &mut told);
    ensure!(!scenario.interrupted.is_set(), "interrupted");
    println!("\n{}", table::text(&COLUMNS, &told.rows, 1));
    told.good.iter().for_each(|line| println!("{line}"));
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
        "incremental": incremental,
        "columns": COLUMNS,
        "checkpoints": rows,
    });
    Ok((led.is_ok(), report))
}

fn lead(
    scenario: &Scenario<'_>,
    (distro, incremental): (&Distro, bool),
    output: &Arc<Output>,
    told: &mut Told,
) -> Result<()> {
    saves::prepare(scenario.lab)?;
    first(scenario)?.tap(TAP, distro::HOST_ADDRESS)?;
    let all = scenario.layout.all();
    let one = |from| -> Result<_> { Ok(Where { layout: Layout::of(vec![all])?, from }) };
    let two = Where { layout: scenario.layout.clone(), from: None };
    live(scenario, distro, two, output, &mut |alive| on_two(alive, incremental, told))
        .context("on two hosts")?;
    live(scenario, distro, one(Some(LIVE))?, output, &mut |alive| {
        goes_on(alive, "on one host", 1, told)?;
        Ok(End::Killed)
    })
    .context("on one host, until it is killed")?;
    let three = Where { layout: Layout::of(vec![all - 1, 1, 0])?, from: Some(LIVE) };
    live(scenario, distro, three, output, &mut |alive| on_three(alive, told))
        .context("on three hosts")?;
    live(scenario, distro, one(Some(LAST))?, output, &mut |alive| at_last(alive, told))
        .context("on one host at last")?;
    saves::clear(scenario.lab)
}

/// Starts all that must go on, has the VM written down while it runs on, and leaves it to be killed.
fn on_two(alive: &Alive<'_>, incremental: bool, told: &mut Told) -> Result<End> {
    let (scenario, guest) = (alive.scenario, alive.guest);
    ask(scenario, "spread")?;
    clocks::start(guest)?;
    compute::start(guest)?;
    loopback::start(guest)?;
    verify::start(guest)?;
    let load = Load::start(scenario, guest)?;
    if incremental {
        write(alive, (FULL, &[]), "an increment", told)?;
        told.requests += load.end()?;
        let until = Instant::now() + BETWEEN;
        while Instant::now() < until {
            under_load(alive, "on two hosts, until the increment", told)?;
        }
        let load = Load::start(scenario, guest)?;
        write(alive, (LIVE, &["--incremental"]), "killed; on one host, on three", told)?;
        told.requests += load.end()?;
    } else {
        write(alive, (LIVE, &[]), "killed; on one host, on three", told)?;
        told.requests += load.end()?;
    }
    under_load(alive, "on two hosts", told)?;
    Ok(End::Killed)
}

fn on_three(alive: &Alive<'_>, told: &mut Told) -> Result<End> {
    goes_on(alive, "on three hosts", 1, told)?;
    alive.guest.forget_login();
    write(alive, (LAST, &["--end", "--compress"]), "on one host", told)?;
    Ok(End::Well)
}

/// Looks at all that has gone on. A guest on several emulated hosts would take many minutes for it.
fn at_last(alive: &Alive<'_>, told: &mut Told) -> Result<End> {
    goes_on(alive, "on one host at last", 2, told)?;
    let guest = alive.guest;
    told.good = vec![
        format!("{} requests, none failed", told.requests),
        format!("{} passes of fio, all verified", verify::end(guest)?),
        format!("{} results, all the same", compute::end(guest)?),
        format!("{} readings of clocks, none went back", clocks::end(guest)?),
        format!("{} answers over one connection of the guest's own", loopback::end(guest)?),
        format!("{} restores, each with randomness of its own", told.random.len()),
    ];
    check_kernel(guest)?;
    guest.check_objects()?;
    guest.check_cpus()?;
    guest.power_off()?;
    Ok(End::Well)
}

/// The VM was restored: its kernel has heard of so many restores in all, and it answers.
fn goes_on(alive: &Alive<'_>, place: &str, restores: u32, told: &mut Told) -> Result<()> {
    let said = alive.guest.ssh_within(RANDOMNESS, ASK_LIMIT).context("ask for randomness")?;
    let mut lines = said.lines().map(str::trim);
    let (count, random) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    ensure!(
        count.parse() == Ok(restores),
        "{place}: the guest has reseeded {count} times, not {restores}: the generation id has not changed"
    );
    ensure!(!random.is_empty(), "{place}: the guest gives no random bytes: {said:?}");
    ensure!(
        !told.random.iter().any(|former| former == random),
        "{place}: the guest gives the same random bytes as before: {random}"
    );
    told.random.push(random.to_owned());
    under_load(alive, place, told)
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
