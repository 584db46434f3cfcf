//! `./x bench transport`: what carries frames and pages between two hosts of a lab with soft-RoCE, beside
//! perftest between the same hosts.
//!
//! ```text
//!   each round: ib_send_lat, ib_write_lat, ib_read_lat ─┐
//!               tcp, rdma (pool), rdma (registered) ────┴─ host 1 ──> host 2
//!               shm ──────────────────────────────────────  both ends on host 1
//! ```
//! perftest looks for what comes all the time, and in a second turn sleeps in between (`-e`). A slice waits as
//! the memory engine does, which is what the bars are about: it looks about as long as an answer takes, and not at
//! all where answers take a millisecond. That it looks all the time is measured too, and judged by nothing: on
//! hosts with one processor, as the lab's are, who looks keeps the kernel from doing what is looked for.
//!
//! These hosts share the machine with everything else, so what a bar compares is measured in one go and its ratio
//! is taken for each round.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Command, Config, Host, HostNumber, Lab, Mode as LabMode};
use outcome::{Bar, Conditions, Outcome, Row};
use serde::Deserialize;

use crate::bench::options::BenchOptions;
use crate::bench::rounds::Rounds;
use crate::links::program::{self, PORT};
use crate::progress::Progress;
use crate::workspace;

/// For one program.
const LIMIT: Duration = Duration::from_secs(180);
/// For one program of perftest, which takes a few, and how often it is tried.
const TOOL_SECONDS: u32 = 40;
const TRIES: u32 = 3;
/// Page fetches take at most this many times a bare read of a page and a bare send together.
const BOUND: f64 = 1.3;
/// The index of the address by which the hosts know each other.
const GID: &str = "for gid in /sys/class/infiniband/rxe0/ports/1/gids/*; do case $(cat $gid) in \
                   0000:0000:0000:0000:0000:ffff:*) echo ${gid##*/}; exit 0;; esac; done; exit 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Shm,
    Tcp,
    Pool,
    Registered,
}

/// How `tessera-link` waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waiting {
    Engine,
    Looking,
}

const WAYS: [Waiting; 2] = [Waiting::Engine, Waiting::Looking];

impl Waiting {
    /// As the option says it.
    fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Looking => "looking",
        }
    }
}

/// What is measured between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tool(Tool),
    Link(Mode, Waiting),
}

/// What the bars compare.
const COMPARED: [Step; 5] = [
    Step::Tool(send(true)),
    Step::Tool(read(true)),
    Step::Link(Mode::Registered, Waiting::Engine),
    Step::Tool(read(false)),
    Step::Tool(send(false)),
];

const MODES: [Mode; 4] = [Mode::Shm, Mode::Tcp, Mode::Pool, Mode::Registered];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Pool => "rdma pool",
            Self::Registered => "rdma registered",
        })
    }
}

impl Mode {
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Shm => &[],
            Self::Tcp => &["--carrier", "tcp"],
            Self::Pool => &["--carrier", "rdma", "--memory", "pool"],
            Self::Registered => &["--carrier", "rdma", "--memory", "registered"],
        }
    }
}

/// A program of perftest with the size it is asked about, and whether it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tool(&'static str, u32, bool);

const fn send(asleep: bool) -> Tool {
    Tool("ib_send_lat", 64, asleep)
}

const fn read(asleep: bool) -> Tool {
    Tool("ib_read_lat", 4096, asleep)
}

/// `ib_write_lat` cannot sleep: nothing wakes who is written to.
const TOOLS: [Tool; 5] =
    [send(true), read(true), send(false), read(false), Tool("ib_write_lat", 64, false)];

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, bytes, asleep) = self;
        write!(f, "{name}{} {bytes} B", if *asleep { " -e" } else { "" })
    }
}

const TOOL_COLUMN: &str = "p50 us";

/// What tessera-link prints.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Found {
    echo_64: Times,
    echo_4096: Times,
    page: Times,
    stream_mb_s: f64,
    placed: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Times {
    p50: f64,
    p99: f64,
}

const COLUMNS: [&str; 5] =
    ["64 B p50 us", "4 KiB p50 us", "page p50 us", "page p99 us", "stream MB/s"];
const PAGE: usize = 2;

impl Found {
    fn columns(&self) -> Vec<f64> {
        let (echo, page) = ([self.echo_64.p50, self.echo_4096.p50], [self.page.p50, self.page.p99]);
        echo.into_iter().chain(page).chain([self.stream_mb_s]).collect()
    }
}

struct Plan {
    rounds: usize,
    count: u32,
    stream: u32,
}

const QUICK: Plan = Plan { rounds: 3, count: 300, stream: 8 };
const FULL: Plan = Plan { rounds: 9, count: 300, stream: 8 };

