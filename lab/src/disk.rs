//! Disks of a lab's hosts: an image of this machine that a host may write to without changing it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::host_number::HostNumber;
use crate::{cache, packages};

const COPY_LIMIT: Duration = Duration::from_secs(600);
const OVERLAY_LIMIT: Duration = Duration::from_secs(60);
/// First bytes of a qcow2 image (QEMU, `docs/interop/qcow2.txt`).
const QCOW2: [u8; 4] = *b"QFI\xfb";

/// An image as a disk of a host. The image itself is never written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The host that has it.
    pub host: HostNumber,
    /// A raw or qcow2 image.
    pub image: PathBuf,
    /// Keep what is written, to be looked at: in the lab's folder, in the qcow2 file
    /// `host-N/disk-K.qcow2` over the image, or where hosts are namespaces in a copy of it.
    pub keep: bool,
    /// Most megabytes (10^6 bytes) that it reads and writes in a second, where hosts are machines: without a
    /// limit their disks are as fast as this machine's memory, and their network is not.
    pub speed: Option<u32>,
}

/// What a disk is written as.
const FORM: &str = "write a disk as HOST:IMAGE[,speed=MB][,keep]";

impl FromStr for Disk {
    type Err = anyhow::Error;

    /// `HOST:IMAGE[,speed=MB][,keep]`.
    fn from_str(text: &str) -> Result<Self> {
        let (host, rest) = text.split_once(':').context(FORM)?;
        let (rest, keep) = match rest.strip_suffix(",keep") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let (image, speed) = match rest.rsplit_once(",speed=") {
            Some((image, speed)) => (image, Some(speed.parse().context(FORM)?)),
            None => (rest, None),
        };
        ensure!(!image.is_empty() && speed != Some(0), FORM);
        let image = std::path::absolute(image).context("make the image's path absolute")?;
        Ok(Self { host: host.parse()?, image, keep, speed })
    }
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let speed = self.speed.map_or_else(String::new, |speed| format!(",speed={speed}"));
        let keep = if self.keep { ",keep" } else { "" };
        write!(f, "{}:{}{speed}{keep}", self.host, self.image.display())
    }
}

/// A file to open as a disk, and how.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    pub(crate) file: PathBuf,
    pub(crate) format: &'static str,
    /// Writes must not reach the file.
    pub(crate) snapshot: bool,
}

/// `raw` or `qcow2`, by the first bytes.
fn format(image: &Path) -> Result<&'static str> {
    let mut head = [0; 4];
    let mut file =
        File::open(image).with_context(|| format!("open the disk {}", image.display()))?;
    file.read_exact(&mut head).with_context(|| format!("{} is no disk image", image.display()))?;
    Ok(if head == QCOW2 { "qcow2" } else { "raw" })
}

/// What a machine opens for a disk, the `number`th of its host, from 0.
pub(crate) fn for_machine(disk: &Disk, folder: &Path, number: usize) -> Result<Backing> {
    if disk.keep {
        return overlay(disk, &folder.join(format!("disk-{number}.qcow2")));
    }
    Ok(Backing { file: disk.image.clone(), format: format(&disk.image)?, snapshot: true })
}

/// Makes an empty qcow2 file over the image of a disk.
fn overlay(disk: &Disk, file: &Path) -> Result<Backing> {
    let (image, over) = (packages::text(&disk.image)?, packages::text(file)?);
    let arguments = ["create", "-q", "-f", "qcow2", "-b", image, "-F", format(&disk.image)?, over];
    cache::run("qemu-img", &arguments, OVERLAY_LIMIT)
        .context("make an overlay; qemu-img is in the package qemu-utils")?;
    Ok(Backing { file: file.to_owned(), format: "qcow2", snapshot: false })
}

/// Makes a qcow2 file with what an image has.
///
/// # Errors
/// There is no `qemu-img` or no space.
pub fn convert_to_qcow2(image: &Path, file: &Path) -> Result<()> {
    let arguments = [
        "convert",
        "-q",
        "-f",
        format(image)?,
        "-O",
        "qcow2",
        packages::text(image)?,
        packages::text(file)?,
    ];
    cache::run("qemu-img", &arguments, COPY_LIMIT)
        .context("make a qcow2 file; qemu-img is in the package qemu-utils")
        .map(drop)
}

/// Makes a copy of the image of a disk, which takes no more space than the image.
pub(crate) fn copy(disk: &Disk, file: &Path) -> Result<()> {
    let (image, copy) = (packages::text(&disk.image)?, packages::text(file)?);
    let arguments = ["--sparse=always", "--reflink=auto", image, copy];
    cache::run("cp", &arguments, COPY_LIMIT).context("copy the image of a disk").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_is_read_and_written_alike() {
        for text in ["1:/a/disk.raw", "2:/a,b/disk.qcow2,keep", "1:/a,speed=4", "1:/a,speed=4,keep"]
        {
            assert_eq!(text.parse::<Disk>().unwrap().to_string(), text);
        }
        for text in ["/a/disk.raw", "0:/a", "1:", "1:,keep", "x:/a", "1:/a,speed=0", "1:/a,speed=x"]
        {
            assert!(text.parse::<Disk>().is_err(), "{text}");
        }
    }
}
