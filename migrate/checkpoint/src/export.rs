//! A chain of increments merged into one full checkpoint.

use crate::checkpoint::{Authenticity, Checkpoint};
use crate::contents::Contents;
use crate::digest::Digest;
use crate::error::Error;
use crate::files;
use crate::folder::delete;
use crate::key::Key;
use crate::layout::FRAMES_END;
use crate::writer::{Compression, PartWriter};
use std::path::Path;

/// Writes a checkpoint and its bases as one full checkpoint into a new folder: each page once, none that is zero, the sections
/// of the checkpoint itself. An authenticated one needs its key, by which the new one is authenticated too.
///
/// # Errors
/// The checkpoint cannot be opened or read, it is authenticated and no key was given, or the new one exists or cannot be
/// written. Then nothing is left of the new one.
pub fn export(folder: &Path, target: &Path, key: Option<&Key>) -> Result<Digest, Error> {
    let source = Checkpoint::open(folder, key)?;
    if key.is_none() && source.authenticity() != Authenticity::Nobody {
        return Err(Error::NotAuthentic { path: folder.join(files::MANIFEST) });
    }
    if target.exists() {
        return Err(Error::Exists { folder: target.to_path_buf() });
    }
    let done = copy(&source, target, key);
    if done.is_err() && target.exists() {
        // What is left cannot be taken for a checkpoint, and the first error says more.
        let _ = delete(target);
    }
    done
}

fn copy(source: &Checkpoint, target: &Path, key: Option<&Key>) -> Result<Digest, Error> {
    let mut writers = Vec::new();
    for part in &source.layers[0].parts {
        let mut writer = PartWriter::create(target, part.head(), Compression::Zstd)?;
        for (name, _) in part.sections() {
            writer.section(name, &part.section(name)?)?;
        }
        writers.push(writer);
    }
    for (layer, part, of) in source.parts() {
        // Pages stay with their slice; those of one that has left since then go to the lowest.
        let slice = of.head().slice;
        let parts = &source.layers[0].parts;
        let writer = parts.iter().position(|part| part.head().slice == slice);
        let writer = &mut writers[writer.unwrap_or(0)];
        for chunk in (0..).take(of.index.chunks.len()) {
            source.read_chunk((layer, part, chunk), &(0..FRAMES_END), &mut |first, bytes| {
                writer.pages(first, bytes)
            })?;
        }
    }
    let parts = writers.into_iter().map(PartWriter::finish).collect::<Result<_, _>>()?;
    let contents = Contents { base: None, parts, ..source.contents().clone() };
    Checkpoint::commit(target, &contents, key)
}
