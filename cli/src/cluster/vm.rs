//! `tessera vm` of a cluster.

use super::connect::{Cluster, Patience, Where, reason, request_id};
use super::output::{self, Format};
use super::wanted;
use crate::config;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use control::longrunning::Operation;
use control::v1::vms_client::VmsClient;
use control::v1::{
    ClusterVm, CreateVmRequest, DeleteVmRequest, ExplainVmRequest, GetClusterVmRequest,
    ListVmsRequest, PlanVmRequest, RunStrategy, UpdateVmRequest, VmSpec, cluster_vm,
};
use std::io::{Write, stderr};
use std::path::PathBuf;

/// Of `plan`: something would be done.
const CHANGES: u8 = 1;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Have a cluster run a VM that it does not know yet.
    Create(FileArguments),
    /// Have a cluster run a VM as its file says: it is created, or started or halted if that is all that differs.
    Apply(FileArguments),
    /// Print where a cluster would run a VM, and why there. Nothing is done. Exit status: 0 if nothing would be, 1 if something
    /// would, 2 if it is refused.
    Plan(PlanArguments),
    /// Print a VM of a cluster.
    Get(NameArguments),
    /// Print all VMs of a cluster.
    List(ListArguments),
    /// Print why a VM of a cluster is where it is, or why it waits.
    Explain(NameArguments),
    /// End a VM of a cluster, and forget it.
    Delete(DeleteArguments),
}

