//! A network device that echoes datagrams, on a port for each CPU, until the machine ends. What comes back is judged
//! from outside: a datagram is a record ([`tessera_guest_tests::records`]).

use std::fs::{self, File};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
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
/// A port that echoes nothing for so long, by the guest's clock, while another does stands still.
const STANDSTILL: Duration = Duration::from_secs(4);
/// What the kernel counts of the network: files, and words of the lines that matter.
const COUNTERS: [(&str, &[&str]); 5] = [
    ("/proc/interrupts", &["CPU", "virtio", "LOC", "RES", "CAL"]),
    ("/proc/softirqs", &["CPU", "NET", "TIMER"]),
    ("/proc/net/dev", &["eth0"]),
    ("/proc/net/snmp", &["Ip:", "Udp:"]),
    ("/proc/net/udp", &[":"]),
];

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
    let echoed: Arc<[AtomicU64]> = topology.cpus.iter().map(|_| AtomicU64::new(0)).collect();
    for ((port, cpu), number) in (ECHO_PORT..).zip(&topology.cpus).zip(0..) {
        let counts = Arc::clone(&echoed);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).context("open a port")?;
        let cpu = cpu.id;
        thread::spawn(move || {
            let result = sys::pin_to(cpu)
                .context("pin an echo")
                .and_then(|()| serve(&socket, &counts[number]));
            if let Err(error) = result {
                report::line(&format!("NET error {port} {error:#}"));
            }
        });
    }
    thread::spawn(move || watch(&echoed));
    Ok(())
}

/// Tells once what the kernel counts when a port echoes nothing for a while and others do.
fn watch(echoed: &[AtomicU64]) {
    let now = || echoed.iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>();
    let mut before = now();
    loop {
        thread::sleep(STANDSTILL);
        let after = now();
        let stood = before.iter().zip(&after).filter(|(before, after)| before == after).count();
        if stood > 0 && stood < after.len() {
            report::line(&format!("NET standstill {before:?} {after:?}"));
            for (path, words) in COUNTERS {
                tell(path, words);
            }
            return;
        }
        before = after;
    }
}

/// Lines of a file of the kernel with one of these words.
fn tell(path: &str, words: &[&str]) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| format!("{error}"));
    for line in text.lines().filter(|line| words.iter().any(|word| line.contains(word))) {
        report::line(&format!("NET {path} {line}"));
    }
}

/// Runs busybox's `ip`.
pub(crate) fn ip(words: &[&str]) -> Result<()> {
    let status = Command::new("/bin/busybox").arg("ip").args(words).status();
    let status = status.context("start busybox")?;
    ensure!(status.success(), "busybox ip {words:?} ended with {status}");
    Ok(())
}

fn serve(socket: &UdpSocket, echoed: &AtomicU64) -> Result<()> {
    let mut bytes = vec![0; 2 * RECORD_BYTES];
    loop {
        let (length, from) = socket.recv_from(&mut bytes).context("receive")?;
        // Who asked may be gone.
        let _ = socket.send_to(&bytes[..length], from);
        echoed.fetch_add(1, Relaxed);
    }
}
