//! A disk beside memory: whatever the machine goes on from, both are of the same moment.
//!
//! ```text
//!   a block is read around the cache --> it is what memory says was written there last --> its next version is written --+
//!        ^                                               each 8th: flush                                                 |
//!        +---------------------------------------------------------------------------------------------------------------+
//! ```
//! A disk that is older or newer than memory, or that another life of the machine writes to as well, has a block that memory does not know.
//! It works beside the tests, from the first to the last.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use tessera_guest_tests::records::{RECORD_BYTES, Writer};

use crate::disks::{self, RAW};
use crate::sys;

/// Blocks, one record each.
const BLOCKS: u64 = 128;
/// Writes between two flushes.
const BATCH: u64 = 8;
/// Between two batches, so that the tests have the machine.
const REST: Duration = Duration::from_millis(50);
/// Steps through all blocks: it has no factor in common with their number.
const STEP: u64 = 37;

/// The writer at work.
pub(crate) struct Versions {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Versions {
    /// Begins.
    ///
    /// # Errors
    /// There is no disk.
    pub(crate) fn start() -> Result<Self> {
        disks::load_driver()?;
        let direct =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(RAW);
        let disk = direct.context("open the disk")?;
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        // Another one in each life that begins with a boot.
        let writer = Writer { run: sys::monotonic_ns(), number: 0 };
        let work = move || write(&disk, writer, &seen);
        let thread = thread::Builder::new().name("versions".into()).spawn(work);
        Ok(Self { over, thread: thread.context("start the writer of versions")? })
    }

    /// Ends, and reads everything once more; how often it has written.
    ///
    /// # Errors
    /// What is not as memory knows it.
    pub(crate) fn end(self) -> Result<String> {
        self.over.store(true, Ordering::SeqCst);
        let writes = self.thread.join().map_err(|_| anyhow!("the writer has panicked"))??;
        Ok(format!("blocks={BLOCKS} writes={writes}"))
    }
}

/// The number of the record that a block has in a version.
fn record(block: u64, version: u64) -> u64 {
    version * BLOCKS + block
}

fn at(block: u64) -> u64 {
    block * RECORD_BYTES as u64
}

fn write(disk: &File, writer: Writer, over: &AtomicBool) -> Result<u64> {
    let mut versions = Vec::new();
    for block in 0..BLOCKS {
        disks::write_direct(disk, at(block), &writer.record(record(block, 0))).context("begin")?;
        versions.push(0);
    }
    let mut writes = 0;
    while !over.load(Ordering::SeqCst) {
        let block = writes * STEP % BLOCKS;
        let version = &mut versions[usize::try_from(block)?];
        check(disk, writer, block, *version)?;
        *version += 1;
        let bytes = writer.record(record(block, *version));
        disks::write_direct(disk, at(block), &bytes).context("write a version")?;
        writes += 1;
        if writes % BATCH == 0 {
            disk.sync_data().context("flush the disk")?;
            thread::sleep(REST);
        }
    }
    for (block, version) in (0..).zip(&versions) {
        check(disk, writer, block, *version)?;
    }
    Ok(writes)
}

fn check(disk: &File, writer: Writer, block: u64, version: u64) -> Result<()> {
    let seen = disks::read_direct(disk, at(block)).context("read a version")?;
    let (there, wanted) = (writer.number_of(&seen), record(block, version));
    ensure!(
        there == Some(wanted),
        "block {block}: version {:?} is on the disk, and memory says {version}",
        there.map(|number| number / BLOCKS)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_comes_and_each_version_of_each_is_another_record() {
        let visited: std::collections::BTreeSet<_> =
            (0..BLOCKS).map(|turn| turn * STEP % BLOCKS).collect();
        assert_eq!(visited.len() as u64, BLOCKS);
        assert_ne!(record(0, 1), record(1, 0));
        assert_eq!(record(BLOCKS - 1, 0) + 1, record(0, 1));
    }
}
