//! `./x bench net`: what a web server's worker on the other host's vCPU loses against one beside the
//! network device (the paper's figure 6).
//!
//! ```text
//!   host 1: client ──┬─ tap0 (rings=bypass) ──── worker on vCPU 0     local
//!                    ├─ tap0 ────────────┄┄┄┄┄── worker on vCPU 1     bypass
//!                    ├─ tap1 (rings=coherent)┄┄─ worker on vCPU 1     coherent
//!                    └─ the lab's network ─ ─ ─  process on host 2    raw: no VM
//! ```
//! The modes take turns for each object, in another order each round; before the first, each has a load that is not
//! looked at, for its first requests bring programs and tables across.
//!
//! On emulated hosts the client has a line ([`crate::bench::client_link`], `--client-speed`) that is about as much slower
//! than the lab's network as in the paper's cluster. Without it a large object beside the device comes as fast as
//! memory is copied; the last rows tell that, too. What the hosts' network gives is `raw`, which has no such line.

use std::collections::BTreeSet;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::distro::{CPU_PORT, GUEST_ADDRESS, OBJECTS, Object};
use lab::http::LoadReport;
use lab::{Command, Mode as LabMode, RemoteProcess};
use outcome::{Bar, Outcome, Row};

use crate::bench::client_link::ClientLink;
use crate::bench::device::{self, Bed, Experiment, LOCAL_CPU, REMOTE_CPU, Tap};
use crate::bench::options::BenchOptions;
use crate::bench::rounds::Rounds;
use crate::vm::distro::TAP;

/// First numbers of the addresses of both taps' networks.
const NETWORKS: [&str; 2] = ["192.168.77", "192.168.78"];
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
    /// Rounds of the largest objects without a line.
    free_rounds: usize,
}

const QUICK: Plan = Plan { objects: &["1k", "64k", "1m"], rounds: 2, seconds: 6, free_rounds: 1 };
const FULL: Plan = Plan {
    objects: &["1k", "4k", "16k", "64k", "256k", "1m", "2m"],
    rounds: 3,
    seconds: 8,
    free_rounds: 2,
};
/// Measured without a line as well.
const FREE: &str = "1m";

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let words = options.rest.as_slice();
    let plan = if options.quick { QUICK } else { FULL };
    ensure!(options.rounds != Some(0), "--rounds 0 leaves nothing to do");
    let plan = Plan { rounds: options.rounds.map_or(plan.rounds, usize::from), ..plan };
    let taps = [SECOND_TAP];
    let experiment = Experiment { name: "net", disks: &[], disk_speed: None, taps: &taps };
    let devices = |_: &[String]| {
        let nic = format!("{},mac={SECOND_MAC},rings=coherent", SECOND_TAP.name);
        vec!["--net".to_owned(), nic]
    };
    let speed = options.client_speed;
    device::run(&experiment, words, &devices, &mut |bed, outcome| {
        second_device(bed)?;
        let _server = raw_server(bed)?;
        let line = (speed > 0 && bed.scenario.lab.mode() == LabMode::Machines)
            .then(|| {
                ClientLink::make(
                    bed.host(1)?,
                    speed,
                    &[(TAP, NETWORKS[0]), (SECOND_TAP.name, NETWORKS[1])],
                )
            })
            .transpose()?;
        let mut notes = conditions(plan, line.is_some().then_some(speed));
        let mut loads =
            Loads { bed, seconds: plan.seconds, line: line.is_some(), failed: BTreeSet::new() };
        let (mut rounds, mut free) = (Rounds::new(), Rounds::new());
        loads.warm_up(plan);
        let mut result = loads.measure(&objects(plan.objects), &MODES, plan.rounds, &mut rounds);
        if line.is_some() && result.is_ok() {
            loads.line = false;
            result = loads.measure(&objects(&[FREE]), &MODES[..3], plan.free_rounds, &mut free);
        }
        // What was measured before a failure is told too.
        tell(&rounds, plan, outcome);
        for object in objects(&[FREE]) {
            outcome.rows.extend(rows(&free, object, " without a line"));
        }
        notes.extend(loads.failed);
        outcome.conditions.notes.extend(notes);
        result
    })
}

fn conditions(plan: Plan, line: Option<u32>) -> Vec<String> {
    let line = line.map_or_else(
        || "the client is on host 1 and has no line: what comes is as fast as memory".to_owned(),
        |speed| format!("the client's line: {speed} MB/s, see `raw`, which has none"),
    );
    vec![
        format!(
            "{CONNECTIONS} connections, each one request at a time; {} s a load, {} rounds; medians of \
             the rounds, ratios of loads of the same round",
            plan.seconds, plan.rounds
        ),
        "raw: a process on host 2 asked over the lab's network, without a VM: no VM on host 2 can \
         answer sooner"
            .to_owned(),
        line,
    ]
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
    load(bed, &url(bed, Mode::Raw, object)?, (1, seconds), false)
}

