//! `./x bench NAME`: an experiment on this machine's KVM; `./x bench cargo`: the benchmarks of cargo;
//! without a name, what there is.
//!
//! The microguest has a profile of its own (no unwinding) and the experiments are a program of their
//! own: they start processes and must begin with one thread.

use std::path::Path;
use std::process::{Command as Process, ExitCode};

use anyhow::{Context, Result, bail};
use outcome::table;
use scenarios::bench::{
    BenchOptions, ablation, disk, net, programs, sharing, transport, workloads,
};

use crate::{arrows, workspace};

/// The experiments, and what each compares.
const EXPERIMENTS: [(&str, &str); 9] = [
    ("faults", "a remote fault with its floor"),
    ("sharing", "no, false and true sharing with one writer alone; ping-pong"),
    ("writes", "four vCPUs that write to four, two or one page with one vCPU alone"),
    ("scan", "reading remote memory with a raw stream"),
    ("solo", "a VM on one slice with no memory engine"),
    ("npb", "NAS kernels over two slices with two vCPUs on one core"),
    ("migrate", "what a vCPU sees of its move to another slice with what no move goes below"),
    (
        "checkpoint",
        "how long a guest stands still for a checkpoint, by its memory; writing one with a raw stream",
    ),
    (
        ABLATION,
        "each optional mechanism of the memory engine with the engine without it (also --lab)",
    ),
];
/// Experiments with a VM over the hosts of a lab: NAME [--quick] [-- OPTIONS OF THE VM].
const IN_A_LAB: [(&str, &str, InLab); 6] = [
    (
        "net",
        "a web server on a remote vCPU, rings delegated or coherent, with one on the local vCPU",
        net::run,
    ),
    ("disk", "fio on a remote vCPU, rings delegated or coherent, with the local vCPU", disk::run),
    (
        "programs",
        "programs that nobody has bound to a vCPU, over two hosts, with one vCPU on one host",
        programs::run,
    ),
    (
        "workloads",
        "LEMP, functions, NAS kernels and what people try, over two hosts, with two vCPUs on one CPU",
        workloads::run,
    ),
    (
        "sharing-linux",
        "faults of both slices for each operation of an unmodified kernel over two hosts",
        sharing::run,
    ),
    ("transport", "frames and pages over shm, tcp and rdma with perftest (no VM)", transport::run),
];
type InLab = fn(&BenchOptions) -> Result<ExitCode>;
/// The experiment that is made here and, with `--lab`, over hosts.
const ABLATION: &str = "ablation";
/// The experiment without a VM: weeks of a cluster, simulated.
const CLUSTER: (&str, &str) = (
    "scheduler",
    "policies of the scheduler of clusters over weeks of VMs, simulated (no VM); its golden test, its decision times",
);
/// The name that stands for the benchmarks of cargo.
const CARGO: &str = "cargo";
const PACKAGE: &str = "tessera-benches";
/// It has a benchmark of its own.
const SCHEDULER: &str = "tessera-scheduler";
const CLUSTER_SIM: &str = "tessera-cluster-sim";

pub(crate) fn run(options: &BenchOptions) -> Result<ExitCode> {
    let root = workspace::root()?;
    if let Some(name) = &options.name {
        check_heeded(name, options)?;
    }
    match options.name.as_deref() {
        None => list(&root),
        Some(CARGO) => benchmarks(&root, options),
        Some(ABLATION) if options.lab => ablation::run(options),
        Some(name) if name == CLUSTER.0 => scheduler(&root, options),
        Some(name) if EXPERIMENTS.iter().any(|(known, _)| *known == name) => {
            experiment(&root, name, options)
        }
        Some(name) => match IN_A_LAB.iter().find(|(known, ..)| *known == name) {
            Some((.., run)) => run(options),
            None => {
                let known = EXPERIMENTS.map(|(name, _)| name).join(", ");
                let more = IN_A_LAB.map(|(name, ..)| name).join(", ");
                let last = CLUSTER.0;
                bail!("no experiment {name:?}; there are: {known}, {more}, {last}, and {CARGO}")
            }
        },
    }
}

/// An option that an experiment does not heed would leave its user with figures of something else.
fn check_heeded(name: &str, options: &BenchOptions) -> Result<()> {
    let in_a_lab = IN_A_LAB.iter().any(|(known, ..)| *known == name);
    let is_known = in_a_lab || EXPERIMENTS.iter().any(|(known, _)| *known == name);
    if !is_known && name != CARGO && name != CLUSTER.0 {
        // Which there are is told later.
        return Ok(());
    }
    let has_rounds = name == ABLATION || in_a_lab && name != "transport";
    let all = [
        ("--after-drain", options.after_drain, name == "solo"),
        ("--rounds", options.rounds.is_some(), has_rounds),
        ("--also", !options.also.is_empty(), name == "programs"),
        ("--lab", options.lab, name == ABLATION),
        ("--disk-speed", options.disk_speed.is_some(), name == "disk"),
        ("--client-speed", options.client_speed.is_some(), name == "net"),
        ("--only", !options.only.is_empty(), [ABLATION, "workloads"].contains(&name)),
        ("--", !options.rest.is_empty(), name == CARGO || name == ABLATION || in_a_lab),
    ];
    match all.iter().find(|(_, is_given, is_heeded)| *is_given && !is_heeded) {
        Some((option, ..)) => bail!("{option}: not for `./x bench {name}` (see ./x bench --help)"),
        None => Ok(()),
    }
}

