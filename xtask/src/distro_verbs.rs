//! `./x distro`: the Debian system for guests, by itself.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use lab::distro;
use scenarios::Progress;
use scenarios::distro::check::{self, CheckOptions};

#[derive(Subcommand)]
pub(crate) enum DistroVerb {
    /// Build the system unless it is there, and say where its files are
    Build,
    /// Boot it on a plain QEMU machine without Tessera, fetch objects, log in, power off
    Check(CheckOptions),
    /// Remove the images of other recipes from the cache
    Clean,
}

pub(crate) fn run(verb: &DistroVerb) -> Result<ExitCode> {
    let progress = Progress::new();
    match verb {
        DistroVerb::Build => {
            let files = distro::distro(&|line| progress.say(line))?;
            for (name, path) in [
                ("disk", &files.image),
                ("vmlinuz", &files.vmlinuz),
                ("vmlinux", &files.vmlinux),
                ("initrd", &files.initrd),
                ("ssh key", &files.key),
            ] {
                println!("{name:<8} {}", path.display());
            }
            println!("cmdline  {}", distro::COMMAND_LINE);
        }
        DistroVerb::Check(options) => {
            let files = distro::distro(&|line| progress.say(line))?;
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