/// One load, of so many connections and seconds; answers that fail are an error.
fn load(
    bed: &Bed<'_>,
    url: &str,
    (connections, seconds): (usize, u32),
    line: bool,
) -> Result<LoadReport> {
    let connections = connections.to_string();
    let (seconds_word, limit) = (seconds.to_string(), REQUEST_LIMIT.to_string());
    let prefix = line.then(ClientLink::prefix).into_iter().flatten();
    let words = [bed.guest.program.as_str(), "http", "load", "--connections", &connections];
    let rest = ["--seconds", &seconds_word, "--warm-up", "1", "--limit", &limit, url];
    let words: Vec<_> = prefix.chain(words).chain(rest).map(ToOwned::to_owned).collect();
    // A look at the object, a request in the warm-up and one that counts may each take their limit.
    let most = Duration::from_secs(u64::from(seconds + 4 * REQUEST_LIMIT));
    let said = bed.guest.run(&words, most)?;
    let report: LoadReport = serde_json::from_str(said.trim()).context("read a load's result")?;
    if report.errors > 0 {
        bail!("{} requests failed: {}", report.errors, report.first_error.unwrap_or_default());
    }
    Ok(report)
}

/// Loads on the servers of a VM that is up.
struct Loads<'a> {
    bed: &'a Bed<'a>,
    /// Of one load.
    seconds: u32,
    /// Whether the client has a line of its own.
    line: bool,
    /// Loads that were given up, and why.
    failed: BTreeSet<String>,
}

impl Loads<'_> {
    fn load(&self, mode: Mode, object: Object) -> Result<LoadReport> {
        let url = url(self.bed, mode, object.name)?;
        load(self.bed, &url, (CONNECTIONS, self.seconds), self.line && mode != Mode::Raw)
    }

    /// Loads of which nothing is kept.
    fn warm_up(&self, plan: Plan) {
        let Some(object) = objects(plan.objects).into_iter().next() else { return };
        for mode in MODES {
            let how = match self.load(mode, object) {
                Ok(report) => format!("{} requests", report.requests),
                // It is told if it fails again.
                Err(error) => format!("{error:#}"),
            };
            self.bed.progress.say(&format!("warm-up, {} {mode}: {how}", object.name));
        }
    }

    /// All loads in turn. A mode that fails for an object is not asked for that one again.
    fn measure(
        &mut self,
        objects: &[Object],
        modes: &[Mode],
        times: usize,
        rounds: &mut Rounds<usize, Mode>,
    ) -> Result<()> {
        let mut out = BTreeSet::new();
        for (round, object) in
            (0..times).flat_map(|round| objects.iter().map(move |object| (round, *object)))
        {
            for turn in 0..modes.len() {
                self.bed.check()?;
                let mode = modes[(turn + round) % modes.len()];
                if out.contains(&(object.bytes, mode)) {
                    continue;
                }
                let name = format!("{} {mode}", object.name);
                match self.load(mode, object) {
                    Ok(report) => {
                        #[expect(clippy::cast_precision_loss, reason = "minutes at most")]
                        let p50 = report.latency_us.p50 as f64 / 1e3;
                        let (rate, requests) = (report.requests_per_second, report.requests);
                        let free = if self.line { "" } else { ", no line" };
                        self.bed.progress.say(&format!(
                            "round {} of {times}, {name}: {rate:.2} requests/s, p50 {p50:.1} ms, {requests} \
                             requests{free}",
                            round + 1,
                        ));
                        rounds.add(object.bytes, mode, round, vec![rate, p50]);
                    }
                    Err(error) if mode == Mode::Coherent => {
                        let why = format!("{name} was given up: {error:#}");
                        self.bed.progress.say(&why);
                        self.failed.insert(why);
                        out.insert((object.bytes, mode));
                    }
                    Err(error) => return Err(error).context(name),
                }
            }
        }
        Ok(())
    }
}

fn objects(names: &[&str]) -> Vec<Object> {
    OBJECTS.into_iter().filter(|object| names.contains(&object.name)).collect()
}

/// A row for each mode, and one with their ratios.
fn rows(rounds: &Rounds<usize, Mode>, object: Object, how: &str) -> Vec<Row> {
    let name = |of: &str| format!("{:>4} {of}{how}", object.name);
    let each = |mode: Mode| rounds.row(name(&mode.to_string()), object.bytes, mode, &COLUMNS);
    let mut rows: Vec<_> = MODES.into_iter().filter_map(each).collect();
    // Requests for each second: more of the first means that the second is slower.
    let slower = |over, under| rounds.ratio(object.bytes, over, under, 0);
    let pairs = [
        ("local/bypass", slower(Mode::Local, Mode::Bypass)),
        ("local/coherent", slower(Mode::Local, Mode::Coherent)),
        ("local/raw", slower(Mode::Local, Mode::Raw)),
        ("raw/bypass", slower(Mode::Raw, Mode::Bypass)),
    ];
    let figures: Vec<_> =
        pairs.into_iter().filter_map(|(name, ratio)| Some((name.to_owned(), ratio?))).collect();
    if !figures.is_empty() {
        rows.push(Row { name: name("times slower"), figures });
    }
    rows
}

/// Rows, ratios and bars.
fn tell(rounds: &Rounds<usize, Mode>, plan: Plan, outcome: &mut Outcome) {
    COLUMNS[0].clone_into(&mut outcome.shown);
    for object in objects(plan.objects) {
        outcome.rows.extend(rows(rounds, object, ""));
        let found = rounds.ratio(object.bytes, Mode::Local, Mode::Bypass, 0);
        if let (Some(found), Some(bound)) = (found, bound(object.bytes)) {
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
        for object in objects(FULL.objects) {
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
            assert_eq!(objects(plan.objects).len(), plan.objects.len());
        }
        assert_ne!(SECOND_TAP.name, TAP);
    }
}
