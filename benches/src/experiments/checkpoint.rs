//! What a checkpoint costs a guest that runs on while it is written: for how long it stands still, how much slower it is
//! meanwhile, how fast the checkpoint is written, and how soon a guest goes on from it.
//!
//! ```text
//!   sizes of memory:       |64 MiB|256 MiB|...|64 MiB|...  the guest's gaps, and its work before, during and after
//!   on a disk:             |raw stream|live|stop|raw stream|live|stop|...
//!   two slices and one:    |two|one|one|two|...    the other one paused
//!   sizes of memory:       |64 MiB|256 MiB|...|64 MiB|...  restored, lazy and eager, until the guest does something
//! ```
//! All slices are processes or threads of this machine, joined by shared memory. The guest is `benches/guest/src/writer`.

mod pauses;
mod restoring;
mod throughput;
mod two_and_one;
mod vm;

pub use restoring::one as restore_one;

use super::Setting;
use crate::real_vm::Companion;
use crate::samples::Samples;
use anyhow::{Context, Result, ensure};
use outcome::{Outcome, Row};
use std::fs;
use std::path::{Path, PathBuf};
use vmm::slice::Memory;

const MIB: u64 = 1 << 20;

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Bytes of guest memory whose pauses are compared.
    sizes: &'static [u64],
    /// Checkpoints of each size while the guest runs, and while it stands still.
    live: usize,
    stopped: usize,
    /// Turns of the comparisons, with as much memory.
    turns: usize,
    bytes: u64,
}

const WHOLE: Plan = Plan {
    sizes: &[64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB],
    live: 200,
    stopped: 5,
    turns: 7,
    bytes: 1024 * MIB,
};
const QUICK: Plan = Plan {
    sizes: &[64 * MIB, 256 * MIB, 1024 * MIB],
    live: 8,
    stopped: 2,
    turns: 3,
    bytes: 256 * MIB,
};

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or too little memory, or the guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let plan = if setting.quick { QUICK } else { WHOLE };
    let guest = setting.image.with_file_name("writer");
    ensure!(guest.exists(), "no guest {}: it is built with the microguest", guest.display());
    let beside = setting.image.parent().context("an image in a folder")?;
    let (memory, disk) = (Folder::new(Path::new("/dev/shm"))?, Folder::new(beside)?);
    // All of them while there is one thread.
    let fork = |folder: &Folder| Companion::fork(Memory::Memfd, Some(folder.0.clone()));
    let companions = plan.sizes.iter().map(|_| fork(&memory)).collect::<Result<Vec<_>>>()?;
    let (on_disk, of_two) = (fork(&disk)?, fork(&memory)?);
    let mut outcome = Outcome::new("checkpoint");
    outcome.shown = "p50 ms".into();
    outcome.conditions.notes = vec![
        format!(
            "{} checkpoints of each size while the guest runs, {} while it stands still; two slices, shm, a vCPU each; into {}",
            plan.live,
            plan.stopped,
            memory.0.display()
        ),
        "all memory has contents, every fourth chunk is shared; vCPU 1 stores to 16 MiB at random, every 40 us".into(),
        "pause, guest: the gap that vCPU 0 saw at the moment of the checkpoint; pause, answer: from the request to rest until \
         all go on"
            .into(),
    ];
    let mut pauses = pauses::Pauses::default();
    let companions = plan.sizes.iter().copied().zip(companions).collect();
    let all = pauses::measure(&guest, companions, &memory.0, plan).context("pauses")?;
    for (bytes, found) in plan.sizes.iter().zip(all) {
        let name = size(*bytes);
        eprintln!("{name}: {found}");
        pauses.add(found, &name, &mut outcome);
    }
    pauses.judge(&mut outcome);
    throughput::run(&guest, (plan, on_disk), &disk.0, &mut outcome).context("on the disk")?;
    two_and_one::run(&guest, (plan, of_two), &memory.0, &mut outcome).context("two and one")?;
    restoring::run(&guest, plan, &memory.0, &mut outcome).context("restore")?;
    Ok(outcome)
}

/// A folder for checkpoints that goes away.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new(within: &Path) -> Result<Self> {
        let path = within.join(format!("tessera-bench-checkpoints-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn size(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

/// Of times in milliseconds.
fn milliseconds(name: String, samples: &Samples) -> Row {
    let count = float(u64::try_from(samples.sorted().len()).unwrap_or(u64::MAX));
    let figures =
        [("p50 ms", samples.percentile(50)), ("p99 ms", samples.percentile(99)), ("count", count)];
    Row { name, figures: figures.map(|(column, value)| (column.to_owned(), value)).to_vec() }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}
