//! What a page of a scan costs the reader's core whoever brings it, each measured alone: the guest's first
//! touch, and the place of a fresh page in the memory file.

use super::{CORES, bandwidth};
use crate::microvm::MicroVm;
use crate::paging::GuestPages;
use crate::placement::settle_as_engine;
use anyhow::{Context, Result};
use dsm::GuestRam;
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::spawn;
use std::time::Instant;
use wire::{Gfn, PAGE_SIZE, RUN_MAX};

/// Megabytes a second of a guest that reads memory of its own in order for the first time, all of it mapped
/// in its process: what is left is KVM's part.
///
/// # Errors
/// KVM refuses.
pub(super) fn mapped(image: &Path, pages: u64) -> Result<f64> {
    let first = SHARED / 4096;
    let ram = Arc::new(GuestRam::new(std::slice::from_ref(&(first..first + pages)))?);
    let keep: Arc<GuestRam> = Arc::clone(&ram);
    let vm = MicroVm::new(image, &ram.slots(), keep, &CORES[..1], GuestPages::Small)?;
    ram.populate(Gfn(first), usize::try_from(pages)?).context("map guest memory")?;
    let job = Job { kind: Kind::Scan as u64, memory: SHARED, pages, rounds: 1, ..Job::default() };
    Ok(bandwidth(pages, &vm.run(0, Job { stride: 1, ..job })?))
}

/// Megabytes a second of runs of pages written into a new memory file, on the reader's core.
///
/// # Errors
/// No memory file can be had, or it cannot be written.
pub(super) fn written(pages: u64) -> Result<f64> {
    let writing = spawn(move || {
        settle_as_engine(CORES[0]);
        fill(pages)
    });
    writing.join().ok().context("a thread that writes a file panicked")?
}

fn fill(pages: u64) -> Result<f64> {
    let file = File::from(memfd_create("tessera-floor", MemfdFlags::CLOEXEC)?);
    let run = vec![7; usize::from(RUN_MAX) * PAGE_SIZE];
    let bytes = pages * 4096;
    file.set_len(bytes)?;
    let start = Instant::now();
    for at in (0..bytes).step_by(run.len()) {
        file.write_all_at(&run, at)?;
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(bytes as f64 / start.elapsed().as_secs_f64().max(1e-9) / 1e6)
}
