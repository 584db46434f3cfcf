//! Requests for a page of PHP, made by the first host.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::http::LoadReport;

use super::plan::CONNECTIONS;
use crate::distro::guest::Guest;

/// Port of the web server whose pages PHP makes.
const PORT: u16 = 8080;
/// For one request, and for all.
const REQUEST_LIMIT: u32 = 3000;
const LIMIT: Duration = Duration::from_secs(7200);
/// A page takes so long at least when its work is measured, beside all that is not work.
const MEASURED_SECONDS: f64 = 4.0;
/// Requests before.
const WARM_UP: u64 = 12;
/// Rounds of work to begin with, and most.
const ROUNDS: u64 = 20_000;
const ROUNDS_MAX: u64 = 1 << 40;

/// How fast PHP works here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Php {
    rounds_per_second: f64,
}

impl Php {
    /// Measures it: some pages, each with twice as much work as the one before, until one takes long enough.
    pub(crate) fn measure(guest: &Guest<'_>) -> Result<Self> {
        // All workers have compiled the page, and have a connection.
        seconds(guest, 0, (CONNECTIONS, WARM_UP))?;
        let (empty, mut rounds) = (seconds(guest, 0, (1, 1))?, ROUNDS);
        while rounds < ROUNDS_MAX {
            let work = seconds(guest, rounds, (1, 1))? - empty;
            if work >= MEASURED_SECONDS {
                #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
                let rounds = rounds as f64;
                return Ok(Self { rounds_per_second: rounds / work });
            }
            rounds *= 2;
        }
        bail!("a page with {ROUNDS_MAX} rounds of work takes no time")
    }

    /// Seconds of this machine for so many requests, each with work for so many of its seconds.
    pub(crate) fn requests(self, guest: &Guest<'_>, work: f64, requests: u64) -> Result<f64> {
        let rounds = (self.rounds_per_second * work).clamp(1.0, 1e12);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let rounds = rounds as u64;
        seconds(guest, rounds, (CONNECTIONS, requests))
    }
}

/// Seconds of this machine for requests over so many connections.
fn seconds(guest: &Guest<'_>, rounds: u64, (connections, requests): (usize, u64)) -> Result<f64> {
    let url = guest.url(PORT, &format!("page.php?rounds={rounds}"))?;
    let connections = connections.to_string();
    let (requests_word, limit) = (requests.to_string(), REQUEST_LIMIT.to_string());
    let words = [&guest.program, "http", "load", "--connections", &connections];
    let rest = ["--requests", &requests_word, "--limit", &limit, &url];
    let words: Vec<_> = words.into_iter().chain(rest).map(str::to_owned).collect();
    let said = guest.run(&words, LIMIT)?;
    let report: LoadReport = serde_json::from_str(said.trim()).context("read a load's result")?;
    let why = report.first_error.unwrap_or_default();
    ensure!(report.errors == 0 && report.requests == requests, "requests failed: {why}");
    Ok(report.seconds)
}
