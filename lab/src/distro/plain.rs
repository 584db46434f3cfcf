//! The system on a plain QEMU machine, without Tessera: what proves the image itself.
//!
//! Its network is QEMU's own in user mode, with ports of this machine passed on to the guest. Its disk
//! is the image in the cache, of which writes are thrown away.

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::{CPU_PORT, Distro, GUEST_ADDRESS, HOST_ADDRESS, HTTP_PORT};
use crate::{machine, packages};

const SSH_PORT: u16 = 22;
const POLL: Duration = Duration::from_millis(50);
/// Pieces of the console that wait to be read before the guest is held up.
const QUEUE: usize = 1024;

/// How the machine is made.
#[derive(Clone, Debug)]
pub struct PlainConfig {
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Processors.
    pub processors: u16,
    /// Words added to the kernel's command line.
    pub cmdline: String,
    /// Use KVM instead of emulation.
    pub kvm: bool,
}

/// A machine that runs. Dropping it ends it as a power cut would.
#[derive(Debug)]
pub struct Plain {
    child: Child,
    /// Port of the guest and the port of this machine that leads there.
    ports: Vec<(u16, u16)>,
    console: Receiver<Vec<u8>>,
}

impl Plain {
    /// Starts the machine; QEMU's own messages go into `log`.
    ///
    /// # Errors
    /// When QEMU is missing or does not start.
    pub fn start(
        distro: &Distro,
        config: &PlainConfig,
        log: &Path,
        say: &dyn Fn(&str),
    ) -> Result<Self> {
        let packages = packages::prepare(say)?;
        let cpus = (0..config.processors).map(|cpu| CPU_PORT + cpu);
        let ports = free_ports([SSH_PORT, HTTP_PORT].into_iter().chain(cpus))?;
        let mut process = machine::qemu(&packages);
        if config.kvm {
            process.args(["-accel", "kvm", "-cpu", "host"]);
        } else {
            process.args(["-accel", "tcg,thread=multi", "-cpu", "EPYC"]);
        }
        process.args(["-machine", "q35", "-m", &config.memory_mib.to_string()]);
        process.args(["-smp", &config.processors.to_string()]);
        process.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        process.args(["-serial", "stdio"]);
        process.arg("-kernel").arg(&distro.vmlinuz).arg("-initrd").arg(&distro.initrd);
        process
            .arg("-append")
            .arg(format!("{} {}", super::COMMAND_LINE, config.cmdline).trim_end());
        let image = packages::text(&distro.image)?;
        process.arg("-drive").arg(machine::drive("disk", image, "raw", true)?);
        process.args(["-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"]);
        process.arg("-netdev").arg(user_network(&ports));
        process.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        let log = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let mut child = process
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("start QEMU by setpriv")?;
        let mut output = child.stdout.take().context("output of QEMU")?;
        let (sender, console) = bounded(QUEUE);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, ports, console })
    }

    /// What the console says next. `None`: nothing within the limit, or the machine has ended.
    pub fn console(&self, limit: Duration) -> Option<Vec<u8>> {
        match self.console.recv_timeout(limit) {
            Ok(bytes) => Some(bytes),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // Whoever asks again and again is not to use a whole processor for it.
                thread::sleep(limit.min(POLL));
                None
            }
        }
    }

    /// The port of this machine that leads to a port of the guest.
    pub fn port(&self, guest: u16) -> Option<u16> {
        self.ports.iter().find(|(inside, _)| *inside == guest).map(|(_, outside)| *outside)
    }

    /// How the machine ended, when it has.
    ///
    /// # Errors
    /// When QEMU cannot be waited for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("look after QEMU")
    }

    /// Waits for the end; the console has to be read or be quiet meanwhile.
    ///
    /// # Errors
    /// When the machine goes on beyond the limit.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("the machine did not end within {limit:?}");
            }
            drop(self.console(POLL));
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn user_network(ports: &[(u16, u16)]) -> String {
    let (host, _) = HOST_ADDRESS.split_once('/').unwrap_or((HOST_ADDRESS, ""));
    let mut network = format!("user,id=net,net={GUEST_ADDRESS}/24,host={host}");
    for (inside, outside) in ports {
        network.push_str(&format!(",hostfwd=tcp:127.0.0.1:{outside}-{GUEST_ADDRESS}:{inside}"));
    }
    network
}

/// A free port of this machine for each port of the guest.
fn free_ports(guest: impl Iterator<Item = u16>) -> Result<Vec<(u16, u16)>> {
    let listeners = guest
        .map(|port| Ok((port, TcpListener::bind("127.0.0.1:0").context("find a free port")?)))
        .collect::<Result<Vec<_>>>()?;
    let number = |(port, listener): (u16, TcpListener)| {
        Ok((port, listener.local_addr().context("read a port's number")?.port()))
    };
    // They are closed here, all at once, so that no number comes twice.
    listeners.into_iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_of_the_guest_gets_a_port_of_its_own() {
        let ports = free_ports([22, 80, 8000].into_iter()).unwrap();

        assert_eq!(ports.iter().map(|(inside, _)| *inside).collect::<Vec<_>>(), [22, 80, 8000]);
        let network = user_network(&ports);
        for (inside, outside) in ports {
            let rule = format!("hostfwd=tcp:127.0.0.1:{outside}-192.168.77.2:{inside}");
            assert!(network.contains(&rule), "{network}");
        }
    }
}
