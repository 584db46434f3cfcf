//! An Ethernet switch in user space: the hosts' private network.
//!
//! Every QEMU process has a `-netdev dgram` whose frames are datagrams on unix sockets. A port of the
//! switch is the other end of one such pair. The address of a host tells its port, so nothing is
//! learned; group addresses go to every port. A port can be cut: frames from and to it vanish, as with
//! a pulled cable.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result};

/// Largest frame QEMU sends (64 KiB of segmentation offload and a header).
const MAX_FRAME: usize = 80 * 1024;
/// How often a port looks whether it should end.
const POLL: Duration = Duration::from_millis(200);
/// How long a full receiver holds up a sender before the frame is dropped.
const FULL: Duration = Duration::from_secs(1);
const MAC_PREFIX: [u8; 5] = [0x52, 0x54, 0x00, 0x09, 0x00];

/// Ethernet address of the host on a port, counted from 0.
pub(crate) fn mac(port: usize) -> String {
    let [a, b, c, d, e] = MAC_PREFIX;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{:02x}", port + 1)
}

#[derive(Debug)]
struct Ports {
    sockets: Vec<UnixDatagram>,
    hosts: Vec<PathBuf>,
    cut: Vec<AtomicBool>,
    stop: AtomicBool,
}

/// The switch; dropping it ends its threads.
#[derive(Debug)]
pub(crate) struct Switch {
    ports: Arc<Ports>,
    threads: Vec<JoinHandle<()>>,
}

/// The two socket paths of a port: the host's end and the switch's end.
pub(crate) fn socket_paths(folder: &Path, port: usize) -> (PathBuf, PathBuf) {
    let number = port + 1;
    let name = |end: &str| folder.join(format!("host-{number}-{end}.sock"));
    (name("net"), name("switch"))
}

impl Switch {
    /// A switch with its sockets in a folder.
    pub(crate) fn start(folder: &Path, count: usize) -> Result<Self> {
        let mut sockets = Vec::new();
        let mut hosts = Vec::new();
        for port in 0..count {
            let (host, own) = socket_paths(folder, port);
            drop(fs::remove_file(&own));
            let socket =
                UnixDatagram::bind(&own).with_context(|| format!("bind {}", own.display()))?;
            socket.set_read_timeout(Some(POLL)).context("set the time limit of a switch port")?;
            socket.set_write_timeout(Some(FULL)).context("set the time limit of a switch port")?;
            sockets.push(socket);
            hosts.push(host);
        }
        let cut = (0..count).map(|_| AtomicBool::new(false)).collect();
        let ports = Arc::new(Ports { sockets, hosts, cut, stop: AtomicBool::new(false) });
        let mut switch = Self { ports: Arc::clone(&ports), threads: Vec::new() };
        for port in 0..count {
            let ports = Arc::clone(&ports);
            let thread = thread::Builder::new()
                .name(format!("lab-port-{}", port + 1))
                .spawn(move || ports.serve(port))
                .context("start a switch port")?;
            switch.threads.push(thread);
        }
        Ok(switch)
    }

    /// Cuts a port off (`true`) or connects it again (`false`).
    pub(crate) fn set_cut(&self, port: usize, cut: bool) {
        if let Some(flag) = self.ports.cut.get(port) {
            flag.store(cut, Ordering::SeqCst);
        }
    }

    /// True when a port is cut off.
    pub(crate) fn is_cut(&self, port: usize) -> bool {
        self.ports.cut.get(port).is_some_and(|flag| flag.load(Ordering::SeqCst))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.ports.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // A port that panicked has nothing to end.
            drop(thread.join());
        }
    }
}

impl Ports {
    fn serve(&self, port: usize) {
        let mut frame = vec![0; MAX_FRAME];
        while !self.stop.load(Ordering::SeqCst) {
            match self.sockets[port].recv(&mut frame) {
                Ok(length) => self.forward(port, &frame[..length]),
                Err(error) if would_wait(&error) => {}
                // The host is gone or starts again; a closed peer gives errors until it is back.
                Err(_) => thread::sleep(POLL),
            }
        }
    }

    fn forward(&self, from: usize, frame: &[u8]) {
        let Some(target) = frame.first_chunk::<6>() else { return };
        if self.cut[from].load(Ordering::SeqCst) {
            return;
        }
        for to in targets(*target, from, self.hosts.len()) {
            if !self.cut[to].load(Ordering::SeqCst) {
                // A host that is not there or does not read loses frames, as on any network.
                drop(self.sockets[from].send_to(frame, &self.hosts[to]));
            }
        }
    }
}

fn would_wait(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// The ports a frame goes to.
fn targets(address: [u8; 6], from: usize, count: usize) -> Vec<usize> {
    let [prefix @ .., last] = address;
    if address[0] & 1 == 1 {
        return (0..count).filter(|&port| port != from).collect();
    }
    let port = usize::from(last).checked_sub(1);
    port.filter(|&port| prefix == MAC_PREFIX && port < count && port != from).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_goes_to_all_but_the_sender() {
        assert_eq!(targets([0xff; 6], 1, 3), [0, 2]);
    }

    #[test]
    fn unicast_goes_to_the_port_in_its_address() {
        assert_eq!(targets([0x52, 0x54, 0, 9, 0, 3], 0, 3), [2]);
    }

    #[test]
    fn unknown_unicast_goes_nowhere() {
        assert!(targets([0x52, 0x54, 0, 9, 0, 9], 0, 3).is_empty());
        assert!(targets([2, 0, 0, 0, 0, 1], 0, 3).is_empty());
    }

    #[test]
    fn cut_port_gets_nothing_until_it_is_healed() {
        let folder = std::env::temp_dir().join(format!("tessera-switch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let switch = Switch::start(&folder, 2).unwrap();
        let two = UnixDatagram::bind(socket_paths(&folder, 1).0).unwrap();
        two.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let frame = |tag: u8| [0x52, 0x54, 0, 9, 0, 2, 0, 0, 0, 0, 0, tag];

        switch.set_cut(1, true);
        switch.ports.forward(0, &frame(2));
        switch.set_cut(1, false);
        switch.ports.forward(0, &frame(3));

        let mut seen = [0; 64];
        let mut tags = Vec::new();
        while tags.last() != Some(&3) {
            let length = two.recv(&mut seen).unwrap();
            tags.push(seen[length - 1]);
        }
        assert!(!tags.contains(&2), "{tags:?}");
        drop(switch);
        fs::remove_dir_all(&folder).unwrap();
    }
}
