//! A chain of increments merged into one full checkpoint.
//!
//! ```text
//!   export:  open --make parts--> parts --is it still there?--> copied --manifest--> another checkpoint
//!   delete:  there --take the manifest away--> gone --are there parts of the same cut?--> what they need stays, or is given up
//! ```
//! One of the two sees the other.

use crate::chain::read_manifest;
use crate::checkpoint::{Authenticity, Checkpoint};
use crate::contents::Contents;
use crate::digest::Digest;
use crate::error::CheckpointError;
use crate::files;
use crate::folder::undo;
use crate::key::Key;
use crate::layout::FRAMES_END;
use crate::read::Kept;
use crate::writer::{Compression, PartWriter};
use std::path::Path;

/// Writes a checkpoint and its bases as one full checkpoint into a new folder: each page once, none that is zero, the sections
/// of the checkpoint itself. An authenticated one needs its key, by which the new one is authenticated too. Tells meanwhile how
/// many bytes of chunks it has looked at, of how many.
///
/// # Errors
/// The checkpoint cannot be opened or read, it is authenticated and no key was given, or the new one exists or cannot be
/// written. Then nothing is left of the new one.
pub fn export(
    folder: &Path,
    target: &Path,
    key: Option<&Key>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Digest, CheckpointError> {
    let source = Checkpoint::open(folder, key)?;
    if key.is_none() && source.authenticity() != Authenticity::Nobody {
        return Err(CheckpointError::NeedsSecret { path: folder.join(files::MANIFEST) });
    }
    // Whoever makes the folder is the only one who writes into it, and may delete it.
    files::make_new_folder(target)?;
    let done = copy(&source, target, key, progress);
    if done.is_err() {
        // What is left cannot be taken for a checkpoint, and the first error says more.
        let _ = undo(target);
    }
    done
}

pub(crate) fn copy(
    source: &Checkpoint,
    target: &Path,
    key: Option<&Key>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Digest, CheckpointError> {
    let chunks = source.parts().flat_map(|(_, _, part)| &part.index.chunks);
    let (mut done, all) = (0, chunks.map(|chunk| u64::from(chunk.length)).sum());
    let mut writers = Vec::new();
    for part in &source.layers[0].parts {
        let mut writer = PartWriter::create(target, part.head(), Compression::Zstd)?;
        for (name, _) in part.sections() {
            writer.section(name, &part.section(name)?)?;
        }
        writers.push(writer);
    }
    // Whoever has deleted it meanwhile has perhaps not seen our parts, and has given up what they need.
    let (still, _) = read_manifest(&source.layers[0].folder, None)?;
    if still.digest != source.digest() {
        return Err(CheckpointError::Unfinished { folder: source.layers[0].folder.clone() });
    }
    for (layer, part, of) in source.parts() {
        // Pages stay with their slice; those of one that has left since then go to the lowest.
        let slice = of.head().slice;
        let parts = &source.layers[0].parts;
        let writer = parts.iter().position(|part| part.head().slice == slice);
        let writer = &mut writers[writer.unwrap_or(0)];
        for (number, chunk) in (0..).zip(&of.index.chunks) {
            let sink = &mut |first, bytes: &[u8]| writer.pages(first, bytes);
            source.read_chunk((layer, part, number), Kept::No, &(0..FRAMES_END), sink)?;
            done += u64::from(chunk.length);
            progress(done, all);
        }
    }
    let parts = writers.into_iter().map(PartWriter::finish).collect::<Result<_, _>>()?;
    let contents = Contents { base: None, parts, ..source.contents().clone() };
    Checkpoint::commit(target, &contents, key)
}
