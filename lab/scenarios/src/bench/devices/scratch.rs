//! Scratch disks of an experiment.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lab::{Disk, HostNumber};

/// Files that go when the experiment is over.
#[derive(Debug)]
pub(crate) struct Scratch(Vec<PathBuf>);

impl Scratch {
    /// Sparse files; what is written to them stays in the lab.
    pub(crate) fn make(name: &str, sizes: &[u64], folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let mut scratch = Self(Vec::new());
        for (number, bytes) in sizes.iter().enumerate() {
            let path = folder.join(format!("bench-{name}-{number}.raw"));
            scratch.0.push(path.clone());
            File::create(&path)
                .and_then(|file| file.set_len(*bytes))
                .with_context(|| format!("make {}", path.display()))?;
        }
        Ok(scratch)
    }

    /// As disks of a host, with a limit of MB/s for each.
    pub(crate) fn disks(&self, host: HostNumber, speed: Option<u32>) -> impl Iterator<Item = Disk> {
        self.0.iter().map(move |path| Disk { host, image: path.clone(), keep: false, speed })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            // It takes no space worth a failure.
            drop(fs::remove_file(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_there_until_the_end() {
        let folder = std::env::temp_dir().join(format!("tessera-scratch-{}", std::process::id()));
        let scratch = Scratch::make("x", &[4096, 8192], &folder).unwrap();
        let host = HostNumber::new(1).unwrap();
        let disks: Vec<_> = scratch.disks(host, Some(4)).collect();

        let sizes = disks.iter().map(|disk| fs::metadata(&disk.image).unwrap().len());
        assert_eq!(sizes.collect::<Vec<_>>(), [4096, 8192]);
        drop(scratch);
        assert!(disks.iter().all(|disk| !disk.image.exists()));
        fs::remove_dir(folder).unwrap();
    }
}
