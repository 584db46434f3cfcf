//! Checkpoints of a VM over the hosts of a lab: all its slices write them into one folder, which the hosts share.
//!
//! ```text
//!   tessera vm checkpoint ─┬─ done ─────> Written ─> VmOptions::restore
//!                          └─ anything else: what was said; is_whole tells what is there
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Command, ExitStatus, HostNumber, Lab, Line};
use serde::Deserialize;

use super::options::VmOptions;
use super::relocate::WHOLE_LIMIT;
use super::scenario::{Scenario, text};

/// The folder of checkpoints in the one that hosts share.
const FOLDER: &str = "checkpoints";
/// The folder of a disk in the one that hosts share (with its states and its record), and its name.
const DISK_FOLDER: &str = "disk";
const DISK: &str = "disk.qcow2";
const DISK_BYTES: u64 = 16 << 20;
/// The file that makes a folder a checkpoint.
const MANIFEST: &str = "manifest";
/// How `tessera bootstrap` ends that does not start its VM.
const REFUSED: ExitStatus = ExitStatus::Code(2);
/// For a bootstrap that is to refuse a checkpoint.
const REFUSE_LIMIT: Duration = Duration::from_secs(120);

/// A checkpoint that was written, as its coordinator tells it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub(crate) struct Written {
    pub(crate) milliseconds: f64,
    /// How long the guest stood still.
    pub(crate) paused_milliseconds: f64,
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
}

/// The folder of checkpoints, as this machine sees it.
pub(crate) fn folder(lab: &Lab) -> Result<PathBuf> {
    Ok(lab.host(HostNumber::new(1)?)?.shared()?.join(FOLDER))
}

/// The path of a checkpoint as all hosts see it.
pub(crate) fn inside(lab: &Lab, name: &str) -> Result<String> {
    text(&lab.host(HostNumber::new(1)?)?.shared_inside()?.join(FOLDER).join(name))
}

/// Makes the folder of checkpoints, with nothing in it.
pub(crate) fn prepare(lab: &Lab) -> Result<()> {
    clear(lab)?;
    let folder = folder(lab)?;
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))
}

/// Removes all checkpoints.
pub(crate) fn clear(lab: &Lab) -> Result<()> {
    let folder = folder(lab)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}

/// Makes a disk that all hosts see out of an image; how `--disk` takes it.
pub(crate) fn make_disk(lab: &Lab, image: &Path) -> Result<String> {
    // What an earlier run has left: the disk, its states and its record.
    clear_disk(lab)?;
    let host = lab.host(HostNumber::new(1)?)?;
    let folder = host.shared()?.join(DISK_FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    lab::convert_to_qcow2(image, &folder.join(DISK))?;
    let inside = host.shared_inside()?.join(DISK_FOLDER).join(DISK);
    Ok(format!("{},format=qcow2", inside.display()))
}

/// The same with nothing on it.
pub(crate) fn make_empty_disk(lab: &Lab) -> Result<String> {
    let empty = folder(lab)?.join("empty.raw");
    let made = File::create(&empty).and_then(|file| file.set_len(DISK_BYTES));
    made.with_context(|| format!("make {}", empty.display()))?;
    let disk = make_disk(lab, &empty)?;
    fs::remove_file(&empty).with_context(|| format!("remove {}", empty.display()))?;
    Ok(disk)
}

/// Removes it, and all that lies beside it.
pub(crate) fn clear_disk(lab: &Lab) -> Result<()> {
    let folder = lab.host(HostNumber::new(1)?)?.shared()?.join(DISK_FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}

/// Removes one, whole or not.
pub(crate) fn remove(lab: &Lab, name: &str) -> Result<()> {
    let path = folder(lab)?.join(name);
    fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))
}

/// Removes all whose names do not begin so: no increment is of one of them.
pub(crate) fn keep_only(lab: &Lab, prefix: &str) -> Result<()> {
    let folder = folder(lab)?;
    let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name != prefix && !name.starts_with(&format!("{prefix}.")) {
            remove(lab, &name)?;
        }
    }
    Ok(())
}

/// Whether anything of a checkpoint is there.
pub(crate) fn is_begun(lab: &Lab, name: &str) -> Result<bool> {
    Ok(folder(lab)?.join(name).exists())
}

/// Whether a checkpoint has a manifest.
pub(crate) fn is_whole(lab: &Lab, name: &str) -> Result<bool> {
    Ok(folder(lab)?.join(name).join(MANIFEST).exists())
}

impl VmOptions {
    /// Has all companions write their parts of checkpoints into the folder that hosts share, and read them there.
    pub(crate) fn keep_checkpoints(&mut self, lab: &Lab) -> Result<()> {
        let parent = inside(lab, "")?.trim_end_matches('/').to_owned();
        self.companion.extend(["--checkpoints".to_owned(), parent]);
        Ok(())
    }
}

impl Scenario<'_> {
    /// `tessera vm checkpoint` with these options; what was said if it was not written.
    pub(crate) fn checkpoint(
        &self,
        name: &str,
        options: &[&str],
    ) -> Result<Result<Written, String>> {
        let path = inside(self.lab, name)?;
        let words = [&["checkpoint", &path], options].concat();
        let (is_done, said) = self.tell_vm(&words, WHOLE_LIMIT)?;
        if !is_done {
            return Ok(Err(said));
        }
        Ok(Ok(serde_json::from_str(&said).context("read what it says of the checkpoint")?))
    }

    /// A bootstrap that is to go on from what is no checkpoint says why not.
    pub(crate) fn refuses(&self, name: &str) -> Result<String> {
        let first = self.lab.host(HostNumber::new(1)?)?;
        let key = super::scenario::inside(&first, "vm.key")?;
        let words =
            [&self.program()?, "bootstrap", "--restore", &inside(self.lab, name)?, "--secret-file"];
        let words = words.into_iter().chain([key.as_str()]);
        let (status, lines) = first.run(&Command::new(words), REFUSE_LIMIT)?;
        let said: Vec<_> = lines.iter().map(|Line { text, .. }| text.trim()).collect();
        let said = said.join(" ");
        ensure!(status == REFUSED, "a half-written checkpoint is not refused: {status}: {said}");
        Ok(said)
    }
}
