//! One load on a web server, by a client on the first host.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::http::LoadReport;

use super::client_link::ClientLink;
use crate::bench::devices::Setup;

/// For one request.
const REQUEST_LIMIT: u32 = 40;

/// One load, of so many connections and seconds; answers that fail are an error.
pub(crate) fn load(
    setup: &Setup<'_>,
    url: &str,
    (connections, seconds): (usize, u32),
    line: bool,
) -> Result<LoadReport> {
    let connections = connections.to_string();
    let (seconds_word, limit) = (seconds.to_string(), REQUEST_LIMIT.to_string());
    let prefix = line.then(ClientLink::prefix).into_iter().flatten();
    let words = [setup.guest.program.as_str(), "http", "load", "--connections", &connections];
    let rest = ["--seconds", &seconds_word, "--warm-up", "1", "--limit", &limit, url];
    let words: Vec<_> = prefix.chain(words).chain(rest).map(ToOwned::to_owned).collect();
    // A look at the object, a request in the warm-up and one that counts may each take their limit.
    let most = Duration::from_secs(u64::from(seconds + 4 * REQUEST_LIMIT));
    let said = setup.guest.run(&words, most)?;
    let report: LoadReport = serde_json::from_str(said.trim()).context("read a load's result")?;
    if report.errors > 0 {
        bail!("{} requests failed: {}", report.errors, report.first_error.unwrap_or_default());
    }
    Ok(report)
}
