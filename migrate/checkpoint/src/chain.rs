//! A checkpoint and its bases: manifests and parts that belong together.

use crate::contents::{Base, Contents, PartSummary};
use crate::digest::Digest;
use crate::error::CheckpointError;
use crate::files;
use crate::key::Key;
use crate::layout::{CHAIN_MAX, PartHead, wide};
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, decode_manifest};
use crate::part::Part;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// One checkpoint of a chain, opened.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) manifest_bytes: u64,
    /// In the order of their slices.
    pub(crate) parts: Vec<Part>,
}

/// The manifest in a folder, and its length.
pub(crate) fn read_manifest(
    folder: &Path,
    key: Option<&Key>,
) -> Result<(Manifest, u64), CheckpointError> {
    let path = folder.join(files::MANIFEST);
    let there = fs::symlink_metadata(&path);
    if there.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Err(CheckpointError::Unfinished { folder: folder.to_path_buf() });
    }
    let file = files::open(&path)?;
    let most = wide(MANIFEST_BYTES_MAX);
    let mut bytes = Vec::new();
    // One more, which shows that it is too long.
    file.take(most + 1).read_to_end(&mut bytes).map_err(CheckpointError::io("read", &path))?;
    let manifest = decode_manifest(&bytes, &path, key)?;
    Ok((manifest, wide(bytes.len())))
}

/// The parts that contents list, each compared with what they say of it.
pub(crate) fn open_parts(folder: &Path, contents: &Contents) -> Result<Vec<Part>, CheckpointError> {
    let open = |summary: &PartSummary| {
        let path = folder.join(&summary.file);
        let part = Part::open(Box::new(files::open(&path)?), &path)?;
        compare_part(&part, summary, contents)
            .map_err(|why| CheckpointError::OtherPart { path, why })?;
        Ok(part)
    };
    contents.parts.iter().map(open).collect()
}

/// Whether a part is the one that contents are about.
pub(crate) fn compare_part(
    part: &Part,
    summary: &PartSummary,
    contents: &Contents,
) -> Result<(), String> {
    let Contents { vm, generation, cut, .. } = *contents;
    let wanted = PartHead { vm, generation, cut, slice: summary.slice };
    if *part.head() != wanted {
        return Err(difference(part.head(), &wanted));
    }
    if part.length() != summary.bytes {
        return Err(format!("{} bytes instead of {}", part.length(), summary.bytes));
    }
    if part.digest() != summary.digest {
        return Err("another digest of its index".into());
    }
    if part.pages() != (summary.pages, summary.zero_pages) {
        return Err("another number of pages".into());
    }
    match part.index.frames().find(|frames| !contents.has(frames)) {
        Some(frames) => Err(format!("frame {:#x} is no memory of the VM", frames.start)),
        None => Ok(()),
    }
}

fn difference(found: &PartHead, wanted: &PartHead) -> String {
    if found.vm != wanted.vm {
        return "it is of another VM".into();
    }
    if found.generation != wanted.generation {
        return format!(
            "it is of generation {} instead of {}",
            found.generation, wanted.generation
        );
    }
    if found.cut != wanted.cut {
        return format!("it is of cut {} instead of {}", found.cut, wanted.cut);
    }
    format!("it is of {} instead of {}", found.slice, wanted.slice)
}

/// The manifests of all bases of these contents, from the nearest on, each compared with its increment.
pub(crate) fn bases(
    folder: &Path,
    contents: &Contents,
    key: Option<&Key>,
) -> Result<Vec<(PathBuf, Manifest, u64)>, CheckpointError> {
    let parent = files::parent(folder);
    let mut chain: Vec<(PathBuf, Manifest, u64)> = Vec::new();
    loop {
        let (of, above) = match chain.last() {
            Some((folder, manifest, _)) => (folder.clone(), &manifest.contents),
            None => (folder.to_path_buf(), contents),
        };
        let Some(Base { folder: name, digest }) = &above.base else { return Ok(chain) };
        let base = parent.join(name);
        let refuse =
            |why: String| Err(CheckpointError::Base { of: of.clone(), base: base.clone(), why });
        if chain.len() + 1 == CHAIN_MAX {
            return refuse(format!(
                "more than {CHAIN_MAX} checkpoints in a chain: write a full one, or make one of its base (tessera checkpoint export)"
            ));
        }
        let found = read_manifest(&base, key);
        let (manifest, bytes) = match found {
            Ok(found) => found,
            Err(error) if error.is_refused() => return Err(error),
            Err(error) => return refuse(error.with_causes()),
        };
        if let Err(why) = compare(above, &manifest, *digest) {
            return refuse(why.into());
        }
        chain.push((base, manifest, bytes));
    }
}

/// Whether this is the base that an increment is of.
fn compare(above: &Contents, base: &Manifest, digest: Digest) -> Result<(), &'static str> {
    let below = &base.contents;
    if base.digest != digest {
        return Err("it is not the one that the increment is of");
    }
    if below.vm != above.vm {
        return Err("it is of another VM");
    }
    if (below.generation, below.cut) >= (above.generation, above.cut) {
        return Err("it is not older than the increment");
    }
    if below.frames != above.frames {
        return Err("its VM has other memory");
    }
    Ok(())
}
