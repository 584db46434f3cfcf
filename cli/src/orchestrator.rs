//! `tessera orchestrator`: says where the VMs of a cluster run, and sees to it.
//!
//! ```text
//!   store, sockets --> READY --> follows <--> leads ... --SIGTERM, SIGINT--> STOPPING --> resigns, ended; VMs go on
//! ```

use crate::later::later;
use crate::names::address;
use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgGroup, Args, ValueEnum};
use orchestrator::api::{Options, OrchestratorError, Server};
use orchestrator::decide::{Choice, Settings};
use orchestrator::run::{AgentTls, Agents, Pace, Standing};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Consolidation, FragBff, Spread};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::path::{PathBuf, absolute};
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;
use store::{Candidate, EtcdOptions, EtcdStore, EtcdTls, Limits, RedbStore};
use vm_service::{Remote, TlsFiles, certificate_file, key_file};

/// Ends the help.
pub(crate) const EXAMPLE: &str = "\
Example: one orchestrator with a file for its state, for the user whose process it is:
  tessera orchestrator --store redb:/var/lib/tessera/cluster.redb --socket /run/tessera/cluster.sock
  tessera host register h1 unix:/run/tessera/agent.sock --cluster unix:/run/tessera/cluster.sock

VMs outlive it: the next one with the same --store goes on. docs/cluster.md is a walk through a cluster.";

/// Between two looks around.
const PACE: Duration = Duration::from_secs(1);
/// By so much clocks of orchestrators may come to differ during a lease.
const CLOCK_ERROR: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("served").args(["listen", "socket"]).required(true).multiple(true)))]
pub(crate) struct Arguments {
    /// Where the state of the cluster is: a file for one orchestrator, or etcd for several, of which one leads
    #[arg(long, value_name = "redb:PATH|etcd:URL[,URL]")]
    store: Place,
    /// Serve there, over TLS 1.3 with certificates of both ends; the four options are given together
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        value_parser = address,
        requires_all = ["certificate", "key", "client_ca"]
    )]
    listen: Option<SocketAddr>,
    /// Certificate of this orchestrator, in PEM, with those between it and its authority
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
    /// Certificates of the authorities of the agents, in PEM; without it only agents at UNIX sockets are called
    #[arg(long, value_name = "FILE", requires_all = ["agents_certificate", "agents_key"])]
    agents_ca: Option<PathBuf>,
    /// Certificate by which agents know this orchestrator, in PEM
    #[arg(long, value_name = "FILE", requires = "agents_ca")]
    agents_certificate: Option<PathBuf>,
    /// Private key of that certificate, in PEM; readable by its owner only
    #[arg(long, value_name = "FILE", requires = "agents_ca")]
    agents_key: Option<PathBuf>,
    /// Certificates of the authorities of etcd, in PEM, for https
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Certificate by which etcd knows this orchestrator, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    etcd_certificate: Option<PathBuf>,
    /// Private key of that certificate, in PEM; readable by its owner only
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    etcd_key: Option<PathBuf>,
    /// What others are told when this one leads, and commands call it by: HOST:PORT. Required with etcd; where it listens unless given
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where VMs are placed
    #[arg(long, value_enum, default_value_t = Placement::Split)]
    placement: Placement,
    /// Without a renewal for so long it leads no more, and another one may; no longer than --host-lease
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=600))]
    lease: u64,
    /// A host whose agent has not answered for so long, while the orchestrator listened, is DOWN; its VMs run on
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(3..=3600))]
    host_lease: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Placement {
    /// On the host that has least left, and over as few as possible where none has room for all of it
    Split,
    /// On the host that has least left, or it waits
    BestFit,
}

