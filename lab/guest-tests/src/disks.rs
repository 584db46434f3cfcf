//! Writers of records, one on each CPU, until the machine is killed or the disks fail.
//!
//! ```text
//!   each CPU: 8 records to /dev/vda --> flush --> one record read back --> "DISK ack"
//!        ^    a file on /dev/vdb: written, synced, renamed; a log: added to, synced --> "DISK file" --+
//!        +--------------------------------------------------------------------------------------------+
//! ```
//! What is acknowledged goes to the virtio console, one line a write, and to the ordinary one if there is
//! none. From outside it is judged by [`tessera_guest_tests::records`]. Where there are two more disks, [`fio`]
//! works beside the writers. The power button ends the machine (crate::button).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};
use tessera_guest_tests::records::{BATCH, RECORD_BYTES, REGION_BYTES, SLOTS, Writer, slot};

use crate::affinity::Topology;
use crate::{button, fio, report, sys};

const DRIVER: &str = "/drivers/virtio_blk.ko";
/// The first disk.
pub(crate) const RAW: &str = "/dev/vda";
const FOLDER: &str = "/disk";
const CONSOLE: &str = "/dev/hvc0";

/// Writes until a disk fails on each CPU; each failure is told by its own line. Writers print `talk` bytes more
/// with each batch.
///
/// # Errors
/// No disks, or no file system on the second.
pub(crate) fn run(run: u64, talk: usize, topology: &Topology) -> Result<()> {
    load_driver()?;
    fs::create_dir_all(FOLDER).with_context(|| format!("make {FOLDER}"))?;
    sys::mount_disk(c"/dev/vdb", c"ext4", c"/disk").context("mount /dev/vdb")?;
    let checker = fio::start(topology)?;
    button::heed()?;
    report::line(&format!("GUEST disks run={run}"));
    if let Some(mut child) = checker {
        thread::spawn(move || {
            let end = child.wait().map_or_else(|error| error.to_string(), |end| end.to_string());
            report::line(&format!("DISK error fio ended with {end}"));
        });
    }
    let threads: Vec<_> = (0..)
        .zip(&topology.cpus)
        .map(|(number, cpu)| {
            let (writer, cpu) = (Writer { run, number }, cpu.id);
            thread::spawn(move || {
                let result =
                    sys::pin_to(cpu).context("pin a writer").and_then(|()| write(writer, talk));
                if let Err(error) = result {
                    report::line(&format!("DISK error {number} {error:#}"));
                }
            })
        })
        .collect();
    for thread in threads {
        drop(thread.join());
    }
    Ok(())
}

/// Has the kernel know disks.
///
/// # Errors
/// It does not take their driver.
pub(crate) fn load_driver() -> Result<()> {
    let driver = File::open(DRIVER).with_context(|| format!("open {DRIVER}"))?;
    sys::load_module(driver.as_raw_fd()).context("load the driver of disks")
}

/// A writer's places on the raw disk, and its files.
struct Places {
    raw: File,
    /// Reads what is on the disk, and not what the guest's kernel remembers.
    direct: File,
    log: File,
    folder: PathBuf,
    console: File,
}

impl Places {
    fn open(writer: Writer) -> Result<Self> {
        let folder = Path::new(FOLDER).join(format!("run-{}-{}", writer.run, writer.number));
        fs::create_dir_all(&folder).context("make the writer's folder")?;
        let raw = OpenOptions::new().write(true).open(RAW).context("open the raw disk")?;
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(RAW);
        let log = OpenOptions::new().create(true).append(true).open(folder.join("log"));
        let ordinary = || OpenOptions::new().write(true).open("/dev/console");
        let console = OpenOptions::new().write(true).open(CONSOLE).or_else(|_| ordinary());
        Ok(Self {
            raw,
            direct: direct.context("open the raw disk for reading")?,
            log: log.context("open the log")?,
            folder,
            console: console.context("open a console")?,
        })
    }

    /// Tells in one write, so that lines of two writers do not mix.
    fn tell(&mut self, text: &str) -> Result<()> {
        self.console.write_all(format!("{text}\n").as_bytes()).context("tell the console")
    }
}

fn write(writer: Writer, talk: usize) -> Result<()> {
    let mut places = Places::open(writer)?;
    let base = writer.number * REGION_BYTES as u64;
    let at = |number| base + (slot(number) * RECORD_BYTES) as u64;
    for batch in 0_u64.. {
        let first = batch * BATCH;
        for number in first..first + BATCH {
            let bytes = writer.record(number);
            places.raw.write_all_at(&bytes, at(number)).context("write a record")?;
        }
        places.raw.sync_data().context("flush the raw disk")?;
        // One that is old enough to be nobody's cache line, new enough to be there.
        let number = first.saturating_sub(SLOTS / 2) + batch % BATCH;
        let seen = read_direct(&places.direct, at(number)).context("read a record")?;
        let there = writer.number_of(&seen);
        ensure!(there == Some(number), "wrong data: {there:?} stands where record {number} was");
        places.tell(&format!("DISK ack {} {}", writer.number, first + BATCH - 1))?;
        if talk > 0 {
            report::line(&format!("DISK talk {}", "-".repeat(talk)));
        }
        change_files(&mut places, &writer.record(batch)).context("files")?;
        places.tell(&format!("DISK file {} {batch}", writer.number))?;
    }
    Ok(())
}

/// Adds to the log, and replaces a file as programs do that want the old or the new.
fn change_files(places: &mut Places, record: &[u8]) -> io::Result<()> {
    places.log.write_all(record)?;
    places.log.sync_data()?;
    let (next, current) = (places.folder.join("next"), places.folder.join("current"));
    let mut file = File::create(&next)?;
    file.write_all(record)?;
    file.sync_all()?;
    drop(file);
    fs::rename(next, current)?;
    File::open(&places.folder)?.sync_all()
}

/// Reads a record around the cache, from a file that was opened so.
pub(crate) fn read_direct(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut memory = vec![0; 2 * RECORD_BYTES];
    let bytes = aligned(&mut memory);
    file.read_exact_at(bytes, at)?;
    Ok(bytes.to_vec())
}

/// Writes a record around the cache.
pub(crate) fn write_direct(file: &File, at: u64, record: &[u8]) -> io::Result<()> {
    let mut memory = vec![0; 2 * RECORD_BYTES];
    let bytes = aligned(&mut memory);
    bytes.copy_from_slice(record);
    file.write_all_at(bytes, at)
}

/// A record's place in memory of two. The kernel wants it aligned as the disk's blocks are.
fn aligned(memory: &mut [u8]) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(RECORD_BYTES);
    &mut memory[start..start + RECORD_BYTES]
}
