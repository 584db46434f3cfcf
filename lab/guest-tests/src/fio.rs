//! fio from a system's disk: overwrites a disk at random with blocks that carry their own checksums, reads them
//! back soon after, and goes on until the machine is killed.
//!
//! ```text
//!   /dev/vdc, read-only, at /system          /dev/vdd
//!     chroot there ─> fio, a job on each CPU ─> 64 blocks written, flushed at each 16th ─> read and checked ─> ...
//! ```
//! This program has no libraries in its image and no place for fio's; a system that a guest boots from has fio.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::chroot;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::affinity::Topology;
use crate::sys;

/// The verb of the process that becomes fio.
pub(crate) const VERB: &str = "fio";
const SYSTEM: &str = "/dev/vdc";
const FOLDER: &str = "/system";
/// Half a minute of the guest's clock, which may be slower than the world's.
const POLLS: u32 = 1500;
const POLL: Duration = Duration::from_millis(20);

/// Starts fio when there is a disk with a system, and waits until it writes: it is large, and looks at clocks for
/// a while. The program is replaced in a process of its own, since this one has threads.
///
/// # Errors
/// The disk has no file system, or fio does not start.
pub(crate) fn start(topology: &Topology) -> Result<Option<Child>> {
    if !Path::new(SYSTEM).exists() {
        return Ok(None);
    }
    fs::create_dir_all(FOLDER).with_context(|| format!("make {FOLDER}"))?;
    sys::mount_read_only(c"/dev/vdc", c"ext4", c"/system").context("mount /dev/vdc")?;
    sys::mount(c"devtmpfs", c"/system/dev").context("mount the system's /dev")?;
    sys::mount(c"tmpfs", c"/system/tmp").context("mount the system's /tmp")?;
    let cpus: Vec<_> = topology.cpus.iter().map(|cpu| cpu.id.to_string()).collect();
    let mut child = Command::new("/proc/self/exe")
        .args([VERB, &cpus.join(",")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("start the process for fio")?;
    for _ in 0..POLLS {
        if let Some(end) = child.try_wait().context("wait for fio")? {
            bail!("fio ended with {end}");
        }
        if written(child.id()) > 0 {
            return Ok(Some(child));
        }
        thread::sleep(POLL);
    }
    bail!("fio has written nothing yet");
}

/// Bytes that a process has sent to disks (proc(5), `/proc/PID/io`).
fn written(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Becomes fio with a job on each of the CPUs. Returns only on failure.
pub(crate) fn become_fio(cpus: &str) -> io::Error {
    if let Err(error) = chroot(FOLDER).and_then(|()| env::set_current_dir("/tmp")) {
        return error;
    }
    let jobs = cpus.split(',').count();
    let share = 100 / jobs.max(1);
    let settings = [
        "--name=verify --filename=/dev/vdd --allow_file_create=0 --rw=randwrite --bs=4k --direct=1",
        "--ioengine=psync --thread --randrepeat=0 --allrandrepeat=0 --fdatasync=16",
        // A checksum to each sector: a block of several may be cut by a kill.
        "--verify=crc32c --verify_interval=512 --verify_backlog=64 --verify_fatal=1",
        "--time_based --runtime=1d --eta=never --disk_util=0 --cpus_allowed_policy=split",
    ];
    let own = format!(
        "--numjobs={jobs} --size={share}% --offset_increment={share}% --cpus_allowed={cpus}"
    );
    let words = settings.iter().flat_map(|line| line.split(' ')).chain(own.split(' '));
    sys::exec(c"/usr/bin/fio", &["fio"].into_iter().chain(words).collect::<Vec<_>>())
}
