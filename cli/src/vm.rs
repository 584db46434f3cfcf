//! `tessera vm`: what a whole VM is asked, by the slice that coordinates it.

use crate::asking::{Asking, LIMIT_OF_ALL, Vm, milliseconds};
use crate::cluster;
use crate::names::address;
use anyhow::{Context, Result};
use clap::{Args, Command, Subcommand, ValueEnum};
use comfy_table::{Table, presets};
use control::longrunning::Operation;
use control::v1::{
    AddSliceRequest, AdviseRequest, AdviseResponse, ConsolidateRequest, CreateCheckpointRequest,
    CreateCheckpointResponse, DrainSliceRequest, GetVcpusRequest, GetVmRequest, MovePartsResponse,
    MoveVcpusRequest, PauseVmRequest, Queue, ResumeVmRequest, SetVcpusRequest, Slice,
    SpreadRequest, Vcpus, move_vcpus_request,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::fmt::Display;
use std::future::Future;
use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::path::{PathBuf, absolute};
use tonic::{Response, Status};
use vmm::control::{AdviceAnswer, CheckpointAnswer, PlacementAnswer, SlicePlaces, VcpusAnswer};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Stop the guest on all slices at one moment. Its memory and devices stay where they are, and packets to it wait or
    /// are lost. The guest's clock goes on.
    Pause(Target),
    /// Have the guest go on after a pause.
    Resume(Target),
    /// Bring a vCPU to another slice, where it runs on. The guest runs meanwhile and notices nothing.
    Move(MoveArguments),
    /// Bring everything of a slice to others: its vCPUs with their queues, its memory, and the disks and networks that others
    /// reach (standby=). The guest runs meanwhile. Then the slice leaves: its process ends with status 0, and its memory is
    /// free.
    Drain(DrainArguments),
    /// Drain all slices that are not needed, so that the VM is on as few as have room for it.
    Consolidate(ConsolidateArguments),
    /// Have a companion join a VM that runs, as one slice more, and bring vCPUs to it until it has its share. The VM was
    /// started with --secret-file, and the bootstrap's slice coordinates it.
    Add(AddArguments),
    /// Bring vCPUs to slices that have fewer, until they are spread evenly.
    Spread(Target),
    /// Print which vCPUs the guest has, or have it get or give some back, if the VM was started with max-cpus= for a slice.
    Cpus(CpusArguments),
    /// Count for a while which slices send each other pages, and print where whole groups of vCPUs would be better placed:
    /// what that saves, and what it costs. Nothing is moved.
    Advise(AdviseArguments),
    /// Write the whole VM into a folder: memory, vCPUs and devices of all slices at one moment. The guest stands still for that
    /// moment and runs on while it is written, unless --stop or --end is given, or the VM is one slice without --secret-file.
    /// Other slices write their parts into the folder that their --checkpoints names; all must be one folder.
    Checkpoint(CheckpointArguments),
    /// Print the JSON schema of the VM file (docs/vm-file.md), for editors and programs that write one.
    Schema,
    /// Show where each part of the VM is: vCPUs, memory, devices and their queues.
    Show(ShowTarget),
    #[command(flatten)]
    Cluster(cluster::vm::Verb),
}

/// Ends the help: verbs of one command ask two programs, and clap has no headings for that.
pub(crate) fn who_is_asked() -> String {
    let command = Verb::augment_subcommands(Command::new("vm"));
    let with = |option: &str| {
        let has = |verb: &&Command| verb.get_arguments().any(|it| it.get_id() == option);
        let names: Vec<&str> =
            command.get_subcommands().filter(has).map(Command::get_name).collect();
        names.join(", ")
    };
    format!(
        "Who is asked:\n  a slice of a running VM, at its socket (--control): {}\n  the orchestrator of a cluster (--cluster): {}\n  nobody: schema",
        with("control"),
        with("cluster")
    )
}

