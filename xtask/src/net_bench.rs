//! `./x bench net`: what a web server's worker on the other host's vCPU loses against one beside the
//! network device (the paper's figure 6).
//!
//! ```text
//!   host 1: client ──┬─ tap0 (rings=bypass) ──── worker on vCPU 0     local
//!                    ├─ tap0 ────────────┄┄┄┄┄── worker on vCPU 1     bypass
//!                    ├─ tap1 (rings=coherent)┄┄─ worker on vCPU 1     coherent
//!                    └─ the lab's network ─ ─ ─  process on host 2    raw: no VM
//! ```
//! The modes take turns for each object, in another order each round.

use std::collections::BTreeSet;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::distro::{CPU_PORT, GUEST_ADDRESS, OBJECTS, Object};
use lab::http::LoadReport;
use lab::{Command, RemoteProcess};
use outcome::{Bar, Outcome, Row};

use crate::bench::BenchOptions;
use crate::device_bench::{self, Bed, Experiment, LOCAL_CPU, REMOTE_CPU, Tap};
use crate::rounds::Rounds;

const SECOND_TAP: Tap = Tap { name: "tap1", address: "192.168.78.1/24" };
const SECOND_ADDRESS: &str = "192.168.78.2";
const SECOND_MAC: &str = "52:54:00:78:00:02";
/// Port of the server on host 2 itself.
const RAW_PORT: u16 = 8800;
/// Requests on their way at a time.
const CONNECTIONS: usize = 2;
/// For one request.
const REQUEST_LIMIT: u32 = 40;
const SERVER_LIMIT: Duration = Duration::from_secs(60);
const COLUMNS: [&str; 2] = ["requests/s", "p50 ms"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Raw,
    Local,
    Bypass,
    Coherent,
}

const MODES: [Mode; 4] = [Mode::Raw, Mode::Local, Mode::Bypass, Mode::Coherent];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Raw => "raw",
            Self::Local => "local",
            Self::Bypass => "bypass",
            Self::Coherent => "coherent",
        })
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    objects: &'static [&'static str],
    rounds: usize,
    /// Of one load, after one second of warm-up.
    seconds: u32,
}

const QUICK: Plan = Plan { objects: &["1k", "64k", "1m"], rounds: 2, seconds: 4 };
const FULL: Plan =
    Plan { objects: &["1k", "4k", "16k", "64k", "256k", "1m", "2m"], rounds: 5, seconds: 8 };

pub(crate) fn run(options: &BenchOptions) -> Result<ExitCode> {
    let words = options.rest.as_slice();
    let plan = if options.quick { QUICK } else { FULL };
    let taps = [SECOND_TAP];
    let experiment = Experiment { name: "net", disks: &[], disk_speed: None, taps: &taps };
    let devices = |_: &[String]| {
        let nic = format!("{},mac={SECOND_MAC},rings=coherent", SECOND_TAP.name);
        vec!["--net".to_owned(), nic]
    };
    device_bench::run(&experiment, words, &devices, &mut |bed, outcome| {
        second_device(bed)?;
        let _server = raw_server(bed)?;
        let mut failed = BTreeSet::new();
        let mut rounds = Rounds::new();
        let result = measure(bed, plan, &mut failed, &mut rounds);
        // What was measured before a failure is told too.
        tell(&rounds, plan, outcome);
        let notes = &mut outcome.conditions.notes;
        notes.push(format!(
            "{CONNECTIONS} connections, each one request at a time; {} s a load, {} rounds; medians of \
             the rounds, ratios of loads of the same round",
            plan.seconds, plan.rounds
        ));
        notes.push(
            "raw: a process on host 2 asked over the lab's network, without a VM: no VM on host 2 can \
             answer sooner"
                .to_owned(),
        );
        notes.extend(failed);
        result
    })
}

