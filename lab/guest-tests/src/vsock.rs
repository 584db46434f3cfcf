//! Sockets between guest and host: an echo on the host (`lab/scenarios/src/demo/vsock_echo.rs`) sends back what it gets, in order and
//! to the end.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tessera_guest_tests::VSOCK_ECHO_PORT;

use crate::bench::{Bench, SKIP};
use crate::sys;

/// In the order in which they need each other.
const DRIVERS: [&str; 3] = [
    "/drivers/vsock.ko",
    "/drivers/vmw_vsock_virtio_transport_common.ko",
    "/drivers/vmw_vsock_virtio_transport.ko",
];
const DEVICES: &str = "/sys/bus/virtio/devices";
/// Type of socket devices (virtio 1.2, section 5).
const TYPE: &str = "0x0013";
const HOST_CID: u32 = 2;
/// Bytes that go there and back in one round: more than either side has room for.
const BYTES: usize = 300_000;
/// The longest wait for bytes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn echo(bench: &mut Bench) -> Result<String> {
    if !bench.owns_machine {
        return Ok(format!("{SKIP}only as pid 1"));
    }
    if !has_device() {
        return Ok(format!("{SKIP}no socket device"));
    }
    for path in DRIVERS {
        let driver = File::open(path).with_context(|| format!("open {path}"))?;
        match sys::load_module(driver.as_raw_fd()) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                bail!("load {path}: {error}");
            }
            _ => {}
        }
    }
    if sys::connect_vsock(HOST_CID, VSOCK_ECHO_PORT).is_err_and(|error| is_reset(&error)) {
        return Ok(format!("{SKIP}the host has no echo"));
    }
    for round in 0..bench.rounds {
        there_and_back(usize::try_from(round)?)?;
    }
    // Nobody listens there: the answer is a reset, not silence.
    let refused = sys::connect_vsock(HOST_CID, VSOCK_ECHO_PORT + 1);
    let refused = refused.err().context("a port where nobody listens has answered")?;
    ensure!(is_reset(&refused), "refused with {refused}");
    Ok(format!("bytes={BYTES} rounds={}", bench.rounds))
}

fn is_reset(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECONNRESET)
}

fn has_device() -> bool {
    let devices = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut types = devices.map(|device| fs::read_to_string(device.path().join("device")));
    types.any(|kind| kind.is_ok_and(|kind| kind.trim() == TYPE))
}

fn there_and_back(round: usize) -> Result<()> {
    let socket = sys::connect_vsock(HOST_CID, VSOCK_ECHO_PORT).context("connect to the host")?;
    // Whatever the family: std only reads, writes and shuts down.
    let (mut stream, sent) = (UnixStream::from(socket), pattern(round));
    stream.set_read_timeout(Some(PATIENCE)).context("bound the wait")?;
    let mut writer = stream.try_clone().context("a second descriptor")?;
    let mut got = Vec::new();
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            writer.write_all(&sent)?;
            writer.shutdown(Shutdown::Write)
        });
        let read = stream.read_to_end(&mut got);
        let wrote = writing.join();
        read.context("read what comes back")?;
        wrote.ok().context("the writer has panicked")?.context("write to the host")
    })?;
    ensure!(got.len() == sent.len(), "{} of {} bytes came back", got.len(), sent.len());
    ensure!(got == sent, "other bytes came back");
    Ok(())
}

fn pattern(round: usize) -> Vec<u8> {
    (round..round + BYTES).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}
