//! The command line of a supervisor of a VM.

use super::options::{OnLost, room};
use crate::bootstrap::Arguments as Bootstrap;
use crate::names::address;
use crate::reset::OnReset;
use anyhow::{Result, ensure};
use clap::Args;
use migrate::supervise::Room;
use std::net::SocketAddr;

/// Ends the help.
pub(crate) const EXAMPLE: &str = "\
Example: as tessera bootstrap, with checkpoints each minute in a folder that all hosts share, and one host in reserve:
  tessera supervise bootstrap --on-lost restart=every:60,keep:2 --spare 10.9.0.3:7100 \\
      --checkpoints /srv/checkpoints --control /run/tessera.sock --secret-file vm.key --kernel vmlinuz \\
      --slice local,cpus=1,memory=512M --slice 10.9.0.2:7100,cpus=1,memory=512M
and on each other host, with its own address:
  tessera supervise companion --listen 10.9.0.2:7100 --checkpoints /srv/checkpoints --secret-file vm.key

Its exit status is that of the bootstrap that ended last, or 8 if it is stopped while none runs.";

#[derive(Args, Debug)]
pub(crate) struct Supervised {
    /// What follows when the VM ends because a slice is lost: `restart=every:SECONDS[,keep:N][,full:M][,compress][,on-panic][,lazy][,no-disk-guarantee]`
    ///
    /// - `every`: from one checkpoint to the next, 1 to 604800. What the guest has done since the last one is lost with a slice.
    /// - `keep`: how many checkpoints are kept, 1 to 1000, 2 if not given. Older ones are deleted.
    /// - `full`: each M-th checkpoint is full, 1 to 32, 1 if not given; the others have only what changed since the one before, and need it.
    ///   Then N + M - 1 checkpoints are kept at most.
    /// - `compress`, `no-disk-guarantee`: as for `tessera vm checkpoint`.
    /// - `on-panic`: a guest whose kernel has panicked goes on from a checkpoint too.
    /// - `lazy`: the VM goes on at once and its memory follows (`--lazy`): for much memory and quick storage. Should it end, all memory is read and
    ///   verified first when it goes on from the same checkpoint again, as it is without this word.
    #[arg(
        long,
        default_value = "restart=every:60,keep:2",
        value_name = "POLICY",
        verbatim_doc_comment
    )]
    pub(super) on_lost: OnLost,
    /// Where a companion waits in reserve: it takes the place of a slice whose host does not answer. May be given several times
    #[arg(long = "spare", value_name = "ADDRESS:PORT", value_parser = address)]
    pub(super) spares: Vec<SocketAddr>,
    /// What one host may have of the VM, `cpus=N,memory=SIZE`, if it is to go on with fewer hosts than before
    ///
    /// Without it the VM waits until there are as many. Those that are left out come back with the next start, or by `tessera vm add`.
    #[arg(long, value_name = "ROOM", value_parser = room)]
    pub(super) fits: Option<Room>,
    /// How long after a loss the hosts of before are waited for, before spares are taken and others left out
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    pub(super) patience: u64,
    #[command(flatten)]
    pub(super) bootstrap: Bootstrap,
}

impl Supervised {
    /// # Errors
    /// These options of a bootstrap have no meaning here.
    pub(super) fn check(&self) -> Result<()> {
        let bootstrap = &self.bootstrap;
        ensure!(!bootstrap.slices.is_empty(), "say by --slice what each host has of the VM");
        ensure!(
            bootstrap.restore.clone.is_none(),
            "make the clone with tessera bootstrap, and supervise it from a checkpoint of its own"
        );
        ensure!(
            bootstrap.on_reset == OnReset::End,
            "a supervised VM ends when its guest asks for a reset: leave --on-reset out"
        );
        Ok(())
    }
}
