//! Requests to the web server of a Debian guest, none of which may fail.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::distro::{HTTP_PORT, OBJECTS};
use lab::http::LoadReport;
use lab::{Command, HostNumber, RemoteProcess};

use crate::distro::guest::Guest;
use crate::vm::scenario::Scenario;

const SECONDS: &str = "8";
const LIMIT: Duration = Duration::from_secs(150);

/// Some seconds of requests over two connections, from the first host.
#[derive(Debug)]
pub(crate) struct Load {
    process: RemoteProcess,
    said: String,
}

impl Load {
    pub(crate) fn start(scenario: &Scenario<'_>, guest: &Guest<'_>) -> Result<Self> {
        let first = scenario.lab.host(HostNumber::new(1)?)?;
        let url = guest.url(HTTP_PORT, OBJECTS[0].name)?;
        let words =
            [&guest.program, "http", "load", "--connections", "2", "--seconds", SECONDS, &url];
        Ok(Self { process: first.spawn(&Command::new(words))?, said: String::new() })
    }

    /// Whether it has ended. Does not wait.
    pub(crate) fn is_over(&mut self) -> bool {
        // The end is behind all lines.
        while let Some(line) = self.process.next_line(Duration::ZERO) {
            self.said.push_str(&line.text);
        }
        self.process.is_over()
    }

    /// Waits for the end; how many requests there were.
    pub(crate) fn end(mut self) -> Result<u64> {
        let (status, lines) = self.process.collect(LIMIT)?;
        lines.iter().for_each(|line| self.said.push_str(&line.text));
        ensure!(status.success(), "the load ended with {status}: {}", self.said);
        let report: LoadReport = serde_json::from_str(&self.said).context("read the load")?;
        ensure!(report.errors == 0, "{} requests failed: {:?}", report.errors, report.first_error);
        Ok(report.requests)
    }
}