fn list(root: &Path) -> Result<ExitCode> {
    println!("experiments (./x bench NAME [--quick]); each compares");
    print!("{}", named(&EXPERIMENTS));
    println!("over two hosts of a lab (./x bench NAME [--quick] [-- OPTIONS OF THE VM]):");
    print!("{}", named(&IN_A_LAB.map(|(name, what, _)| (name, what))));
    println!("without a VM (./x bench NAME [--quick]):\n{}", named(&[CLUSTER]).trim_end());
    let names = arrows::benchmarks(root)?.join(", ");
    println!("benchmarks of cargo (./x bench {CARGO} [--quick] [-- ARGUMENTS]):\n  {names}");
    Ok(ExitCode::SUCCESS)
}

fn named(experiments: &[(&str, &str)]) -> String {
    let row = |(name, what): &(&str, &str)| vec![format!("  {name}"), (*what).to_owned()];
    table::text(&[], &experiments.iter().map(row).collect::<Vec<_>>(), 2)
}

fn benchmarks(root: &Path, options: &BenchOptions) -> Result<ExitCode> {
    let mut cargo = Process::new(workspace::cargo());
    cargo.args(["bench", "--locked", "-p", PACKAGE, "-p", SCHEDULER, "--"]).current_dir(root);
    if options.quick {
        cargo.arg("--quick");
    }
    let status = cargo.args(&options.rest).status().context("start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// FragVisor's figure step for step, the time of decisions, and all policies over simulated weeks.
fn scheduler(root: &Path, options: &BenchOptions) -> Result<ExitCode> {
    workspace::run_cargo(root, &["test", "-q", "--locked", "-p", SCHEDULER, "--test", "figure14"])
        .context("play FragVisor's figure 14")?;
    workspace::run_cargo(root, &["bench", "-q", "--locked", "-p", SCHEDULER, "--", "--quick"])
        .context("measure decisions")?;
    let mut cargo = Process::new(workspace::cargo());
    cargo.args(["run", "-q", "--locked", "--release", "-p", CLUSTER_SIM, "--example", "scheduler"]);
    cargo.args(["--", "--out"]).arg(workspace::target(root).join("bench")).current_dir(root);
    if options.quick {
        cargo.arg("--quick");
    }
    let status = cargo.status().context("start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn experiment(root: &Path, name: &str, options: &BenchOptions) -> Result<ExitCode> {
    eprintln!("building the microguest and the experiments");
    let guest = ["-p", "tessera-microguest", "--features", "guest", "--profile", "guest"];
    workspace::run_cargo(root, &[&["build", "-q", "--locked"], &guest[..]].concat())
        .context("build the microguest")?;
    workspace::run_cargo(root, &["build", "-q", "--locked", "--release", "-p", PACKAGE])
        .context("build the experiments")?;
    let target = workspace::target(root);
    let mut program = Process::new(target.join("release/tessera-bench"));
    program.arg(name).arg("--image").arg(target.join("guest/microguest"));
    program.arg("--out").arg(target.join("bench"));
    if options.quick {
        program.arg("--quick");
    }
    if options.after_drain {
        program.arg("--after-drain");
    }
    if name == ABLATION {
        let pairs = options.rounds.map(|rounds| ["--pairs".to_owned(), rounds.to_string()]);
        program.args(pairs.into_iter().flatten());
        program.args(options.only.iter().flat_map(|name| ["--mechanism", name]));
        program.args(&options.rest);
    }
    let status = program.status().context("start the experiment")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: BenchOptions,
    }

    #[test]
    fn option_that_an_experiment_does_not_heed_is_refused() {
        let check = |words: &str| {
            let line = Line::parse_from(["bench"].into_iter().chain(words.split_whitespace()));
            check_heeded(line.options.name.as_deref().unwrap(), &line.options)
        };
        for good in [
            "faults --quick",
            "solo --after-drain",
            "workloads --only pigz --rounds 1 -- --memory 768",
            "ablation --lab --only correlation -- --mechanism x",
            "cargo -- frames",
        ] {
            check(good).unwrap();
        }
        check("nonsense --rounds 3").unwrap();
        for bad in ["faults --rounds 3", "scan --only x", "sharing -- --layout 1+1", "npb --lab"] {
            assert!(check(bad).unwrap_err().to_string().contains("--help"), "{bad}");
        }
    }
}