/// Where the state is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Redb(PathBuf),
    Etcd(Vec<String>),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("redb", path)) if !path.is_empty() => Ok(Self::Redb(path.into())),
            Some(("etcd", urls)) if !urls.is_empty() => {
                Ok(Self::Etcd(urls.split(',').map(str::to_owned).collect()))
            }
            _ => Err(format!("{text:?} is no store; write redb:PATH or etcd:URL[,URL]")),
        }
    }
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

    fn agents(&self) -> Result<Agents> {
        let files = (&self.agents_ca, &self.agents_certificate, &self.agents_key);
        let (Some(ca), Some(certificate), Some(own)) = files else { return Ok(Agents::new(None)) };
        let (authority, certificate, key) =
            (certificate_file(ca)?, certificate_file(certificate)?, key_file(own)?);
        Ok(Agents::new(Some(AgentTls { authority, certificate, key })))
    }

    fn name(&self) -> String {
        let socket = self.socket.as_ref().map(|path| format!("unix:{}", path.display()));
        let listens = self.listen.map(|address| address.to_string()).or(socket);
        self.name.clone().or(listens).unwrap_or_default()
    }

    /// Where there are several, each names the leader, so that it can be called.
    fn check_name(&self) -> Result<()> {
        if matches!(self.store, Place::Redb(_)) {
            return Ok(());
        }
        let name = self.name.as_deref().unwrap_or_default();
        let parts = name.rsplit_once(':');
        let is_called = |(host, port): (&str, &str)| {
            let is_of_all = ["", "0.0.0.0", "[::]", "unix"].contains(&host);
            !is_of_all && port.parse::<u16>().is_ok()
        };
        if parts.is_some_and(is_called) {
            return Ok(());
        }
        bail!(
            "several orchestrators name the one that leads, and commands call it by that: \
             give --name HOST:PORT, as its certificate names it"
        )
    }

    /// A leader that is gone is followed before its hosts would count as lost.
    fn check_leases(&self) -> Result<()> {
        let (lease, host_lease) = (self.lease, self.host_lease);
        if lease > host_lease {
            bail!(
                "--lease {lease} is longer than --host-lease {host_lease}: nobody would lead for longer than a host may be silent; \
                 give a --host-lease of {lease} or more"
            );
        }
        Ok(())
    }

    fn options(&self) -> Result<Options> {
        self.check_leases()?;
        self.check_name()?;
        let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinNodes);
        let choice = match self.placement {
            Placement::BestFit => Choice::BestFit,
            Placement::Split => Choice::Split(FragBff { spread, consolidation, mix: Mix::azure() }),
        };
        let candidate = Candidate {
            name: self.name(),
            lease: Duration::from_secs(self.lease),
            clock_error: CLOCK_ERROR,
        };
        let lease_ms = self.host_lease * 1000;
        let settings = Settings { lease_ms, ..Settings::new(choice) };
        let standing = Standing { candidate, settings, pace: Pace(PACE), agents: self.agents()? };
        let socket = self.socket.as_ref().map(absolute).transpose().context("name the socket")?;
        Ok(Options { standing, remote: self.remote(), socket, metrics: self.metrics })
    }

    fn etcd(&self, urls: &[String]) -> Result<EtcdOptions> {
        let identity = match (&self.etcd_certificate, &self.etcd_key) {
            (Some(certificate), Some(own)) => {
                Some((certificate_file(certificate)?, key_file(own)?))
            }
            _ => None,
        };
        let is_encrypted = urls.iter().any(|url| url.starts_with("https://"));
        if is_encrypted && self.etcd_ca.is_none() {
            bail!("etcd is called over TLS (https): give --etcd-ca too");
        }
        let tls = self.etcd_ca.as_deref().map(certificate_file).transpose()?;
        let tls = tls.map(|ca| EtcdTls { ca, identity, server_name: None });
        Ok(EtcdOptions { tls, ..EtcdOptions::new(urls.to_vec()) })
    }

    fn begin(&self) -> Result<Result<Server, OrchestratorError>> {
        let options = self.options()?;
        Ok(match &self.store {
            Place::Redb(path) => {
                let path = path.clone();
                Server::begin(options, move || Ok(RedbStore::open(&path, Limits::default())?))
            }
            Place::Etcd(urls) => {
                let etcd = self.etcd(urls)?;
                Server::begin(options, move || Ok(EtcdStore::new(&etcd)?))
            }
        })
    }
}

/// Until it is told to end. VMs go on then.
pub(crate) fn run(arguments: &Arguments) -> Result<u8> {
    // What comes from here on waits until somebody looks.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listen for signals")?;
    let server = match arguments.begin()? {
        Err(error) if !error.is_final() => return Ok(later(&error.into())),
        server => server.context("be an orchestrator")?,
    };
    if let Some(address) = server.address() {
        tracing::info!("the cluster is served at {address}");
    }
    if let Some(path) = &arguments.socket {
        tracing::info!("the cluster is served at {}", path.display());
    }
    if let Some(address) = server.metrics() {
        tracing::info!("metrics are served at http://{address}/metrics");
    }
    notify(NotifyState::Ready);
    let is_watched = sd_notify::watchdog_enabled().is_some();
    loop {
        if let Some(signal) = signals.pending().next() {
            tracing::info!("the orchestrator ends by signal {signal}; VMs go on");
            break;
        }
        if server.has_ended() {
            return Ok(later(&anyhow!(
                "the orchestrator has ended by itself: the messages before this one say why"
            )));
        }
        sleep(Duration::from_millis(100));
        if is_watched {
            notify(NotifyState::Watchdog);
        }
    }
    notify(NotifyState::Stopping);
    Ok(0)
}

/// Tells systemd, if it has started this.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("systemd cannot be told: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser, Debug)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn lease_is_no_longer_than_that_of_hosts() {
        let check = |more: &[&str]| {
            let line = ["it", "--store", "redb:/a", "--socket", "/b"].iter().chain(more);
            let line = Line::try_parse_from(line).unwrap();
            line.arguments.check_leases().map_err(|error| error.to_string())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["--lease", "30", "--host-lease", "30"]), Ok(()));
        let refused = check(&["--lease", "11"]).unwrap_err();
        assert!(refused.contains("--host-lease of 11 or more"), "{refused}");
        assert!(check(&["--host-lease", "9"]).is_err());
    }

    #[test]
    fn one_of_several_has_a_name_by_which_it_is_called() {
        let check = |more: &[&str]| {
            let line = ["it"].iter().chain(more);
            let line = Line::try_parse_from(line).unwrap();
            line.arguments.check_name().is_ok()
        };
        let etcd = ["--store", "etcd:http://e:2379", "--socket", "/b"];
        assert!(!check(&etcd));
        for name in ["", "o1", "o1:x", "0.0.0.0:7300", "[::]:7300", "unix:/b", ":7300"] {
            assert!(!check(&[&etcd[..], &["--name", name]].concat()), "{name}");
        }
        assert!(check(&[&etcd[..], &["--name", "o1:7300"]].concat()));
        assert!(check(&["--store", "redb:/a", "--socket", "/b"]));
    }

    #[test]
    fn store_is_a_file_or_etcd() {
        assert_eq!("redb:/a:b".parse(), Ok(Place::Redb("/a:b".into())));
        let urls = vec!["http://a:1".to_owned(), "http://b:1".to_owned()];
        assert_eq!("etcd:http://a:1,http://b:1".parse(), Ok(Place::Etcd(urls)));
        for text in ["", "redb", "redb:", "etcd:", "/a", "sqlite:/a"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
