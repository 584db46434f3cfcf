//! A web server on a host itself, without any VM.

use std::time::Duration;

use anyhow::{Result, bail};
use lab::{Command, Host, RemoteProcess};

const LIMIT: Duration = Duration::from_secs(60);

/// Starts one, which is this program as the host sees it, and waits until it listens.
pub(crate) fn web_server(host: &Host<'_>, program: &str, address: &str) -> Result<RemoteProcess> {
    let mut server = host.spawn(&Command::new([program, "http", "serve", address]))?;
    let number = host.number();
    match server.next_line(LIMIT) {
        Some(line) if line.text == "listening" => Ok(server),
        Some(line) => bail!("the server on host {number} says: {}", line.text),
        None => bail!("the server on host {number} does not listen within {LIMIT:?}"),
    }
}
