//! A network device that echoes datagrams, on a port for each CPU, until the machine ends. What comes back is judged
//! from outside: a datagram is a record ([`tessera_guest_tests::records`]).

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tessera_guest_tests::records::{ECHO_PORT, RECORD_BYTES};

use crate::affinity::Topology;
use crate::{report, sys};

/// In the order in which they need each other.
const DRIVERS: [&str; 3] =
    ["/drivers/failover.ko", "/drivers/net_failover.ko", "/drivers/virtio_net.ko"];
const DEVICE: &str = "/sys/class/net/eth0";
/// The device comes by itself once there is a driver.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// Gives the first network device an address with the length of its prefix, and echoes.
///
/// # Errors
/// No driver, or no device.
pub(crate) fn echo(address: &str, topology: &Topology) -> Result<()> {
    for path in DRIVERS {
        let driver = File::open(path).with_context(|| format!("open {path}"))?;
        sys::load_module(driver.as_raw_fd()).with_context(|| format!("load {path}"))?;
    }
    let mut waited = Duration::ZERO;
    while !Path::new(DEVICE).exists() {
        ensure!(waited < PATIENCE, "there is no network device");
        thread::sleep(POLL);
        waited += POLL;
    }
    ip(&["address", "add", address, "dev", "eth0"])?;
    ip(&["link", "set", "eth0", "up"])?;
    for (port, cpu) in (ECHO_PORT..).zip(&topology.cpus) {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).context("open a port")?;
        let cpu = cpu.id;
        thread::spawn(move || {
            let result = sys::pin_to(cpu).context("pin an echo").and_then(|()| serve(&socket));
            if let Err(error) = result {
                report::line(&format!("NET error {port} {error:#}"));
            }
        });
    }
    Ok(())
}

fn ip(words: &[&str]) -> Result<()> {
    let status = Command::new("/bin/busybox").arg("ip").args(words).status();
    let status = status.context("start busybox")?;
    ensure!(status.success(), "busybox ip {words:?} ended with {status}");
    Ok(())
}

fn serve(socket: &UdpSocket) -> Result<()> {
    let mut bytes = vec![0; 2 * RECORD_BYTES];
    loop {
        let (length, from) = socket.recv_from(&mut bytes).context("receive")?;
        // Who asked may be gone.
        let _ = socket.send_to(&bytes[..length], from);
    }
}
