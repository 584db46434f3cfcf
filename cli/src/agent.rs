//! `tessera agent`: owns the slices of its host for an orchestrator.
//!
//! ```text
//!   look at the host --> open journal, sockets --> READY --watchdog--> ... --SIGTERM, SIGINT--> STOPPING --> ended; slices go on
//! ```

use crate::later::later;
use crate::log::Form;
use crate::names::address;
use crate::slices::bytes;
use crate::words::FORM;
use agent_service::{Inventory, Options, Ports, Server};
use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use scheduler::Resources;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::env::current_exe;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::{PathBuf, absolute};
use std::thread;
use std::time::Duration;
use vm_service::{Remote, TlsFiles};

/// Ends the help.
pub(crate) const EXAMPLE: &str = "\
Example: the agent of a host, for an orchestrator of the authority in orchestrators.pem:
  tessera agent --name h1 --state /var/lib/tessera/agent --images /srv/images --checkpoints /srv/checkpoints \\
      --listen 10.9.0.1:7400 --certificate h1.pem --key h1.key --client-ca orchestrators.pem \\
      --slice-address 10.9.0.1

Slices outlive it: the next agent with the same --state finds them. docs/api.md says what can be asked.";

/// A unit of memory as the scheduler counts it.
const UNIT: u64 = 2 << 20;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("served").args(["listen", "socket"]).required(true).multiple(true)))]
pub(crate) struct Arguments {
    /// Name of the host, as the orchestrator knows it: small letters, digits and -
    #[arg(long, value_name = "HOST")]
    name: String,
    /// Folder of the agent: its journal, logs, sockets and secrets of slices; made if it is not there
    ///
    /// Only its owner may read it. Sockets are below it, so its name has at most 35 bytes.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Folder from which kernels and disks are named; nothing outside of it is given to a VM
    #[arg(long, value_name = "DIR")]
    images: PathBuf,
    /// Folder from which checkpoints are named, and that slices write them below
    #[arg(long, value_name = "DIR")]
    checkpoints: PathBuf,
    /// Serve there, over TLS 1.3 with certificates of both ends; the four options are given together
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        value_parser = address,
        requires_all = ["certificate", "key", "client_ca"]
    )]
    listen: Option<SocketAddr>,
    /// Certificate of this host, in PEM, with those between it and its authority
    #[arg(long, value_name = "FILE", requires = "listen")]
    certificate: Option<PathBuf>,
    /// Private key of that certificate, in PEM; readable by its owner only
    #[arg(long, value_name = "FILE", requires = "listen")]
    key: Option<PathBuf>,
    /// Certificates of the authorities whose clients may call, in PEM
    #[arg(long, value_name = "FILE", requires = "listen")]
    client_ca: Option<PathBuf>,
    /// Serve at this UNIX socket too, for the user whose process this is, and root
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve metrics for Prometheus there, at /metrics, to whoever reaches that address: neither TLS nor names of clients (docs/metrics.md)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Address of this host at which companions listen for slices of other hosts
    #[arg(long, value_name = "ADDRESS", value_parser = slice_address)]
    slice_address: IpAddr,
    /// Ports at which they do, one each; those at which somebody else listens are passed over
    #[arg(long, value_name = "FIRST-LAST", default_value = "7500-7999", value_parser = ports)]
    slice_ports: RangeInclusive<u16>,
    /// Cores that no slice is given
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep_cores: u32,
    /// vCPUs that slices may have for each core that is not kept; with more than one they share it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    vcpus_per_core: u32,
    /// Memory that no slice is given: bytes, or with M or G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = bytes)]
    keep_memory: u64,
}

/// A range of ports.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let parsed = text.split_once('-').and_then(|(first, last)| {
        let (first, last) = (number(first)?, number(last)?);
        Some((first, last))
    });
    match parsed {
        Some((first, last)) if first <= last => Ok(first..=last),
        Some((first, last)) => {
            Err(format!("the first port, {first}, is greater than the last, {last}"))
        }
        None => Err(format!("{text:?} is no range of ports from 1 to 65535; write FIRST-LAST")),
    }
}

/// As options and the package's file give it.
fn slice_address(text: &str) -> Result<IpAddr, String> {
    const WANTED: &str =
        "an IP address of this host (TESSERA_SLICE_ADDRESS in /etc/tessera/agent.env)";
    let address: IpAddr = text.parse().map_err(|_| format!("{text:?} is not {WANTED}"))?;
    // It is one of no host, and no later attempt would find it.
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("other hosts cannot reach {address}: give {WANTED}"));
    }
    Ok(address)
}

