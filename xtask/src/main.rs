//! The verbs of `./x`. Each verb is a module; this file only reads the command line.
#![forbid(unsafe_code)]

mod arrows;
mod bench;
mod bench_options;
mod chaos_net;
mod chaos_plan;
mod chaos_round;
mod check;
mod circles;
mod client_link;
mod companion;
mod demo;
mod device_bench;
mod disk_bench;
mod disk_judge;
mod disk_modes;
mod disk_rig;
mod distro_console;
mod distro_demo;
mod distro_guest;
mod distro_options;
mod distro_verbs;
mod distro_vm;
mod echo_verb;
mod fault_classes;
mod fio;
mod fio_verify;
mod fuzz;
mod guest_console;
mod http_verbs;
mod interrupt;
mod lab_links;
mod lab_rdma;
mod lab_verbs;
mod layout;
mod links;
mod net_bench;
mod page_moves;
mod programs_bench;
mod progress;
mod rounds;
mod scenario;
mod soak;
mod soak_chaos;
mod soak_device;
mod soak_guest;
mod soak_kill;
mod summary;
mod test_run;
mod tidy;
mod transport_bench;
mod vm_options;
mod vsock_echo;
mod workspace;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "x", bin_name = "./x", about = "Build, check, test and try Tessera")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Hosts for tests: bring them up, run commands in them, end them
    Lab {
        #[command(subcommand)]
        verb: lab_verbs::LabVerb,
    },
    /// Format, clippy, dependency arrows and tidy rules
    Check(check::CheckOptions),
    /// Run all tests and list those skipped; arguments go to `cargo test`, `TESSERA_REQUIRE=kvm,uffd,rdma` fails what
    /// would be skipped
    Test(Rest),
    /// Replay the inputs kept for the fuzz targets, and look for more
    Fuzz(fuzz::FuzzOptions),
    /// An experiment by name, or the benchmarks of cargo; without a name, what there is
    Bench(bench_options::BenchOptions),
    /// Boot a Debian kernel as one VM over several hosts and run its tests
    Demo(demo::DemoOptions),
    /// A test of a VM in the lab, again and again
    Soak {
        #[command(subcommand)]
        verb: soak::SoakVerb,
    },
    /// The Debian system that guests boot from a disk: build it, prove it without Tessera
    Distro {
        #[command(subcommand)]
        verb: distro_verbs::DistroVerb,
    },
    /// Ask a web server; run by the lab inside its hosts
    #[command(hide = true)]
    Http {
        #[command(subcommand)]
        verb: http_verbs::HttpVerb,
    },
    /// Send datagrams to a guest that echoes them, and judge them; run by `soak chaos` inside a lab's host
    #[command(hide = true)]
    Echo(echo_verb::EchoOptions),
    /// Judge the disks of a killed guest; run by `soak guest-kill` inside a lab's host
    #[command(hide = true)]
    JudgeDisks(disk_judge::JudgeOptions),
    /// Run by the lab inside its hosts
    #[command(hide = true)]
    LabAgent,
    /// Run by `lab up` in the background
    #[command(hide = true)]
    LabDaemon(lab_verbs::UpOptions),
}

#[derive(Args)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Lab { verb } => lab_verbs::run(verb),
        Verb::Check(options) => check::run(&options),
        Verb::Fuzz(options) => fuzz::run(&options),
        Verb::Test(rest) => test_run::run(&rest.arguments),
        Verb::Bench(options) => bench::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Soak { verb } => soak::run(&verb),
        Verb::Distro { verb } => distro_verbs::run(&verb),
        Verb::Http { verb } => http_verbs::run(verb),
        Verb::Echo(options) => echo_verb::run(&options),
        Verb::JudgeDisks(options) => disk_judge::run(&options),
        Verb::LabAgent => lab::agent::serve_port().map(|()| ExitCode::SUCCESS),
        Verb::LabDaemon(options) => Ok(lab_verbs::daemon(&options)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("x: {error:#}");
        ExitCode::FAILURE
    })
}
