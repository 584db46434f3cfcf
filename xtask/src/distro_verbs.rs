//! `./x distro`: the Debian system for guests, by itself.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use lab::distro::{self, System};
use outcome::table;
use scenarios::Progress;
use scenarios::distro::check::{self, CheckOptions};

#[derive(Subcommand)]
pub(crate) enum DistroVerb {
    /// Build the system unless it is there, and say where its files are
    Build {
        /// The one with servers of `./x bench workloads`: PHP, MariaDB, PostgreSQL, Redis
        #[arg(long)]
        servers: bool,
    },
    /// Boot it on a plain QEMU machine without Tessera, fetch objects, log in, power off
    Check(CheckOptions),
    /// Remove the images of other recipes from the cache
    Clean,
}

pub(crate) fn run(verb: &DistroVerb) -> Result<ExitCode> {
    let progress = Progress::new();
    match verb {
        DistroVerb::Build { servers } => {
            let system = if *servers { System::Servers } else { System::Base };
            let files = distro::distro(system, &|line| progress.say(line))?;
            let rows = [
                ("disk", files.image.display().to_string()),
                ("vmlinuz", files.vmlinuz.display().to_string()),
                ("vmlinux", files.vmlinux.display().to_string()),
                ("initrd", files.initrd.display().to_string()),
                ("ssh key", files.key.display().to_string()),
                ("cmdline", distro::COMMAND_LINE.to_owned()),
            ];
            print!("{}", table::text(&[], &rows.map(|(name, is)| vec![name.to_owned(), is]), 2));
        }
        DistroVerb::Check(options) => {
            let files = distro::distro(System::Base, &|line| progress.say(line))?;
            check::run(options, &files, &progress)?;
            progress.say("distro check passed");
        }
        DistroVerb::Clean => {
            for folder in distro::clean()? {
                println!("removed {}", folder.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
