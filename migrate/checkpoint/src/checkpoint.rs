//! A checkpoint as a whole: how it is made one, and how it is opened.

use crate::cache::Cache;
use crate::chain::{Layer, bases, open_parts, read_manifest};
use crate::contents::Contents;
use crate::digest::Digest;
use crate::error::CheckpointError;
use crate::files::{self, MANIFEST, MANIFEST_TEMPORARY};
use crate::frames::FrameSet;
use crate::key::Key;
use crate::manifest::encode_manifest;
use crate::part::Part;
use crate::points::{NoPoints, Point, Points};
use migrate::SavedState;
use std::fs::{self, File};
use std::io::Write;
use std::iter::once;
use std::path::Path;
use std::sync::Mutex;
use wire::SliceId;

/// A checkpoint with its bases, open. Threads may share it.
#[derive(Debug)]
pub struct Checkpoint {
    /// This one first, then its bases, the full one last.
    pub(crate) layers: Vec<Layer>,
    pub(crate) cache: Mutex<Cache>,
    authenticity: Authenticity,
}

/// Who can have written the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authenticity {
    /// Anybody: it was written without a secret.
    Nobody,
    /// It says that it was somebody who knows the VM's secret, and nobody has checked that: no key was given.
    NotChecked,
    /// Somebody who knows the VM's secret.
    Checked,
}

/// How much there is in one checkpoint of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerStatistics {
    /// The name of its folder.
    pub name: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes of its pages, as they are stored.
    pub stored: u64,
    /// Pages with contents, in all parts.
    pub pages: u64,
    /// Pages known to be zero, in all parts.
    pub zero_pages: u64,
    /// Frames that more than one part has.
    pub shared: u64,
}

/// How much there is in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The checkpoint, and each of its bases.
    pub layers: Vec<LayerStatistics>,
    /// Frames of the VM.
    pub frames: u64,
}

/// What slices have written under one name.
pub type Sections = Vec<(SliceId, Vec<u8>)>;

impl Checkpoint {
    /// Makes a folder with parts a checkpoint: compares the parts with what the contents say of them, and writes the manifest.
    /// With a key the manifest is authenticated, and the bases must be.
    ///
    /// # Errors
    /// There is a manifest already, the contents cannot be, parts are missing or others, the base is missing or another, also one
    /// that is deleted meanwhile, or the manifest cannot be written. Then the folder is no checkpoint.
    pub fn commit(
        folder: &Path,
        contents: &Contents,
        key: Option<&Key>,
    ) -> Result<Digest, CheckpointError> {
        Self::commit_with_points(folder, contents, key, &NoPoints)
    }

    /// [`Self::commit`], with somebody who hears of each step.
    ///
    /// # Errors
    /// As those of [`Self::commit`].
    pub fn commit_with_points(
        folder: &Path,
        contents: &Contents,
        key: Option<&Key>,
        points: &dyn Points,
    ) -> Result<Digest, CheckpointError> {
        contents.check()?;
        let folder = &files::real(folder)?;
        let path = folder.join(MANIFEST);
        if path.exists() {
            return Err(CheckpointError::Exists { folder: folder.clone() });
        }
        open_parts(folder, contents)?;
        bases(folder, contents, key)?;
        let (bytes, digest) = encode_manifest(contents, key)
            .map_err(|source| CheckpointError::Manifest { path: path.clone(), source })?;
        let temporary = folder.join(MANIFEST_TEMPORARY);
        // Whoever creates this file is the only one who commits.
        let file = files::create(&temporary)?;
        let written = write_manifest(file, &bytes, &temporary, points).and_then(|()| {
            files::sync_folder(folder)?;
            fs::rename(&temporary, &path).map_err(CheckpointError::io("rename", &temporary))
        });
        if let Err(error) = written {
            // The next attempt creates it again; what cannot be removed is refused by it.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        points.reach(Point::Renamed);
        let synced =
            files::sync_folder(folder).and_then(|()| files::sync_folder(&files::parent(folder)));
        // Whoever deletes a base takes its manifest first and looks for increments then: one of the two sees the other.
        if let Err(error) = synced.and_then(|()| bases(folder, contents, key)) {
            // Whoever hears of an error removes the parts.
            let _ = fs::remove_file(&path);
            let _ = files::sync_folder(folder);
            return Err(error);
        }
        Ok(digest)
    }

    /// Opens a checkpoint and all its bases. With a key their manifests must be authenticated by it.
    ///
    /// # Errors
    /// It is unfinished, damaged, of another version or not authentic, or a part or a base is missing or another one.
    pub fn open(folder: &Path, key: Option<&Key>) -> Result<Self, CheckpointError> {
        let folder = files::real(folder)?;
        let (manifest, bytes) = read_manifest(&folder, key)?;
        let below = bases(&folder, &manifest.contents, key)?;
        let authenticity = match (manifest.authenticated, key) {
            (false, _) => Authenticity::Nobody,
            (true, None) => Authenticity::NotChecked,
            (true, Some(_)) => Authenticity::Checked,
        };
        let all = once((folder, manifest, bytes)).chain(below);
        let layers = all.map(|(folder, manifest, manifest_bytes)| {
            let parts = open_parts(&folder, &manifest.contents)?;
            Ok(Layer { folder, manifest, manifest_bytes, parts })
        });
        Ok(Self::of_layers(layers.collect::<Result<_, CheckpointError>>()?, authenticity))
    }

    /// What a checkpoint says of itself, and what each of its slices has written under a name. Its bases need not be there. With a key its manifest
    /// must be authenticated by it.
    ///
    /// # Errors
    /// It is unfinished, damaged, of another version or not authentic, or a part is missing, another one, or has no such section.
    pub fn own_sections(
        folder: &Path,
        key: Option<&Key>,
        name: &str,
    ) -> Result<(Contents, Sections), CheckpointError> {
        let folder = files::real(folder)?;
        let (manifest, _) = read_manifest(&folder, key)?;
        let parts = open_parts(&folder, &manifest.contents)?;
        let section = |part: &Part| Ok((part.head().slice, part.section(name)?));
        let sections = parts.iter().map(section).collect::<Result<_, CheckpointError>>()?;
        Ok((manifest.contents, sections))
    }

    pub(crate) fn of_layers(layers: Vec<Layer>, authenticity: Authenticity) -> Self {
        let parts = layers.iter().map(|layer| layer.parts.len()).sum();
        Self { layers, cache: Mutex::new(Cache::new(parts)), authenticity }
    }

    /// What it is of, and what it consists of.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.layers[0].manifest.contents
    }

