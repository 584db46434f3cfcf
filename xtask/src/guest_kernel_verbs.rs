//! `./x guest-kernel`: kernels of guests that are built here, for measuring what patches bring.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use lab::kernel_build::{self, Variant};
use outcome::table;
use scenarios::Progress;

use crate::workspace;

#[derive(Subcommand)]
pub(crate) enum GuestKernelVerb {
    /// Build a kernel unless it is there, and say where its files are
    Build {
        /// Without the patches: what they are measured against
        #[arg(long)]
        stock: bool,
    },
    /// Find out whether all patches apply, and whether the files they touch build
    Check,
    /// Remove kernels and sources from the cache
    Clean,
}

pub(crate) fn run(verb: &GuestKernelVerb) -> Result<ExitCode> {
    let root = workspace::root()?;
    let progress = Progress::new();
    let say = |line: &str| progress.say(line);
    match verb {
        GuestKernelVerb::Build { stock } => {
            let variant = if *stock { Variant::Stock } else { Variant::Patched };
            let kernel = kernel_build::build(&root, variant, &say)?;
            let rows = [
                ("version", kernel.version),
                ("vmlinuz", kernel.vmlinuz.display().to_string()),
                ("vmlinux", kernel.vmlinux.display().to_string()),
                ("symbols", kernel.system_map.display().to_string()),
                ("modules", kernel.root.join("lib/modules").display().to_string()),
            ];
            print!("{}", table::text(&[], &rows.map(|(name, is)| vec![name.to_owned(), is]), 2));
        }
        GuestKernelVerb::Check => {
            kernel_build::check(&root, &say)?;
            progress.say("guest-kernel check passed");
        }
        GuestKernelVerb::Clean => println!("removed {}", kernel_build::clean()?.display()),
    }
    Ok(ExitCode::SUCCESS)
}
