//! `tessera host`: hosts of a cluster.

use super::connect::{Cluster, Patience, Where, reason};
use super::output::{self, Format, remark};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use control::v1::hosts_client::HostsClient;
use control::v1::{
    ClusterHost, CordonHostRequest, DrainHostRequest, GetClusterHostRequest, ListHostsRequest,
    RegisterHostRequest, RemoveHostRequest, StayingVm, UncordonHostRequest, cluster_host,
};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at a host that is to become empty.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print all hosts.
    List(ListArguments),
    /// Print a host.
    Get(HostArguments),
    /// Make a host known by its agent. The same one twice is one.
    Register(RegisterArguments),
    /// Have a host take nothing new. What runs there runs on.
    Cordon(HostArguments),
    /// Have a host take VMs again.
    Uncordon(HostArguments),
    /// Cordon a host, have slices move away that can, and wait until nothing is there. Says what stays, and why: halt or delete it.
    Drain(DrainArguments),
    /// Forget a host on which nothing is.
    Remove(RemoveArguments),
}

#[derive(Args, Debug)]
struct ListArguments {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
struct HostArguments {
    /// Name of the host
    name: String,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
struct RegisterArguments {
    /// Name of the host: small letters, digits and -
    name: String,
    /// Where its agent listens: https://NAME:PORT, or unix:/PATH on the orchestrator's own host
    agent: String,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
struct DrainArguments {
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    host: HostArguments,
}

#[derive(Args, Debug)]
struct RemoveArguments {
    /// Name of the host
    name: String,
    /// It never comes back, and nothing runs there any more: VMs that had a part of it begin again elsewhere. If that is not true,
    /// a VM may run twice
    #[arg(long)]
    gone: bool,
    #[command(flatten)]
    place: Where,
}

/// Asks, and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.verb {
        Verb::List(ListArguments { place, format }) => print(*format, &list(&place.connect()?)?),
        Verb::Get(HostArguments { name, place, format }) => {
            print(*format, &[get(&place.connect()?, name)?])
        }
        Verb::Register(RegisterArguments { name, agent, place, format }) => {
            let request = RegisterHostRequest { name: name_of(name), agent: agent.clone() };
            let host = place.connect()?.ask(&request, |channel, request| async move {
                HostsClient::new(channel).register_host(request).await
            })?;
            print(*format, &[host])
        }
        Verb::Cordon(HostArguments { name, place, format }) => {
            print(*format, &[cordon(&place.connect()?, name)?])
        }
        Verb::Uncordon(HostArguments { name, place, format }) => {
            let request = UncordonHostRequest { name: name_of(name) };
            let host = place.connect()?.ask(&request, |channel, request| async move {
                HostsClient::new(channel).uncordon_host(request).await
            })?;
            print(*format, &[host])
        }
        Verb::Drain(arguments) => drain(arguments),
        Verb::Remove(RemoveArguments { name, gone, place }) => {
            remove(&place.connect()?, name, *gone)
        }
    }
}

fn print(format: Format, hosts: &[ClusterHost]) -> Result<()> {
    let entries = hosts.iter().map(output::host).collect();
    format.print(&output::table(&output::HOST, entries))
}

fn name_of(name: &str) -> String {
    format!("hosts/{name}")
}

fn get(cluster: &Cluster, name: &str) -> Result<ClusterHost> {
    let request = GetClusterHostRequest { name: name_of(name) };
    cluster.ask(&request, |channel, request| async move {
        HostsClient::new(channel).get_cluster_host(request).await
    })
}

/// It was there: if it is not when it is to be removed, whoever was asked first has done so, and died before it said so.
fn remove(cluster: &Cluster, name: &str, gone: bool) -> Result<()> {
    get(cluster, name)?;
    let request = RemoveHostRequest { name: name_of(name), gone };
    let removed = cluster.try_ask(&request, |channel, request| async move {
        HostsClient::new(channel).remove_host(request).await
    })?;
    match removed {
        Err(status) if reason(&status) != "HOST_NOT_FOUND" => Err(cluster.refused(&status)),
        _ => Ok(()),
    }
}

fn list(cluster: &Cluster) -> Result<Vec<ClusterHost>> {
    Cluster::all(|page_token| {
        let request = ListHostsRequest { page_size: 1000, page_token };
        let page = cluster.ask(&request, |channel, request| async move {
            HostsClient::new(channel).list_hosts(request).await
        })?;
        Ok((page.hosts, page.next_page_token))
    })
}

fn cordon(cluster: &Cluster, name: &str) -> Result<ClusterHost> {
    let request = CordonHostRequest { name: name_of(name) };
    cluster.ask(&request, |channel, request| async move {
        HostsClient::new(channel).cordon_host(request).await
    })
}

/// What stays is said once on standard error.
fn drain(DrainArguments { patience, host }: &DrainArguments) -> Result<()> {
    let cluster = host.place.connect()?;
    let end = Instant::now() + Duration::from_secs(patience.timeout);
    let request = DrainHostRequest { name: name_of(&host.name) };
    let mut now = cluster.ask(&request, |channel, request| async move {
        HostsClient::new(channel).drain_host(request).await
    })?;
    let mut said: Vec<StayingVm> = Vec::new();
    if now.state() != cluster_host::State::Up && !now.vms.is_empty() {
        let (state, warning) = (now.state().as_str_name(), &now.warning);
        let name = &host.name;
        remark(&format!("{name} is {state}, so nothing moves away from it: {warning}"));
    }
    while !now.vms.is_empty() {
        for it in &now.stays {
            if !said.contains(it) {
                remark(&format!("{}: {}", it.vm.trim_start_matches("vms/"), it.why));
                said.push(it.clone());
            }
        }
        if Instant::now() >= end {
            let vms: Vec<&str> = now.vms.iter().filter_map(|it| it.strip_prefix("vms/")).collect();
            bail!(
                "{} is not empty after {} s: it has parts of {}; halt (tessera vm halt), or delete them. It takes nothing new, until tessera host uncordon",
                host.name,
                patience.timeout,
                vms.join(", ")
            );
        }
        sleep(LOOK_EVERY);
        now = get(&cluster, &host.name)?;
    }
    print(host.format, &[now])
}