struct Bench {
    lab: Lab,
    /// The program as hosts see it.
    program: String,
    plan: Plan,
    gid: String,
    progress: Progress,
    asked: Rounds<Waiting, Mode>,
    tools: Rounds<(), Tool>,
    /// Page fetches against perftest's way of waiting: `asleep`.
    ratios: Rounds<(), bool>,
}

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    ensure!(options.rest.is_empty(), "this experiment has no VM, so it takes no options of one");
    let built = program::build()?;
    let progress = Progress::new();
    let config = Config {
        name: "bench-transport".to_owned(),
        hosts: 2,
        mode: LabMode::Machines,
        rdma: true,
        ..Config::default()
    };
    let lab = Lab::up(&config, &|line| progress.say(line))?;
    let program = program::install(&lab, &built)?;
    let plan = if options.quick { QUICK } else { FULL };
    let gid = lab
        .host(HostNumber::new(1)?)?
        .output(&Command::shell(GID), LIMIT)
        .context("find the address of the RDMA device")?;
    let gid = gid.trim().to_owned();
    let (asked, tools, ratios) = (Rounds::new(), Rounds::new(), Rounds::new());
    let mut bench = Bench { lab, program, plan, gid, progress, asked, tools, ratios };
    for round in 0..bench.plan.rounds {
        bench.round(round)?;
    }
    let outcome = bench.outcome()?;
    let path = outcome.write(&workspace::target(&workspace::root()?).join("bench"))?;
    print!("\n{}", outcome.table());
    println!("written: {} and beside it", path.display());
    Ok(if outcome.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Bench {
    fn host(&self, number: usize) -> Result<Host<'_>> {
        self.lab.host(HostNumber::new(number)?)
    }

    /// Every tool and mode once; what is compared together, before or after all else.
    fn round(&mut self, round: usize) -> Result<()> {
        for step in order(round) {
            let (said, time) = match step {
                Step::Tool(tool) => {
                    let half = self.tool(tool)?;
                    self.tools.add((), tool, round, vec![half]);
                    (tool.to_string(), half)
                }
                Step::Link(mode, waiting) => {
                    let found = self.ask(mode, waiting)?;
                    ensure!(
                        found.placed == (mode == Mode::Registered),
                        "{mode}: pages were {}placed",
                        if found.placed { "" } else { "not " }
                    );
                    let columns = found.columns();
                    let page = columns[PAGE];
                    self.asked.add(waiting, mode, round, columns);
                    (format!("{mode}, {}: page", waiting.name()), page)
                }
            };
            self.progress.say(&format!("round {}: {said}: {time:.1} us", round + 1));
        }
        for asleep in [true, false] {
            let found = self.asked.of(Waiting::Engine, Mode::Registered, round, PAGE);
            let bare = |tool| self.tools.of((), tool, round, 0);
            let ratio = || Some(found? / (bare(read(asleep))? + bare(send(asleep))?));
            let ratio = ratio().context("some figures that a bar is about are missing")?;
            self.ratios.add((), asleep, round, vec![ratio]);
        }
        Ok(())
    }

    /// Half a round trip, or a read, in microseconds: the column `t_typical`.
    fn tool(&self, tool: Tool) -> Result<f64> {
        let mut tries = 1;
        loop {
            match self.tool_once(tool) {
                Err(error) if tries < TRIES => {
                    self.progress.say(&format!("{tool}, try {tries} of {TRIES}: {error:#}"));
                    tries += 1;
                }
                end => return end,
            }
        }
    }

    /// With a new server. A program that sleeps may miss what it sleeps for, and then never ends.
    fn tool_once(&self, Tool(name, bytes, asleep): Tool) -> Result<f64> {
        let (count, gid) = (self.plan.count, &self.gid);
        let events = if asleep { " -e" } else { "" };
        let words = format!("{name} -d rxe0 -x {gid} -s {bytes} -n {count} -F{events}");
        let server = self.host(2)?.spawn(&Command::shell(format!("exec {words}")))?;
        let to = self.host(2)?.address();
        // The server does not say when it listens.
        let line = format!(
            "for try in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3; timeout {TOOL_SECONDS} {words} {to} 2>&1; \
             case $? in 0) exit 0;; 124) echo stuck >&2; exit 1;; esac; done; exit 1"
        );
        let said = self.host(1)?.output(&Command::shell(line), LIMIT);
        program::end(server);
        let said = said?;
        typical(&said, bytes).with_context(|| format!("read what {name} says:\n{said}"))
    }

    fn ask(&self, mode: Mode, waiting: Waiting) -> Result<Found> {
        let (count, stream) = (self.plan.count.to_string(), self.plan.stream.to_string());
        let mut words = vec![self.program.as_str()];
        let waiting = ["--waiting", waiting.name()];
        let how = ["--count", &count, "--stream", &stream];
        if mode == Mode::Shm {
            words.push("shm");
            words.extend(how.iter().chain(&waiting));
            return self.found(&words);
        }
        let listen = format!("0.0.0.0:{PORT}");
        let to = format!("{}:{PORT}", self.host(2)?.address());
        let serve = [self.program.as_str(), "serve", "--listen", &listen];
        let server = Command::new(serve.iter().chain(&waiting).copied());
        let server = program::serve(&self.host(2)?, &server)?;
        words.extend(["ask", "--to", &to]);
        words.extend(mode.words().iter().chain(&how).chain(&waiting));
        let found = self.found(&words);
        program::end(server);
        found.with_context(|| format!("measure {mode}"))
    }

    fn found(&self, words: &[&str]) -> Result<Found> {
        let said = self.host(1)?.output(&Command::new(words.iter().copied()), LIMIT)?;
        let line = said.lines().last().unwrap_or_default();
        serde_json::from_str(line).with_context(|| format!("read {said:?}"))
    }

    fn outcome(&self) -> Result<Outcome> {
        let mut conditions = Conditions::now();
        let Plan { rounds, count, .. } = self.plan;
        conditions.notes.extend([
            format!(
                "two hosts ({}), one processor each, soft-RoCE; shm on one of them",
                self.lab.substrate()
            ),
            format!("medians of {rounds} rounds of {count} trips; ratios of the same round"),
            "ib_send_lat and ib_write_lat tell half a round trip".to_owned(),
        ]);
        let tool_row = |tool: &Tool| self.tools.row(tool.to_string(), (), *tool, &[TOOL_COLUMN]);
        let mut rows: Vec<Row> = TOOLS.iter().filter_map(tool_row).collect();
        for waiting in WAYS {
            let how = waiting.name();
            let row =
                |mode: &Mode| self.asked.row(format!("{mode}, {how}"), waiting, *mode, &COLUMNS);
            rows.extend(MODES.iter().filter_map(row));
        }
        let bar = |asleep| {
            let found = self.ratios.median((), asleep, 0)?;
            let (read, send) = (read(asleep), send(asleep));
            let what = format!("page fetch, rdma registered, engine, against {read} + {send}");
            Some(Bar { what, found, bound: BOUND, at_most: true })
        };
        let bars: Vec<Bar> = [false, true].into_iter().filter_map(bar).collect();
        ensure!(bars.len() == 2, "some figures that a bar is about are missing");
        let (name, shown) = ("transport".to_owned(), COLUMNS[PAGE].to_owned());
        Ok(Outcome { name, conditions, rows, bars, shown })
    }
}

