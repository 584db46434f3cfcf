//! `tessera vm` of a cluster.

use super::connect::{Cluster, Patience, Where, reason, request_id};
use super::output::{self, Format};
use super::{wanted, watch};
use crate::config;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use control::longrunning::Operation;
use control::v1::vms_client::VmsClient;
use control::v1::{
    ClusterVm, CreateVmRequest, DeleteVmRequest, ExplainVmRequest, GetClusterVmRequest,
    ListVmsRequest, PlanVmRequest, RunStrategy, UpdateVmRequest, VmSpec, cluster_vm,
};
use std::io::{Write, stdout};
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
    Get(GetArguments),
    /// Print all VMs of a cluster.
    List(ListArguments),
    /// Print why a VM of a cluster is where it is, or why it waits.
    Explain(NameArguments),
    /// Have a VM of a cluster shut down, and stay off until it is to run again.
    Halt(HaltArguments),
    /// Have a VM of a cluster run that is halted, or has run as often as it was to. It may run on other hosts than before.
    Run(RunArguments),
    /// End a VM of a cluster, and forget it.
    Delete(DeleteArguments),
}

/// When a VM runs.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Strategy {
    /// It is started again, however it ends
    Always,
    /// It is started again after a loss, a reset or a panic, and not after a power-off
    #[value(alias = "rerunOnFailure")]
    RerunOnFailure,
    /// It is not started again, but goes on from its checkpoint after a loss
    Once,
}

#[derive(Args, Debug)]
pub(crate) struct HaltArguments {
    /// Wait until it is off
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    vm: NameArguments,
}

#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// When it runs from now on; as before it was halted unless given
    #[arg(long, value_enum)]
    strategy: Option<Strategy>,
    /// Wait until it runs
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    vm: NameArguments,
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
pub(crate) struct GetArguments {
    /// Print the VM file that asks for it instead (docs/vm-file.md), as it is wanted now
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "output")]
    as_file: Option<FileFormat>,
    #[command(flatten)]
    vm: NameArguments,
}

/// How a VM file is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FileFormat {
    /// TOML
    Toml,
    /// YAML
    Yaml,
}

#[derive(Args, Debug)]
pub(crate) struct ListArguments {
    /// Go on, and print a VM again when what is printed of it has changed; as JSON, an object on each line
    #[arg(short, long)]
    watch: bool,
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
        Verb::Get(GetArguments { as_file, vm: NameArguments { name, place, format } }) => {
            let vm = get(&place.connect()?, name)?;
            let Some(as_file) = as_file else { return print(*format, &[vm]) };
            let written = match as_file {
                FileFormat::Toml => vm_file::Format::Toml,
                FileFormat::Yaml => vm_file::Format::Yaml,
            };
            let text = written.encode(&wanted::file(&vm)?)?;
            write!(stdout(), "{text}").context("print the answer")?;
            Ok(0)
        }
        Verb::List(ListArguments { watch: true, place, format }) => {
            watch::run(&place.connect()?, *format).map(|()| 0)
        }
        Verb::List(ListArguments { watch: false, place, format }) => {
            print(*format, &list(&place.connect()?)?)
        }
        Verb::Explain(arguments) => explain(arguments),
        Verb::Halt(HaltArguments { wait, patience, vm }) => {
            set_run(vm, |_| RunStrategy::Halted, wait.then_some(*patience))
        }
        Verb::Run(RunArguments { strategy, wait, patience, vm }) => {
            let run = |known: &ClusterVm| match strategy {
                Some(Strategy::Always) => RunStrategy::Always,
                Some(Strategy::RerunOnFailure) => RunStrategy::RerunOnFailure,
                Some(Strategy::Once) => RunStrategy::Once,
                None => former(known),
            };
            set_run(vm, run, wait.then_some(*patience))
        }
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
        wait(cluster, bare(wanted), operation, arguments.patience)?;
    }
    print(arguments.format, &[get(cluster, bare(wanted))?])
}

