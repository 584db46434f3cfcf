//! fio outside of a guest: fills a disk with blocks that carry their own checksums, and checks, after the machine
//! whose fio overwrote them was killed, that each sector is one that some fio wrote there, and whole
//! (fio(1), "verify").

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

/// Bytes of the disk.
pub(crate) const BYTES: u64 = 16 << 20;
/// Seconds for one pass.
const LIMIT: &str = "300";

/// Fills a file.
pub(crate) fn fill(path: &Path) -> Result<()> {
    File::create(path)
        .and_then(|file| file.set_len(BYTES))
        .with_context(|| format!("make {}", path.display()))?;
    fio(path, &["--rw=write", "--do_verify=0"])
}

/// Checks every sector. Gives a short digest of them all: another one says that something was written.
pub(crate) fn check(disk: &Path) -> Result<String> {
    fio(disk, &["--rw=read", "--verify_fatal=1"]).context("what fio wrote is not there")?;
    let mut bytes = Vec::new();
    File::open(disk)
        .and_then(|file| file.take(BYTES).read_to_end(&mut bytes))
        .with_context(|| format!("read {}", disk.display()))?;
    ensure!(bytes.len() as u64 == BYTES, "{} has {} bytes", disk.display(), bytes.len());
    Ok(Sha256::digest(&bytes)[..6].iter().map(|byte| format!("{byte:02x}")).collect())
}

fn fio(path: &Path, direction: &[&str]) -> Result<()> {
    let output = Process::new("timeout")
        .args(["-k", "5", LIMIT, "fio", "--name=verify", "--bs=4k", "--ioengine=psync"])
        .args(["--verify=crc32c", "--verify_interval=512", "--eta=never", "--disk_util=0"])
        .args(["--allow_file_create=0", &format!("--size={BYTES}")])
        .arg(format!("--filename={}", path.display()))
        .args(direction)
        // A lab's host may say nothing.
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        // Files that fio wants to leave behind after a failure.
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null())
        .output()
        .context("start fio (package fio)")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().replace('\n', "; ");
    ensure!(output.status.success(), "fio ended with {}: {text}", output.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn one_wrong_bit_or_a_block_in_the_wrong_place_is_found() {
        let path = std::env::temp_dir().join(format!("tessera-verify-{}", std::process::id()));
        fill(&path).unwrap();
        let whole = check(&path).unwrap();
        let disk = File::options().read(true).write(true).open(&path).unwrap();
        let mut sector = [0; 512];
        disk.read_exact_at(&mut sector, 512 * 9).unwrap();
        let right = sector;
        sector[300] ^= 1;
        disk.write_all_at(&sector, 512 * 9).unwrap();
        assert!(check(&path).is_err());
        disk.read_exact_at(&mut sector, 512 * 10).unwrap();
        disk.write_all_at(&sector, 512 * 9).unwrap();
        assert!(check(&path).is_err());
        disk.write_all_at(&right, 512 * 9).unwrap();
        assert_eq!(check(&path).unwrap(), whole);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn block_that_fio_writes_anew_changes_the_digest_and_a_shorter_disk_is_refused() {
        let path = std::env::temp_dir().join(format!("tessera-anew-{}", std::process::id()));
        fill(&path).unwrap();
        let before = check(&path).unwrap();
        fio(&path, &["--rw=write", "--do_verify=0", "--randseed=7", "--io_size=64k"]).unwrap();
        assert_ne!(check(&path).unwrap(), before);
        File::options().write(true).open(&path).unwrap().set_len(BYTES / 2).unwrap();
        assert!(check(&path).is_err());
        // fio may have removed what is too short for it.
        drop(std::fs::remove_file(&path));
    }
}