#[derive(Args, Debug)]
struct ShowTarget {
    /// Control socket of any slice
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
struct MoveArguments {
    /// Number of the vCPU
    vcpu: u32,
    /// Number of the slice that is to have it; 0 is the bootstrap's
    slice: u16,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct DrainArguments {
    /// Number of the slice
    slice: u16,
    #[command(flatten)]
    stay: Stay,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct ConsolidateArguments {
    #[command(flatten)]
    stay: Stay,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct AddArguments {
    /// Where the companion listens (tessera companion --listen); all slices must reach it there
    #[arg(value_name = "ADDRESS:PORT", value_parser = address)]
    address: SocketAddr,
    /// Bring nothing to it for now
    #[arg(long)]
    empty: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct CpusArguments {
    /// How many vCPUs the guest is to have. It is told so by ACPI, and waited for
    ///
    /// The lowest numbers come first, and the highest go first. Linux knows a vCPU that has come, and uses it once somebody in
    /// the guest writes 1 into /sys/devices/system/cpu/cpuN/online. One that is to go it takes off line by itself.
    count: Option<u32>,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct AdviseArguments {
    /// How long to count
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    seconds: u64,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct CheckpointArguments {
    /// The folder of the checkpoint; it must not exist, and the folder that it is in must
    path: PathBuf,
    /// End the VM when it is written, as a suspend to disk
    #[arg(long)]
    end: bool,
    /// Have the guest stand still until all is written, and not only for the moment that the checkpoint is of
    #[arg(long)]
    stop: bool,
    /// Write only what has changed since the last checkpoint of this VM, which must be in the same folder and stay there
    #[arg(long)]
    incremental: bool,
    /// Make pages shorter (zstd)
    #[arg(long)]
    compress: bool,
    /// Write it although disks of the VM go on changing: a restored guest would find them later than its memory
    #[arg(long)]
    no_disk_guarantee: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct Stay {
    /// Have slices that are empty then stay, so that they can be given parts again
    #[arg(long)]
    stay: bool,
}

#[derive(Args, Debug)]
struct Format {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t = Output::Table, conflicts_with = "json")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Words and tables for people
    Table,
    /// JSON, the same as --json
    Json,
}

impl Format {
    fn is_json(&self) -> bool {
        self.json || self.output == Output::Json
    }
}

#[derive(Args, Debug)]
struct Target {
    /// Control socket of the slice that coordinates the VM: at first the bootstrap's (tessera vm show)
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
    #[command(flatten)]
    format: Format,
}

/// Asks, and prints what has come of it; the exit status.
pub(crate) fn run(arguments: &Arguments) -> Result<u8> {
    let done = match &arguments.verb {
        Verb::Cluster(verb) => return cluster::vm::run(verb),
        Verb::Pause(target) => {
            let request = PauseVmRequest::default();
            let answer = Asking::connect(&target.control)?
                .ask_within(LIMIT_OF_ALL, |mut vm| async move { vm.pause_vm(request).await })?;
            done(target, "paused", answer.took.as_ref())
        }
        Verb::Resume(target) => {
            let request = ResumeVmRequest::default();
            let answer = Asking::connect(&target.control)?
                .ask_within(LIMIT_OF_ALL, |mut vm| async move { vm.resume_vm(request).await })?;
            done(target, "resumed", answer.took.as_ref())
        }
        Verb::Move(MoveArguments { vcpu, slice, target }) => {
            let moves = vec![move_vcpus_request::Move { vcpu: *vcpu, slice: u32::from(*slice) }];
            let request = MoveVcpusRequest { moves, ..MoveVcpusRequest::default() };
            moved(target, "moved", |mut vm| async move { vm.move_vcpus(request).await })
        }
        Verb::Drain(DrainArguments { slice, stay, target }) => {
            let name = format!("slices/{slice}");
            let request = DrainSliceRequest { name, stay: stay.stay, ..Default::default() };
            moved(target, "drained", |mut vm| async move { vm.drain_slice(request).await })
        }
        Verb::Consolidate(ConsolidateArguments { stay, target }) => {
            let request = ConsolidateRequest { stay: stay.stay, ..Default::default() };
            moved(target, "consolidated", |mut vm| async move { vm.consolidate(request).await })
        }
        Verb::Add(AddArguments { address, empty, target }) => {
            let (address, empty) = (address.to_string(), *empty);
            let request = AddSliceRequest { address, empty, ..Default::default() };
            moved(target, "added", |mut vm| async move { vm.add_slice(request).await })
        }
        Verb::Spread(target) => {
            let request = SpreadRequest::default();
            moved(target, "spread", |mut vm| async move { vm.spread(request).await })
        }
        Verb::Cpus(arguments) => cpus(arguments),
        Verb::Advise(arguments) => advise(arguments),
        Verb::Checkpoint(arguments) => checkpoint(arguments),
        Verb::Schema => {
            stdout().write_all(vm_file::schema().as_bytes()).context("print the schema")
        }
        Verb::Show(target) => show(target),
    };
    done.map(|()| 0)
}

/// Has parts moved, and prints how long it took.
fn moved<F>(target: &Target, what: &str, begin: impl FnOnce(Vm) -> F) -> Result<()>
where
    F: Future<Output = std::result::Result<Response<Operation>, Status>>,
{
    let answer: MovePartsResponse = operate(target, begin)?;
    done(target, what, answer.took.as_ref())
}

fn done(target: &Target, what: &str, took: Option<&prost_types::Duration>) -> Result<()> {
    let milliseconds = milliseconds(took);
    let line = if target.format.is_json() {
        json!({ "done": true, "milliseconds": milliseconds }).to_string()
    } else {
        format!("{what} after {milliseconds:.1} ms")
    };
    writeln!(stdout(), "{line}").context("print the answer")
}

/// Has an operation done, and shows how far it has come.
fn operate<A, F>(target: &Target, begin: impl FnOnce(Vm) -> F) -> Result<A>
where
    A: prost::Message + Default,
    F: Future<Output = std::result::Result<Response<Operation>, Status>>,
{
    let bar = bar();
    let answer = Asking::connect(&target.control)?.operate(begin, |far| {
        bar.set_length(far.total_units);
        bar.set_position(far.done_units);
        bar.set_message(far.phase.clone());
    });
    bar.finish_and_clear();
    answer
}

fn advise(AdviseArguments { seconds, target }: &AdviseArguments) -> Result<()> {
    let seconds = i64::try_from(*seconds).context("count for so long")?;
    let count_for = Some(prost_types::Duration { seconds, nanos: 0 });
    let request = AdviseRequest { count_for, ..AdviseRequest::default() };
    let answer: AdviseResponse = operate(target, |mut vm| async move { vm.advise(request).await })?;
    let text = if target.format.is_json() {
        serde_json::to_string(&AdviceAnswer { proposals: answer.proposals })?
    } else if answer.proposals.is_empty() {
        "no group of vCPUs would be better placed, as far as the counters tell".to_owned()
    } else {
        answer.proposals.join("\n")
    };
    writeln!(stdout(), "{text}").context("print the answer")
}

fn cpus(CpusArguments { count, target }: &CpusArguments) -> Result<()> {
    let Vcpus { present, coming, leaving, absent } = match count {
        None => Asking::connect(&target.control)?
            .ask(|mut vm| async move { vm.get_vcpus(GetVcpusRequest::default()).await })?,
        Some(count) => {
            let request = SetVcpusRequest { count: *count, ..SetVcpusRequest::default() };
            operate(target, |mut vm| async move { vm.set_vcpus(request).await })?
        }
    };
    let answer = VcpusAnswer { present, coming, leaving, absent };
    let json = target.format.is_json();
    let text = if json { serde_json::to_string(&answer)? } else { lines_of(&answer) };
    writeln!(stdout(), "{text}").context("print the answer")
}

fn checkpoint(arguments: &CheckpointArguments) -> Result<()> {
    let CheckpointArguments { path, target, .. } = arguments;
    let path = absolute(path).context("find the folder of the checkpoint")?;
    let path = path.to_str().context("the path of the checkpoint is no text")?.to_owned();
    let request = CreateCheckpointRequest {
        path: path.clone(),
        end: arguments.end,
        stop: arguments.stop,
        incremental: arguments.incremental,
        compress: arguments.compress,
        no_disk_guarantee: arguments.no_disk_guarantee,
        ..CreateCheckpointRequest::default()
    };
    let answer: CreateCheckpointResponse =
        operate(target, |mut vm| async move { vm.create_checkpoint(request).await })?;
    let checkpoint = answer.checkpoint.unwrap_or_default();
    let answer = CheckpointAnswer {
        milliseconds: milliseconds(answer.took.as_ref()),
        paused_milliseconds: milliseconds(answer.paused.as_ref()),
        bytes: checkpoint.bytes,
        pages: checkpoint.pages,
        digest: checkpoint.digest,
        cut: checkpoint.cut,
    };
    let json = target.format.is_json();
    let text = if json { serde_json::to_string(&answer)? } else { written(&path, &answer) };
    writeln!(stdout(), "{text}").context("print the answer")
}

fn written(path: &str, answer: &CheckpointAnswer) -> String {
    let CheckpointAnswer { milliseconds, paused_milliseconds, bytes, pages, .. } = answer;
    format!(
        "{path} is written after {milliseconds:.1} ms: {pages} pages in {} MiB; the guest stood still for \
         {paused_milliseconds:.1} ms",
        bytes >> 20
    )
}

fn lines_of(VcpusAnswer { present, coming, leaving, absent }: &VcpusAnswer) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (state, vcpus) in
        [("present", present), ("coming", coming), ("leaving", leaving), ("absent", absent)]
    {
        table.add_row([state.to_owned(), list(vcpus)]);
    }
    table.to_string()
}

/// Shown on a terminal only, once there is something to tell.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    let bar = ProgressBar::new(0);
    style.map_or_else(|_| ProgressBar::hidden(), |style| bar.with_style(style))
}

fn show(target: &ShowTarget) -> Result<()> {
    let vm = Asking::connect(&target.control)?
        .ask(|mut vm| async move { vm.get_vm(GetVmRequest::default()).await })?;
    let answer = places(&vm)?;
    let json = target.format.is_json();
    let text = if json { serde_json::to_string(&answer)? } else { table(&answer) };
    writeln!(stdout(), "{text}").context("print the answer")
}

/// Where everything is, as the lines of the control socket say it.
fn places(vm: &control::v1::Vm) -> Result<PlacementAnswer> {
    let small = |number: u32| u16::try_from(number).context("read the answer");
    let queue = |queue: &Queue| Ok((small(queue.device)?, small(queue.queue)?));
    let slice = |slice: &Slice| {
        Ok(SlicePlaces {
            slice: small(slice.number)?,
            vcpus: slice.vcpus.clone(),
            memory_mib: slice.memory_bytes >> 20,
            devices: slice.devices.iter().copied().map(small).collect::<Result<_>>()?,
            queues: slice.queues.iter().map(queue).collect::<Result<_>>()?,
        })
    };
    Ok(PlacementAnswer {
        epoch: vm.placement_epoch,
        coordinator: small(vm.coordinator)?,
        life: vm.life,
        slices: vm.slices.iter().map(slice).collect::<Result<_>>()?,
    })
}

fn table(answer: &PlacementAnswer) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["slice", "vCPUs", "memory MiB", "devices", "queues (device.queue)"]);
    for places in &answer.slices {
        table.add_row([
            places.slice.to_string(),
            list(&places.vcpus),
            places.memory_mib.to_string(),
            list(&places.devices),
            list(places.queues.iter().map(|(device, queue)| format!("{device}.{queue}"))),
        ]);
    }
    let PlacementAnswer { epoch, coordinator, .. } = answer;
    format!("placement {epoch}, coordinated by slice {coordinator}\n{table}")
}

fn list(of: impl IntoIterator<Item = impl Display>) -> String {
    let texts: Vec<String> = of.into_iter().map(|one| one.to_string()).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_each_vcpu() {
        let answer =
            VcpusAnswer { present: vec![0, 1], absent: vec![2, 3], ..VcpusAnswer::default() };
        let text = lines_of(&answer);
        let words: Vec<_> = text.split_whitespace().collect();
        assert_eq!(words, ["present", "0", "1", "coming", "-", "leaving", "-", "absent", "2", "3"]);
    }

    #[test]
    fn table_shows_each_slice() {
        let queues = vec![(0, 0), (0, 1)];
        let first =
            SlicePlaces { vcpus: vec![0, 2], memory_mib: 512, queues, ..Default::default() };
        let second = SlicePlaces { slice: 1, devices: vec![0], ..Default::default() };
        let text = table(&PlacementAnswer {
            epoch: 4,
            coordinator: 1,
            life: 0,
            slices: vec![first, second],
        });
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().map(words).collect();
        assert_eq!(lines[0], ["placement", "4,", "coordinated", "by", "slice", "1"]);
        assert_eq!(lines[2], ["0", "0", "2", "512", "-", "0.0", "0.1"]);
        assert_eq!(lines[3], ["1", "-", "0", "0", "-"]);
    }
}
