//! A web server on the second host itself, without any VM: what the lab's network gives.

use anyhow::Result;
use lab::RemoteProcess;
use lab::http::LoadReport;

use super::load::load;
use crate::bench::devices::Setup;
use crate::bench::rig::web_server;

/// Port of the server.
const PORT: u16 = 8800;

/// Starts the server on host 2 and waits until it listens.
pub(crate) fn raw_server(setup: &Setup<'_>) -> Result<RemoteProcess> {
    let host = setup.host(2)?;
    let address = format!("{}:{PORT}", host.address());
    web_server(&host, &setup.guest.program, &address)
}

/// An object of that server.
pub(crate) fn raw_url(setup: &Setup<'_>, object: &str) -> Result<String> {
    Ok(format!("http://{}:{PORT}/{object}", setup.host(2)?.address()))
}

/// A load on it, one request at a time.
pub(crate) fn raw_load(setup: &Setup<'_>, object: &str, seconds: u32) -> Result<LoadReport> {
    load(setup, &raw_url(setup, object)?, (1, seconds), false)
}
