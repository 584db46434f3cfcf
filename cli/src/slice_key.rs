//! `tessera slice-key`: the key of one slice, for the host of a companion that is not to know the
//! secret.

use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use transport::Secret;
use wire::{SLICES_MAX, SliceId};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// File with the VM's secret
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// Number of the slice in the bootstrap's list, from 1 on; of one that is to join later, one above the highest that the VM
    /// has ever had. 0 is the bootstrap, which needs the secret
    #[arg(long, value_name = "NUMBER")]
    slice: u16,
    /// File to write the key to, which must not exist; the companion is given it as --secret-file
    ///
    /// Only its owner may read it.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Writes a file that only its owner may read.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.slice >= SLICES_MAX {
        bail!("a VM has slices 0 to {}, and no slice {}", SLICES_MAX - 1, arguments.slice);
    }
    if arguments.slice == 0 {
        bail!("slice 0 is the bootstrap, which needs the secret of the VM");
    }
    let secret = Secret::load(&arguments.secret_file).context("load the VM's secret")?;
    let key = secret.slice_key(SliceId(arguments.slice));
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&arguments.out);
    let written = file.and_then(|mut file| file.write_all(key.file_text().as_bytes()));
    written.with_context(|| format!("write {}", arguments.out.display()))
}