#[derive(Args, Debug)]
pub(crate) struct FileArguments {
    /// The VM file (docs/vm-file.md); its files are named from the hosts' folders of images
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Do it only if the cluster would still decide as this plan (tessera vm plan)
    #[arg(long, value_name = "TOKEN", default_value = "")]
    plan: String,
    /// Wait until it runs
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArguments {
    /// The VM file (docs/vm-file.md)
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
pub(crate) struct NameArguments {
    /// Name of the VM
    name: String,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
pub(crate) struct DeleteArguments {
    /// Name of the VM
    name: String,
    /// Wait until it is no more
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

/// Asks; the exit status.
pub(crate) fn run(verb: &Verb) -> Result<u8> {
    match verb {
        Verb::Create(arguments) => create(arguments),
        Verb::Apply(arguments) => apply(arguments),
        Verb::Plan(arguments) => plan(arguments),
        Verb::Get(NameArguments { name, place, format }) => {
            let vm = get(&place.connect()?, name)?;
            print(*format, &[vm])
        }
        Verb::List(ListArguments { place, format }) => print(*format, &list(&place.connect()?)?),
        Verb::Explain(arguments) => explain(arguments),
        Verb::Delete(arguments) => delete(arguments),
    }
}

fn print(format: Format, vms: &[ClusterVm]) -> Result<u8> {
    let entries = vms.iter().map(output::vm).collect();
    format.print(&output::table(&output::VM, entries))?;
    Ok(0)
}

fn name_of(name: &str) -> String {
    format!("vms/{name}")
}

fn bare(vm: &ClusterVm) -> &str {
    vm.name.strip_prefix("vms/").unwrap_or(&vm.name)
}

/// None if there is none of this name.
fn find(cluster: &Cluster, name: &str) -> Result<Option<ClusterVm>> {
    let request = GetClusterVmRequest { name: name_of(name) };
    let found = cluster.try_ask(&request, |channel, request| async move {
        VmsClient::new(channel).get_cluster_vm(request).await
    })?;
    match found {
        Ok(vm) => Ok(Some(vm)),
        Err(status) if reason(&status) == "VM_NOT_FOUND" => Ok(None),
        Err(status) => Err(cluster.refused(&status)),
    }
}

fn get(cluster: &Cluster, name: &str) -> Result<ClusterVm> {
    find(cluster, name)?.with_context(|| format!("there is no VM {name}"))
}

fn list(cluster: &Cluster) -> Result<Vec<ClusterVm>> {
    Cluster::all(|page_token| {
        let request = ListVmsRequest { page_size: 1000, page_token };
        let page = cluster.ask(&request, |channel, request| async move {
            VmsClient::new(channel).list_vms(request).await
        })?;
        Ok((page.vms, page.next_page_token))
    })
}

fn begin(cluster: &Cluster, vm: ClusterVm, plan: &str) -> Result<Operation> {
    let (request_id, plan_token) = (request_id()?, plan.to_owned());
    let request = CreateVmRequest { vm: Some(vm), request_id, plan_token, validate_only: false };
    cluster.ask(&request, |channel, request| async move {
        VmsClient::new(channel).create_vm(request).await
    })
}

fn create(arguments: &FileArguments) -> Result<u8> {
    let cluster = arguments.place.connect()?;
    let wanted = wanted::vm(&config::read(&arguments.file)?)?;
    let operation = begin(&cluster, wanted.clone(), &arguments.plan)?;
    finish(&cluster, arguments, &wanted, &operation)
}

/// Waits if that is wanted, and prints what has come of it.
fn finish(
    cluster: &Cluster,
    arguments: &FileArguments,
    wanted: &ClusterVm,
    operation: &Operation,
) -> Result<u8> {
    if arguments.wait {
        cluster.wait_for(operation, arguments.patience)?;
    }
    print(arguments.format, &[get(cluster, bare(wanted))?])
}

fn apply(arguments: &FileArguments) -> Result<u8> {
    let cluster = arguments.place.connect()?;
    let wanted = wanted::vm(&config::read(&arguments.file)?)?;
    let Some(known) = find(&cluster, bare(&wanted))? else {
        let operation = begin(&cluster, wanted.clone(), &arguments.plan)?;
        return finish(&cluster, arguments, &wanted, &operation);
    };
    let (has, wants) =
        (known.spec.clone().unwrap_or_default(), wanted.spec.clone().unwrap_or_default());
    if has != wants {
        if (VmSpec { run: wants.run, ..has.clone() }) != wants {
            bail!(
                "{} is another VM than the file says: only when it runs can change; delete it first, which deletes its checkpoints too",
                bare(&wanted)
            );
        }
        let request = UpdateVmRequest {
            name: wanted.name.clone(),
            run: wants.run,
            etag: known.etag.clone(),
            request_id: request_id()?,
            validate_only: false,
        };
        cluster.ask(&request, |channel, request| async move {
            VmsClient::new(channel).update_vm(request).await
        })?;
    } else if known.state() == cluster_vm::State::Stopped && wants.run() != RunStrategy::Halted {
        writeln!(
            stderr(),
            "{} has run, and stays off: to have it run again, apply it with run = \"halted\" and then as it is",
            bare(&wanted)
        )?;
    }
    let name = format!("operations/create-{}", known.uid);
    let operation = Operation { name, ..Operation::default() };
    finish(&cluster, arguments, &wanted, &operation)
}

fn plan(arguments: &PlanArguments) -> Result<u8> {
    let cluster = arguments.place.connect()?;
    let wanted = wanted::vm(&config::read(&arguments.file)?)?;
    let request = PlanVmRequest { vm: Some(wanted.clone()) };
    let plan = cluster.ask(&request, |channel, request| async move {
        VmsClient::new(channel).plan_vm(request).await
    })?;
    arguments.format.print(&output::plan(bare(&wanted), &plan))?;
    Ok(if plan.unchanged { 0 } else { CHANGES })
}

fn explain(NameArguments { name, place, format }: &NameArguments) -> Result<u8> {
    let request = ExplainVmRequest { name: name_of(name) };
    let told = place.connect()?.ask(&request, |channel, request| async move {
        VmsClient::new(channel).explain_vm(request).await
    })?;
    format.print(&output::explanation(&told))?;
    Ok(0)
}

fn delete(arguments: &DeleteArguments) -> Result<u8> {
    let cluster = arguments.place.connect()?;
    let (name, request_id) = (name_of(&arguments.name), request_id()?);
    let request = DeleteVmRequest { name, request_id, ..DeleteVmRequest::default() };
    let mut operation = cluster.ask(&request, |channel, request| async move {
        VmsClient::new(channel).delete_vm(request).await
    })?;
    if arguments.wait {
        operation = cluster.wait_for(&operation, arguments.patience)?;
    }
    let entries = vec![output::operation(&operation)];
    arguments.format.print(&output::table(&output::OPERATION, entries))?;
    Ok(0)
}