    /// What names it, for an increment of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.layers[0].manifest.digest
    }

    /// Who can have written it.
    #[must_use]
    pub fn authenticity(&self) -> Authenticity {
        self.authenticity
    }

    /// Names and lengths of a slice's sections.
    ///
    /// # Errors
    /// The slice has no part.
    pub fn sections(&self, slice: SliceId) -> Result<Vec<(String, u64)>, CheckpointError> {
        let part = self.part(slice, "")?;
        Ok(part.sections().map(|(name, length)| (name.to_owned(), length)).collect())
    }

    /// The bytes that a slice has written under a name. Bases have other sections, which nobody sees.
    ///
    /// # Errors
    /// There is no such section, or it is damaged or cannot be read.
    pub fn section(&self, slice: SliceId, name: &str) -> Result<Vec<u8>, CheckpointError> {
        self.part(slice, name)?.section(name)
    }

    fn part(&self, slice: SliceId, section: &str) -> Result<&Part, CheckpointError> {
        let part = self.layers[0].parts.iter().find(|part| part.head().slice == slice);
        part.ok_or_else(|| CheckpointError::NoSection { slice, name: section.to_owned() })
    }

    /// Counts what there is.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let frames = self.contents().frames.iter().map(|range| range.end - range.start).sum();
        Statistics { layers: self.layers.iter().map(Layer::statistics).collect(), frames }
    }
}

impl Statistics {
    /// Bytes of the checkpoint and all its bases.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }
}

impl Layer {
    pub(crate) fn name(&self) -> String {
        files::name_of(&self.folder)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.manifest_bytes + self.parts.iter().map(Part::length).sum::<u64>()
    }

    fn statistics(&self) -> LayerStatistics {
        let chunks = self.parts.iter().flat_map(|part| &part.index.chunks);
        let (pages, zeros) = self.parts.iter().map(Part::pages).unzip::<_, _, Vec<_>, Vec<_>>();
        LayerStatistics {
            name: self.name(),
            bytes: self.bytes(),
            stored: chunks.map(|chunk| u64::from(chunk.length)).sum(),
            pages: pages.into_iter().sum(),
            zero_pages: zeros.into_iter().sum(),
            shared: self.shared(),
        }
    }

    /// Frames that more than one part has.
    fn shared(&self) -> u64 {
        let mut shared = FrameSet::default();
        for (number, part) in self.parts.iter().enumerate() {
            for frames in part.index.frames() {
                for before in &self.parts[..number] {
                    before.index.each_common(&frames, &mut |common| shared.add(common));
                }
            }
        }
        shared.ranges().map(|range| range.end - range.start).sum()
    }
}

fn write_manifest(
    mut file: File,
    bytes: &[u8],
    path: &Path,
    points: &dyn Points,
) -> Result<(), CheckpointError> {
    file.write_all(bytes).map_err(CheckpointError::io("write", path))?;
    points.reach(Point::ManifestWritten);
    file.sync_all().map_err(CheckpointError::io("write to stable storage", path))?;
    points.reach(Point::ManifestSynced);
    Ok(())
}
