//! What a checkpoint says of a disk.

use super::super::{ImageFormat, ImageOptions};
use super::{beside, is_name};
use crate::back_end::sample::{PLACES_MAX, Place, SampleError, sample};
use crate::back_end::{Disk, SECTOR_BYTES};
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

/// How the state of a disk is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// The file that was the image; an overlay over it is the image.
    Overlay,
    /// A file that shares its blocks.
    Clone,
    /// Nobody writes the image: it is its own state.
    Unchanged,
    /// It is not kept. After a restore the disk is of another moment than the memory.
    Nothing,
    /// The image itself, as a VM has left it that ended with its checkpoint. A VM goes on from it once: then it is another one.
    Left,
}

/// What is in a disk, as far as one looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Size of the disk in bytes.
    pub bytes: u64,
    /// Where one looks.
    pub places: Vec<Place>,
    /// What is there ([`crate::back_end::sample`]).
    pub sample: [u8; 32],
}

impl Contents {
    /// What is in a disk at places all over it, and where was written last.
    ///
    /// # Errors
    /// It cannot be read, or not within this time.
    pub fn of(disk: &dyn Disk, written: &[Place], within: Duration) -> Result<Self, SampleError> {
        let mut places = Place::spread(&disk.shape());
        places.extend(written);
        let sample = sample(disk, &places, within)?;
        Ok(Self { bytes: disk.shape().bytes(), places, sample })
    }

    /// The state that is in this file.
    pub(super) fn state(
        &self,
        options: &ImageOptions,
        how: How,
        file: Option<String>,
        about: &Metadata,
    ) -> DiskState {
        let Self { bytes, places, sample } = self.clone();
        DiskState {
            // Who deletes the checkpoint is in another folder.
            path: absolute(&options.path).unwrap_or_else(|_| options.path.clone()),
            format: options.format,
            how,
            file,
            bytes,
            file_bytes: about.len(),
            inode: about.ino(),
            modified_ns: modified_ns(about),
            mode: about.mode() & 0o7777,
            places,
            sample,
        }
    }
}

/// When a file was written last.
pub(super) fn modified_ns(about: &Metadata) -> i64 {
    about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec())
}

/// The state of a disk in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskState {
    /// The image on its host, from the root on.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// How the state is kept.
    pub how: How,
    /// Name of the file with the state, beside the image.
    pub file: Option<String>,
    /// Size of the disk in bytes.
    pub bytes: u64,
    /// Length of the file with the state.
    pub file_bytes: u64,
    /// Its number; a copy has another.
    pub inode: u64,
    /// When it was written last: nanoseconds since 1970.
    pub modified_ns: i64,
    /// Rights of the image.
    pub mode: u32,
    /// Where one has looked.
    pub places: Vec<Place>,
    /// What was there.
    pub sample: [u8; 32],
}

impl DiskState {
    /// The file with the state of the image that is at this path now.
    #[must_use]
    pub fn file_beside(&self, path: &Path) -> PathBuf {
        self.file.as_ref().map_or_else(|| path.to_owned(), |name| path.with_file_name(name))
    }

    /// The name under which it was frozen, if it was.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        let image = self.path.file_name()?.to_str()?;
        self.file.as_deref()?.strip_prefix(image)?.strip_prefix('.')
    }
}

impl SavedState for DiskState {
    const NAME: &'static str = "disk of a checkpoint";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 16 << 10;

    fn check(&self) -> Result<(), Invalid> {
        let sized = self.bytes > 0 && self.bytes.is_multiple_of(SECTOR_BYTES);
        Invalid::unless(sized, "bytes", "a size that no disk has")?;
        Invalid::unless(self.path.file_name().is_some(), "path", "no file")?;
        let kept = matches!(self.how, How::Overlay | How::Clone);
        Invalid::unless(kept == self.file.is_some(), "file", "not as the state is kept")?;
        // It goes into paths, and into the head of an image.
        let named = !kept || self.name().is_some_and(is_name);
        Invalid::unless(named, "file", "not the name of a state of this image")?;
        let fits = self.how != How::Overlay || self.format == ImageFormat::Qcow2;
        Invalid::unless(fits, "how", "only qcow2 has overlays")?;
        Invalid::unless(self.mode <= 0o7777, "mode", "there are no such rights")?;
        Invalid::unless(self.places.len() <= PLACES_MAX, "places", "too many")
    }
}

/// The name of what a generation has abandoned, and others after it if that is taken.
pub(super) fn abandoned(path: &Path, generation: u64) -> impl Iterator<Item = PathBuf> {
    let path = path.to_owned();
    (1_u32..).map(move |count| match count {
        1 => beside(&path, &format!(".abandoned-{generation}")),
        count => beside(&path, &format!(".abandoned-{generation}-{count}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs};

    #[test]
    fn state_of_an_image_with_a_relative_name_is_found_from_other_folders() {
        let options = ImageOptions::new("./disk", ImageFormat::Qcow2);
        let contents = Contents { bytes: 512, places: Vec::new(), sample: [0; 32] };
        let about = fs::metadata("/proc/self/exe").unwrap();
        let state = contents.state(&options, How::Overlay, Some("disk.c1".into()), &about);
        assert_eq!(state.path, env::current_dir().unwrap().join("disk"));
        assert_eq!(state.name(), Some("c1"));
    }
}