/// Gives the second device its own address; until now the guest took both for the first. There is no
/// message bus in the guest by which networkd could be told.
fn second_device(bed: &Bed<'_>) -> Result<()> {
    let line = format!(
        "set -e; nic=; for path in /sys/class/net/*; do \
         if [ \"$(cat \"$path/address\")\" = {SECOND_MAC} ]; then nic=${{path##*/}}; fi; done; \
         [ -n \"$nic\" ] || {{ echo no device has the address {SECOND_MAC} >&2; exit 1; }}; \
         ip address replace {SECOND_ADDRESS}/24 dev $nic; \
         ip address delete {GUEST_ADDRESS}/24 dev $nic 2>/dev/null || true; ip link set $nic up; \
         ip -4 -o address show dev $nic"
    );
    let said = bed.guest.ssh(&line).context("give the second network device its address")?;
    let right = said.contains(SECOND_ADDRESS) && !said.contains(&format!("{GUEST_ADDRESS}/"));
    ensure!(right, "the second network device has other addresses: {}", said.trim());
    bed.progress.say(&format!("second network device of the guest: {}", said.trim()));
    Ok(())
}

/// Starts the server on host 2 and waits until it listens.
pub(crate) fn raw_server(bed: &Bed<'_>) -> Result<RemoteProcess> {
    let host = bed.host(2)?;
    let address = format!("{}:{RAW_PORT}", host.address());
    let words = [bed.guest.program.as_str(), "http", "serve", &address];
    let mut server = host.spawn(&Command::new(words))?;
    match server.next_line(SERVER_LIMIT) {
        Some(line) if line.text == "listening" => Ok(server),
        Some(line) => bail!("the server on host 2 says: {}", line.text),
        None => bail!("the server on host 2 does not listen within {SERVER_LIMIT:?}"),
    }
}

fn url(bed: &Bed<'_>, mode: Mode, object: &str) -> Result<String> {
    let (address, port) = match mode {
        Mode::Raw => (bed.host(2)?.address().to_string(), RAW_PORT),
        Mode::Local => (GUEST_ADDRESS.to_owned(), CPU_PORT + LOCAL_CPU),
        Mode::Bypass => (GUEST_ADDRESS.to_owned(), CPU_PORT + REMOTE_CPU),
        Mode::Coherent => (SECOND_ADDRESS.to_owned(), CPU_PORT + REMOTE_CPU),
    };
    Ok(format!("http://{address}:{port}/{object}"))
}

/// A load on the server on host 2, without the VM: what the lab's network gives, one request at a time.
pub(crate) fn raw_load(bed: &Bed<'_>, object: &str, seconds: u32) -> Result<LoadReport> {
    load(bed, &url(bed, Mode::Raw, object)?, 1, seconds)
}

/// One load; answers that fail are an error.
fn load(bed: &Bed<'_>, url: &str, connections: usize, seconds: u32) -> Result<LoadReport> {
    let connections = connections.to_string();
    let (seconds_word, limit) = (seconds.to_string(), REQUEST_LIMIT.to_string());
    let words = [bed.guest.program.as_str(), "http", "load", "--connections", &connections];
    let rest = ["--seconds", &seconds_word, "--warm-up", "1", "--limit", &limit, url];
    let words: Vec<_> = words.into_iter().chain(rest).map(ToOwned::to_owned).collect();
    // A look at the object, a request in the warm-up and one that counts may each take their limit.
    let most = Duration::from_secs(u64::from(seconds + 4 * REQUEST_LIMIT));
    let said = bed.guest.run(&words, most)?;
    let report: LoadReport = serde_json::from_str(said.trim()).context("read a load's result")?;
    if report.errors > 0 {
        bail!("{} requests failed: {}", report.errors, report.first_error.unwrap_or_default());
    }
    Ok(report)
}