/// The steps of a round. What is compared stays together; all else turns, before or after it.
fn order(round: usize) -> Vec<Step> {
    let links = WAYS.iter().flat_map(|way| MODES.iter().map(|mode| Step::Link(*mode, *way)));
    let all = TOOLS.iter().map(|tool| Step::Tool(*tool)).chain(links);
    let mut others: Vec<_> = all.filter(|step| !COMPARED.contains(step)).collect();
    let turn = round % others.len();
    others.rotate_left(turn);
    if round.is_multiple_of(2) {
        COMPARED.into_iter().chain(others).collect()
    } else {
        others.into_iter().chain(COMPARED.into_iter().rev()).collect()
    }
}

/// The fifth column of the line about so many bytes.
fn typical(said: &str, bytes: u32) -> Option<f64> {
    let fields = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let size = bytes.to_string();
    let mut lines = fields.filter(|fields| fields.first() == Some(&size.as_str()));
    lines.find_map(|fields| fields.get(4)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_measures_everything_once_and_what_is_compared_together() {
        for round in 0..12 {
            let steps = order(round);
            assert_eq!(steps.len(), TOOLS.len() + WAYS.len() * MODES.len());
            let mut compared = COMPARED;
            if round % 2 == 1 {
                compared.reverse();
            }
            assert!(steps.windows(compared.len()).any(|steps| steps == compared));
            let once = |step| steps.iter().filter(|other| *other == step).count() == 1;
            assert!(steps.iter().all(once));
        }
    }

    #[test]
    fn typical_time_is_found_among_what_perftest_says() {
        let said = " local address: LID 0000 QPN 0x0011\n #bytes #iterations    t_min[usec]    t_max[usec]  \
                    t_typical[usec]    t_avg[usec]\n 64      1000          3.10           99.2         4.25 \
                    \t       5.00\n";

        assert_eq!(typical(said, 64), Some(4.25));
        assert_eq!(typical(said, 4096), None);
    }
}