/// Waits until it is as it is wanted, and says on standard error how it is whenever that changes.
fn wait(cluster: &Cluster, name: &str, operation: &Operation, patience: Patience) -> Result<()> {
    let mut said = String::new();
    let look = |goal: &Operation| {
        if goal.done {
            return;
        }
        if let Ok(vm) = get(cluster, name) {
            let now = format!("{name} is {}: {}", output::state(&vm), vm.why);
            if now != said {
                output::remark(&now);
                said = now;
            }
        }
    };
    cluster.wait_for(operation, patience, look).map(drop)
}

fn apply(arguments: &FileArguments) -> Result<u8> {
    let cluster = arguments.place.connect()?;
    let wanted = wanted::vm(&config::read(&arguments.file)?)?;
    let Some(known) = find(&cluster, bare(&wanted))? else {
        let operation = begin(&cluster, wanted.clone(), &arguments.plan)?;
        return finish(&cluster, arguments, &wanted, &operation);
    };
    if !arguments.plan.is_empty() {
        bail!("--plan is for a VM that is not there yet, and {} is", bare(&wanted));
    }
    let wants = wanted.spec.clone().unwrap_or_default();
    let mut others = wanted::differences(&wanted::file(&known)?, &wanted::file(&wanted)?)?;
    let all = others.len();
    others.retain(|path| path != "spec.run");
    if !others.is_empty() {
        bail!(
            "{} is another VM than the file says, in {}: only when it runs can change; delete it first, which deletes its checkpoints too",
            bare(&wanted),
            others.join(", ")
        );
    }
    if all > 0 {
        update(&cluster, &known, wants.run())?;
    } else if known.state() == cluster_vm::State::Stopped && wants.run() != RunStrategy::Halted {
        let name = bare(&wanted);
        output::remark(&format!(
            "{name} has run, and stays off: to have it run again, `tessera vm run {name}`"
        ));
    }
    finish(&cluster, arguments, &wanted, &goal(&known))
}

/// It runs, or rests, as is wanted.
fn goal(vm: &ClusterVm) -> Operation {
    let name = format!("operations/create-{}", vm.uid);
    Operation { name, ..Operation::default() }
}

fn update(cluster: &Cluster, known: &ClusterVm, run: RunStrategy) -> Result<()> {
    let request = UpdateVmRequest {
        name: known.name.clone(),
        run: run.into(),
        etag: known.etag.clone(),
        request_id: request_id()?,
        validate_only: false,
    };
    cluster.ask(&request, |channel, request| async move {
        VmsClient::new(channel).update_vm(request).await
    })?;
    Ok(())
}

/// When it was to run before it was halted, or is.
fn former(vm: &ClusterVm) -> RunStrategy {
    let run = vm.spec.as_ref().map_or(RunStrategy::Unspecified, VmSpec::run);
    match (run, vm.former_run()) {
        (RunStrategy::Halted, RunStrategy::Unspecified) => RunStrategy::RerunOnFailure,
        (RunStrategy::Halted, former) => former,
        (run, _) => run,
    }
}

/// When a VM runs is another matter from now on.
fn set_run(
    NameArguments { name, place, format }: &NameArguments,
    run: impl Fn(&ClusterVm) -> RunStrategy,
    patience: Option<Patience>,
) -> Result<u8> {
    let cluster = place.connect()?;
    let known = get(&cluster, name)?;
    let run = run(&known);
    let has_run = known.state() == cluster_vm::State::Stopped && run != RunStrategy::Halted;
    if has_run && known.spec.as_ref().is_some_and(|spec| spec.run() != RunStrategy::Halted) {
        // It stays off as long as it is wanted as it was.
        update(&cluster, &known, RunStrategy::Halted)?;
    }
    update(&cluster, &get(&cluster, name)?, run)?;
    if let Some(patience) = patience {
        wait(&cluster, name, &goal(&known), patience)?;
    }
    print(*format, &[get(&cluster, name)?])
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
        operation = cluster.wait_for(&operation, arguments.patience, |_| {})?;
    }
    let entries = vec![output::operation(&operation)];
    arguments.format.print(&output::table(&output::OPERATION, entries))?;
    Ok(0)
}
