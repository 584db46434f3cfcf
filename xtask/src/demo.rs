//! `./x demo`: an unmodified Debian kernel as one VM over several hosts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Args;
use scenarios::Progress;
use scenarios::demo::cluster::{Cluster, StateIn};
use scenarios::demo::consolidate::Consolidate;
use scenarios::demo::{Demo, Incremental, record};
use scenarios::vm::{Interrupts, VmOptions};

#[derive(Args, Clone, Debug)]
pub(crate) struct DemoOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// Where interrupts are handled; tessera's own choice unless given
    #[arg(long, value_enum)]
    interrupts: Option<Interrupts>,
    /// Write the result as JSON into this file
    #[arg(long)]
    report: Option<PathBuf>,
    /// Leave the hosts up until ctrl-c; with --distro the VM too
    #[arg(long)]
    keep: bool,
    /// Boot a whole Debian system from a disk, with a network, and look at it over HTTP and ssh
    #[arg(long)]
    distro: bool,
    /// Drain that system to one of two hosts and spread it again, under load, until the bootstrap's slice leaves; with --distro
    /// or without it
    #[arg(long, conflicts_with_all = ["keep", "keep_disk"])]
    consolidate: bool,
    /// With --consolidate or --cluster: write a picture of latency, vCPUs and free CPUs over time (SVG) into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write that system down on two hosts while it runs on, kill it, and have it go on on one host and on three; with --distro
    /// or without it
    #[arg(long, conflicts_with_all = ["keep", "keep_disk", "consolidate"])]
    checkpoint: bool,
    /// With --checkpoint: the VM goes on from an increment that is written ten minutes after a first checkpoint
    #[arg(long, requires = "checkpoint")]
    incremental: bool,
    /// Have a cluster of three hosts with agents and an orchestrator start that system over two of them, where no host has room
    /// for it, and bring it together on one when another VM ends, while it answers requests; with --distro or without it
    #[arg(long, conflicts_with_all = ["keep", "keep_disk", "consolidate", "checkpoint", "layout", "hosts"])]
    cluster: bool,
    /// With --cluster: the state of the cluster is in etcd, and of two orchestrators the one that leads is killed
    #[arg(long, requires = "cluster")]
    etcd: bool,
    /// With --distro: keep what the guest writes in a qcow2 file in the lab's folder
    #[arg(long, requires = "distro")]
    keep_disk: bool,
    /// Write what the demo says as an animated picture (SVG) of less than a minute into this file, if it passes
    #[arg(long, value_name = "FILE", conflicts_with = "keep")]
    record: Option<PathBuf>,
}

pub(crate) fn run(options: &DemoOptions) -> Result<ExitCode> {
    if let Some(file) = &options.record {
        return record::run(file);
    }
    let DemoOptions { vm, interrupts, report, keep, distro, keep_disk, svg, .. } = options.clone();
    let checkpoint = options.checkpoint.then_some(Incremental(options.incremental));
    ensure!(
        svg.is_none() || options.consolidate || options.cluster,
        "--svg is of --consolidate and of --cluster"
    );
    let consolidate = options.consolidate.then(|| Consolidate { svg: svg.clone() });
    let state = if options.etcd { StateIn::Etcd } else { StateIn::File };
    let cluster = options.cluster.then_some(Cluster { svg, state });
    let distro = distro || consolidate.is_some() || checkpoint.is_some() || cluster.is_some();
    Demo { vm, interrupts, report, keep, distro, consolidate, checkpoint, cluster, keep_disk }
        .run(&Arc::new(Progress::new()))
}
