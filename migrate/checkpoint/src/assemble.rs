//! Parts and manifests that say anything, with digests that fit: what somebody can make who wants a reader to fall over. For tests
//! and fuzz targets.

use crate::chain::{Layer, compare_part};
use crate::checkpoint::{Authenticity, Checkpoint};
use crate::contents::{Contents, PartSummary};
use crate::digest::Digest;
use crate::error::CheckpointError;
use crate::files;
use crate::index::reseal;
use crate::key::Key;
use crate::layout::{HEAD_BYTES, PartHead, Trailer, wide};
use crate::manifest::{Manifest, seal};
use crate::part::Part;
use crate::writer::index_digest;
use migrate::SavedState;
use std::path::PathBuf;

/// A manifest of these bytes, which need not be contents.
#[must_use]
pub fn manifest(contents: &[u8], key: Option<&Key>) -> Vec<u8> {
    seal(contents, key).0
}

/// A part of these bodies and this index. The digests of bodies in the index are put right, as far as it is one.
#[must_use]
pub fn part(head: &PartHead, bodies: &[u8], index: &[u8]) -> Vec<u8> {
    let mut bytes = [&head.encode(), bodies].concat();
    let mut index = index.to_vec();
    reseal(&mut index, &bytes);
    let (offset, length) = (wide(bytes.len()), wide(index.len()));
    let digest = index_digest(head, &index).0;
    bytes.append(&mut index);
    bytes.extend(Trailer { offset, length, digest }.encode());
    bytes
}

/// The bodies and the index of a part's bytes, for [`part`]; nothing of what is no part.
#[must_use]
pub fn parts_of(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let trailer = bytes.last_chunk::<HEAD_BYTES>()?;
    let trailer = Trailer::decode(trailer, wide(bytes.len())).ok()?;
    let index = usize::try_from(trailer.offset).ok()?;
    Some((bytes.get(HEAD_BYTES..index)?, bytes.get(index..bytes.len() - HEAD_BYTES)?))
}

/// The checkpoint of these parts, without files: one chain member whose contents are otherwise given.
///
/// # Errors
/// The parts do not belong together.
pub fn checkpoint(contents: Contents, parts: Vec<Part>) -> Result<Checkpoint, CheckpointError> {
    let summaries = parts.iter().map(|part| {
        let (slice, (pages, zero_pages)) = (part.head().slice, part.pages());
        let file = files::part_name(slice);
        PartSummary { slice, file, bytes: part.length(), digest: part.digest(), pages, zero_pages }
    });
    let contents = Contents { base: None, parts: summaries.collect(), ..contents };
    contents.check()?;
    for (part, summary) in parts.iter().zip(&contents.parts) {
        let path = PathBuf::from(&summary.file);
        compare_part(part, summary, &contents)
            .map_err(|why| CheckpointError::OtherPart { path, why })?;
    }
    let manifest = Manifest { contents, digest: Digest([0; 32]), authenticated: false };
    let layer = Layer { folder: PathBuf::from("memory"), manifest, manifest_bytes: 0, parts };
    Ok(Checkpoint::of_layers(vec![layer], Authenticity::Nobody))
}
