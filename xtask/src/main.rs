//! The verbs of `./x`. Each verb is a module that reads its part of the command line; what runs over the hosts of a lab is in
//! the crate `scenarios`.
#![forbid(unsafe_code)]

mod arrows;
mod bench;
mod book;
mod check;
mod circles;
mod demo;
mod deny;
mod distro_verbs;
mod docs;
mod fuzz;
mod guest_kernel_verbs;
mod http_verbs;
mod lab_verbs;
mod links;
mod named_files;
mod names;
mod packages;
mod soak;
mod soak_cluster;
mod test_failures;
mod test_programs;
mod test_run;
mod tidy;
mod tools;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use scenarios::bench::BenchOptions;
use scenarios::chaos::echo::{self, EchoOptions};
use scenarios::judge::disks::{self, JudgeOptions};
// Modules of this crate know it as `crate::workspace`.
use scenarios::workspace;

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
    /// Format, clippy, dependency arrows, documents, tidy rules, licences and sources of crates
    Check(check::CheckOptions),
    /// Write the documents that are made from the code: docs/options.md
    Docs,
    /// Run all tests and list those skipped; arguments go to `cargo test`, `TESSERA_REQUIRE=kvm,uffd,rdma,etcd` fails what
    /// would be skipped
    Test(Rest),
    /// Replay the inputs kept for the fuzz targets, and look for more
    Fuzz(fuzz::FuzzOptions),
    /// Build the Debian package
    Packages(packages::PackagesOptions),
    /// An experiment by name, or the benchmarks of cargo; without a name, what there is
    Bench(BenchOptions),
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
    /// Guest kernels for measuring: Debian's sources, with and without the patches of `guest-patches/`
    GuestKernel {
        #[command(subcommand)]
        verb: guest_kernel_verbs::GuestKernelVerb,
    },
    /// Ask a web server; run by the lab inside its hosts
    #[command(hide = true)]
    Http {
        #[command(subcommand)]
        verb: http_verbs::HttpVerb,
    },
    /// Send datagrams to a guest that echoes them, and judge them; run by `soak chaos` inside a lab's host
    #[command(hide = true)]
    Echo(EchoOptions),
    /// Judge the disks of a killed guest; run by soaks inside a lab's host
    #[command(hide = true)]
    JudgeDisks(JudgeOptions),
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
        Verb::Docs => docs::run(),
        Verb::Fuzz(options) => fuzz::run(&options),
        Verb::Test(rest) => test_run::run(&rest.arguments),
        Verb::Packages(options) => packages::run(&options),
        Verb::Bench(options) => bench::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Soak { verb } => soak::run(&verb),
        Verb::Distro { verb } => distro_verbs::run(&verb),
        Verb::GuestKernel { verb } => guest_kernel_verbs::run(&verb),
        Verb::Http { verb } => http_verbs::run(verb),
        Verb::Echo(options) => echo::run(&options),
        Verb::JudgeDisks(options) => disks::run(&options),
        Verb::LabAgent => lab::agent::serve_port().map(|()| ExitCode::SUCCESS),
        Verb::LabDaemon(options) => Ok(lab_verbs::daemon(&options)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("x: {error:#}");
        ExitCode::FAILURE
    })
}