/// All loads in turn. A mode that fails for an object is not asked for that one again.
fn measure(
    bed: &Bed<'_>,
    plan: Plan,
    failed: &mut BTreeSet<String>,
    rounds: &mut Rounds<usize, Mode>,
) -> Result<()> {
    let mut out = BTreeSet::new();
    for round in 0..plan.rounds {
        for object in objects(plan) {
            for turn in 0..MODES.len() {
                bed.check()?;
                let mode = MODES[(turn + round) % MODES.len()];
                if out.contains(&(object.bytes, mode)) {
                    continue;
                }
                let url = url(bed, mode, object.name)?;
                match load(bed, &url, CONNECTIONS, plan.seconds) {
                    Ok(report) => {
                        #[expect(clippy::cast_precision_loss, reason = "minutes at most")]
                        let p50 = report.latency_us.p50 as f64 / 1e3;
                        let rate = report.requests_per_second;
                        bed.progress.say(&format!(
                            "round {} of {}, {} {mode}: {rate:.2} requests/s, p50 {p50:.1} ms, {} \
                             requests",
                            round + 1,
                            plan.rounds,
                            object.name,
                            report.requests
                        ));
                        rounds.add(object.bytes, mode, round, vec![rate, p50]);
                    }
                    Err(error) if mode == Mode::Coherent => {
                        let why = format!("{} {mode} was given up: {error:#}", object.name);
                        bed.progress.say(&why);
                        failed.insert(why);
                        out.insert((object.bytes, mode));
                    }
                    Err(error) => {
                        return Err(error).with_context(|| format!("{} {mode}", object.name));
                    }
                }
            }
        }
    }
    Ok(())
}

fn objects(plan: Plan) -> impl Iterator<Item = Object> {
    OBJECTS.into_iter().filter(move |object| plan.objects.contains(&object.name))
}

/// Rows, ratios and bars.
fn tell(rounds: &Rounds<usize, Mode>, plan: Plan, outcome: &mut Outcome) {
    COLUMNS[0].clone_into(&mut outcome.shown);
    for object in objects(plan) {
        for mode in MODES {
            let name = format!("{:>4} {mode}", object.name);
            outcome.rows.extend(rounds.row(name, object.bytes, mode, &COLUMNS));
        }
    }
    for object in objects(plan) {
        // Requests for each second: more of the first means that the second is slower.
        let slower = |over, under| rounds.ratio(object.bytes, over, under, 0);
        let pairs = [
            ("local/bypass", slower(Mode::Local, Mode::Bypass)),
            ("local/coherent", slower(Mode::Local, Mode::Coherent)),
            ("local/raw", slower(Mode::Local, Mode::Raw)),
            ("raw/bypass", slower(Mode::Raw, Mode::Bypass)),
        ];
        let figures =
            pairs.iter().filter_map(|(name, ratio)| Some(((*name).to_owned(), (*ratio)?)));
        let name = format!("{:>4} times slower", object.name);
        let figures: Vec<_> = figures.collect();
        if !figures.is_empty() {
            outcome.rows.push(Row { name, figures });
        }
        if let (Some(found), Some(bound)) = (pairs[0].1, bound(object.bytes)) {
            let what = format!("{}: times that bypass is slower than local", object.name);
            outcome.bars.push(Bar { what, found, bound, at_most: true });
        }
    }
}

/// How many times slower bypass may be.
fn bound(bytes: usize) -> Option<f64> {
    match bytes {
        0..4096 => Some(1.5),
        4096..0x4_0000 => None,
        _ => Some(1.05),
    }
}

#[cfg(test)]
mod tests {
    use outcome::Conditions;

    use super::*;

    fn empty() -> Outcome {
        let (conditions, shown) = (Conditions::now(), String::new());
        Outcome { name: "net".into(), conditions, rows: vec![], bars: vec![], shown }
    }

    #[test]
    fn bars_are_those_of_small_and_large_objects() {
        let mut rounds = Rounds::new();
        for object in objects(FULL) {
            rounds.add(object.bytes, Mode::Local, 0, vec![12.0, 1.0]);
            rounds.add(object.bytes, Mode::Bypass, 0, vec![10.0, 1.2]);
        }
        let mut outcome = empty();
        tell(&rounds, FULL, &mut outcome);

        let bars: Vec<_> = outcome.bars.iter().map(|bar| (bar.bound, bar.holds())).collect();
        assert_eq!(bars, [(1.5, true), (1.05, false), (1.05, false), (1.05, false)]);
        assert!(outcome.table().contains("1k times slower"));
    }

    #[test]
    fn every_planned_object_is_one_of_the_guest() {
        for plan in [QUICK, FULL] {
            assert_eq!(objects(plan).count(), plan.objects.len());
        }
        assert_ne!(SECOND_TAP.name, crate::distro_demo::TAP);
    }
}
