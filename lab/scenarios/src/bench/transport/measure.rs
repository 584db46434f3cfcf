//! One turn: a program of perftest, or `tessera-link` over a carrier.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Command, Host, HostNumber, Lab};
use serde::Deserialize;

use super::plan::{Mode, Plan, Step, Tool, Waiting, read, send, steps};
use crate::bench::rig::{Figures, Rig};
use crate::links::program::{self, PORT};

/// For one program.
const LIMIT: Duration = Duration::from_secs(180);
/// For one program of perftest, which takes a few, and how often it is tried.
const TOOL_SECONDS: u32 = 40;
const TRIES: u32 = 3;
/// The index of the address by which the hosts know each other.
const GID: &str = "for gid in /sys/class/infiniband/rxe0/ports/1/gids/*; do case $(cat $gid) in \
                   0000:0000:0000:0000:0000:ffff:*) echo ${gid##*/}; exit 0;; esac; done; exit 1";

/// What tessera-link prints.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Found {
    echo_64: Times,
    echo_4096: Times,
    page: Times,
    stream_mb_s: f64,
    remote_write: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Times {
    p50: f64,
    p99: f64,
}

pub(crate) const COLUMNS: [&str; 5] =
    ["64 B p50 us", "4 KiB p50 us", "page p50 us", "page p99 us", "stream MB/s"];
/// Where in [`COLUMNS`] the time of a page is.
pub(crate) const PAGE: usize = 2;

impl Found {
    fn columns(&self) -> Vec<f64> {
        let (echo, page) = ([self.echo_64.p50, self.echo_4096.p50], [self.page.p50, self.page.p99]);
        echo.into_iter().chain(page).chain([self.stream_mb_s]).collect()
    }
}

/// Two hosts, and what was measured between them.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) lab: &'a Lab,
    /// `tessera-link` as hosts see it.
    pub(crate) program: String,
    pub(crate) plan: Plan,
    gid: String,
    pub(crate) asked: Figures<Waiting, Mode>,
    pub(crate) tools: Figures<(), Tool>,
    /// Page fetches against perftest's way of waiting: `asleep`.
    pub(crate) ratios: Figures<(), bool>,
}

impl<'a> Bench<'a> {
    /// Before the first round.
    pub(crate) fn new(rig: &'a Rig, lab: &'a Lab, program: String, plan: Plan) -> Result<Self> {
        let gid = lab
            .host(HostNumber::new(1)?)?
            .output(&Command::shell(GID), LIMIT)
            .context("find the address of the RDMA device")?;
        let gid = gid.trim().to_owned();
        let (asked, tools, ratios) = (Figures::new(), Figures::new(), Figures::new());
        Ok(Self { rig, lab, program, plan, gid, asked, tools, ratios })
    }

    /// All rounds, until one fails.
    pub(crate) fn measure(&mut self) -> Result<()> {
        (0..self.plan.rounds).try_for_each(|round| self.round(round))
    }

    fn host(&self, number: usize) -> Result<Host<'_>> {
        self.lab.host(HostNumber::new(number)?)
    }

    /// Every tool and mode once; what is compared together, before or after all else.
    fn round(&mut self, round: usize) -> Result<()> {
        for step in steps(round) {
            self.rig.check()?;
            let (said, time) = match step {
                Step::Tool(tool) => {
                    let half = self.tool(tool)?;
                    self.tools.add((), tool, round, vec![half]);
                    (tool.to_string(), half)
                }
                Step::Link(mode, waiting) => {
                    let found = self.ask(mode, waiting)?;
                    ensure!(
                        found.remote_write == (mode == Mode::Registered),
                        "{mode}: pages were {}written remotely",
                        if found.remote_write { "" } else { "not " }
                    );
                    let columns = found.columns();
                    let page = columns[PAGE];
                    self.asked.add(waiting, mode, round, columns);
                    (format!("{mode}, {}: page", waiting.name()), page)
                }
            };
            self.rig.say(&format!("round {}: {said}: {time:.1} us", round + 1));
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
                    self.rig.say(&format!("{tool}, try {tries} of {TRIES}: {error:#}"));
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
    fn typical_time_is_found_among_what_perftest_says() {
        let said = " local address: LID 0000 QPN 0x0011\n #bytes #iterations    t_min[usec]    t_max[usec]  \
                    t_typical[usec]    t_avg[usec]\n 64      1000          3.10           99.2         4.25 \
                    \t       5.00\n";

        assert_eq!(typical(said, 64), Some(4.25));
        assert_eq!(typical(said, 4096), None);
    }
}