/// Whether companions can listen there.
fn check_slice_address(address: IpAddr) -> Result<()> {
    let listener = TcpListener::bind((address, 0));
    let listener = listener.with_context(|| {
        format!("--slice-address {address}: is it an address of this host? (ip address show)")
    });
    listener.map(drop)
}

impl Arguments {
    fn remote(&self) -> Option<Remote> {
        let files = TlsFiles {
            certificate: self.certificate.clone()?,
            key: self.key.clone()?,
            client_ca: self.client_ca.clone()?,
        };
        Some(Remote { address: self.listen?, files })
    }

    fn options(&self) -> Result<Options> {
        let memory = u32::try_from(self.keep_memory.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let keep = Resources::new(self.keep_cores, memory);
        let inventory = Inventory::look(keep).context("look what this host has")?;
        let inventory = inventory.shared_by(self.vcpus_per_core);
        if inventory.capacity().cores == 0 || inventory.capacity().memory == 0 {
            bail!(
                "this host has no more than --keep-cores and --keep-memory: nothing is left for slices"
            );
        }
        let folder = |path: &PathBuf| absolute(path).with_context(|| path.display().to_string());
        Ok(Options {
            name: self.name.clone(),
            state: folder(&self.state)?,
            images: folder(&self.images)?,
            checkpoints: folder(&self.checkpoints)?,
            ports: Ports { address: self.slice_address, range: self.slice_ports.clone() },
            inventory,
            program: current_exe().context("find the program of slices, which is this one")?,
            remote: self.remote(),
            socket: self.socket.as_ref().map(folder).transpose()?,
            metrics: self.metrics,
            environment: vec![(FORM.to_owned(), Form::chosen().word().to_owned())],
        })
    }
}

/// Until it is told to end. Slices go on then.
pub(crate) fn run(arguments: &Arguments) -> Result<u8> {
    // What comes from here on waits until somebody looks.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listen for signals")?;
    if let Err(error) = check_slice_address(arguments.slice_address) {
        // A network may come up later than this.
        return Ok(later(&error));
    }
    let options = arguments.options()?;
    for ability in &options.inventory.abilities {
        if let Some(why_not) = &ability.why_not {
            // Without it slices use TCP.
            if ability.name == "rdma" {
                tracing::info!("this host has no rdma: {why_not}");
            } else {
                tracing::warn!("this host lacks {}: {why_not}", ability.name);
            }
        }
    }
    let server = match Server::begin(options) {
        Err(error) if !error.is_final() => return Ok(later(&error.into())),
        server => server.context("be the agent of this host")?,
    };
    if let Some(address) = server.address() {
        tracing::info!("the agent is served at {address}");
    }
    if let Some(path) = &arguments.socket {
        tracing::info!("the agent is served at {}", path.display());
    }
    if let Some(address) = server.metrics() {
        tracing::info!("metrics are served at http://{address}/metrics");
    }
    notify(&[NotifyState::Ready]);
    watch_over(&server)?;
    if let Some(signal) = signals.forever().next() {
        tracing::info!("the agent ends by signal {signal}; slices go on");
    }
    notify(&[NotifyState::Stopping]);
    Ok(0)
}

/// Tells systemd, if it has started this.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("systemd cannot be told: {error}");
    }
}

/// Tells systemd twice in its time that the agent is there, for as long as it is.
fn watch_over(server: &Server) -> Result<()> {
    const LEAST: Duration = Duration::from_millis(10);
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let agent = server.agent();
    let tell = move || {
        while !agent.has_ended() {
            notify(&[NotifyState::Watchdog]);
            thread::sleep((limit / 2).max(LEAST));
        }
    };
    thread::Builder::new().name("watchdog".into()).spawn(tell).context("watch over the agent")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_ports_has_two_ends_in_order() {
        assert_eq!(ports("7500-7999"), Ok(7500..=7999));
        assert_eq!(ports("1-1"), Ok(1..=1));
        for text in ["", "7500", "0-7", "8-7", "1-65536", "a-b", "1-2-3"] {
            assert!(ports(text).is_err(), "{text}");
        }
        assert!(ports("8-7").unwrap_err().contains("greater"));
    }

    #[test]
    fn slices_listen_at_an_address_of_this_host() {
        assert_eq!(slice_address("10.9.0.1"), Ok([10, 9, 0, 1].into()));
        for text in ["", "h1.example", "0.0.0.0", "::", "224.0.0.1"] {
            let why = slice_address(text).unwrap_err();
            assert!(why.contains("TESSERA_SLICE_ADDRESS"), "{text}: {why}");
        }
        assert!(check_slice_address([127, 0, 0, 1].into()).is_ok());
        // 192.0.2.0/24 is for documentation (RFC 5737).
        assert!(check_slice_address([192, 0, 2, 77].into()).is_err());
    }
}
