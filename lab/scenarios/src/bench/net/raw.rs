//! A web server on the second host itself, without any VM: what the lab's network gives.

use std::time::Duration;

use anyhow::{Result, bail};
use lab::http::LoadReport;
use lab::{Command, RemoteProcess};

use super::load::load;
use crate::bench::devices::Setup;

/// Port of the server.
const PORT: u16 = 8800;
const LIMIT: Duration = Duration::from_secs(60);

/// Starts the server on host 2 and waits until it listens.
pub(crate) fn raw_server(setup: &Setup<'_>) -> Result<RemoteProcess> {
    let host = setup.host(2)?;
    let address = format!("{}:{PORT}", host.address());
    let words = [setup.guest.program.as_str(), "http", "serve", &address];
    let mut server = host.spawn(&Command::new(words))?;
    match server.next_line(LIMIT) {
        Some(line) if line.text == "listening" => Ok(server),
        Some(line) => bail!("the server on host 2 says: {}", line.text),
        None => bail!("the server on host 2 does not listen within {LIMIT:?}"),
    }
}

/// An object of that server.
pub(crate) fn raw_url(setup: &Setup<'_>, object: &str) -> Result<String> {
    Ok(format!("http://{}:{PORT}/{object}", setup.host(2)?.address()))
}

/// A load on it, one request at a time.
pub(crate) fn raw_load(setup: &Setup<'_>, object: &str, seconds: u32) -> Result<LoadReport> {
    load(setup, &raw_url(setup, object)?, (1, seconds), false)
}
