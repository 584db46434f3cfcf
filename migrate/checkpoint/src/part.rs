//! Reads the part of one slice.

use crate::digest::Digest;
use crate::error::CheckpointError;
use crate::index::{Chunk, Index, IndexError, Section, Stored};
use crate::layout::{HEAD_BYTES, HEAD_END, PartHead, Trailer, narrow, wide};
use crate::manifest::at;
use crate::source::Source;
use crate::writer::index_digest;
use std::fmt;
use std::path::{Path, PathBuf};
use zstd::bulk::Decompressor;

/// Bytes of a section that are in memory at once while it is only verified.
const PIECE: usize = 1 << 20;
/// The kinds of sections there are.
const KINDS: u32 = 1;

/// The part of a slice: its index is in memory and in order, its bodies are in the file.
pub struct Part {
    source: Box<dyn Source>,
    path: PathBuf,
    head: PartHead,
    pub(crate) index: Index,
    digest: Digest,
    length: u64,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, head, length, .. } = self;
        f.debug_struct("Part")
            .field("path", path)
            .field("head", head)
            .field("length", length)
            .finish()
    }
}

impl Part {
    /// Looks at head, trailer and index. The path is for messages.
    ///
    /// # Errors
    /// It is of another version, has an unknown feature, is damaged or incomplete, or cannot be read.
    pub fn open(source: Box<dyn Source>, path: &Path) -> Result<Self, CheckpointError> {
        let io = || CheckpointError::io("read", path);
        let length = source.length().map_err(io())?;
        let Some(tail) = length.checked_sub(HEAD_END).filter(|tail| *tail >= HEAD_END) else {
            return Err(CheckpointError::damaged(path, "it is shorter than a part can be"));
        };
        let mut bytes = [0; HEAD_BYTES];
        source.read_at(&mut bytes, 0).map_err(io())?;
        let head = PartHead::decode(&bytes).map_err(|refusal| at(path, &refusal))?;
        source.read_at(&mut bytes, tail).map_err(io())?;
        let trailer =
            Trailer::decode(&bytes, length).map_err(|why| CheckpointError::damaged(path, why))?;
        // The file is that long, so this is no more than somebody has stored.
        let mut bytes = vec![0; narrow(trailer.length)];
        source.read_at(&mut bytes, trailer.offset).map_err(io())?;
        let digest = index_digest(&head, &bytes);
        if digest.0 != trailer.digest {
            return Err(CheckpointError::damaged(path, "the digest of its index"));
        }
        let index = Index::decode(&bytes, trailer.offset).map_err(|error| match error {
            IndexError::Damaged(why) => CheckpointError::damaged(path, why),
            IndexError::Kind(found) => CheckpointError::Unknown {
                path: path.to_path_buf(),
                what: "a section of kind",
                found: found.into(),
                known: KINDS,
            },
        })?;
        Ok(Self { source, path: path.to_path_buf(), head, index, digest, length })
    }

    /// Whose it is, of which checkpoint.
    #[must_use]
    pub fn head(&self) -> &PartHead {
        &self.head
    }

    /// BLAKE3 of its head and index.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Length of its file.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Pages with contents, and pages known to be zero.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        (self.index.pages, self.index.zero_pages)
    }

    /// Names of its sections, and how many bytes each has.
    pub fn sections(&self) -> impl Iterator<Item = (&str, u64)> {
        self.index.sections.iter().map(|section| (section.name.as_str(), section.length))
    }

    /// Reads every body and throws it away.
    ///
    /// # Errors
    /// A body is damaged or cannot be read.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), CheckpointError> {
        for number in (0..).take(self.index.chunks.len()) {
            self.chunk(number)?;
            progress(self.index.chunks[narrow(u64::from(number))].length.into());
        }
        for section in &self.index.sections {
            self.pieces(section, &mut |bytes| progress(wide(bytes.len())))?;
        }
        Ok(())
    }

    /// The bytes of a section.
    pub(crate) fn section(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let section = self.index.sections.iter().find(|section| section.name == name);
        let Some(section) = section else {
            return Err(CheckpointError::NoSection {
                slice: self.head.slice,
                name: name.to_owned(),
            });
        };
        let mut bytes = Vec::with_capacity(narrow(section.length));
        self.pieces(section, &mut |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }

    /// Reads a section piece by piece. What came is to be used only if all of it fits.
    fn pieces(
        &self,
        section: &Section,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), CheckpointError> {
        let mut buffer = vec![0; PIECE.min(narrow(section.length))];
        let mut hasher = blake3::Hasher::new();
        let (mut sum, mut offset, mut rest) = (0, section.offset, narrow(section.length));
        while rest > 0 {
            let piece = &mut buffer[..rest.min(PIECE)];
            self.source.read_at(piece, offset).map_err(CheckpointError::io("read", &self.path))?;
            hasher.update(piece);
            sum = crc32c::crc32c_append(sum, piece);
            each(piece);
            offset += wide(piece.len());
            rest -= piece.len();
        }
        if *hasher.finalize().as_bytes() != section.digest || sum != section.crc {
            let why = format!("the digest of its section {:?}", section.name);
            return Err(CheckpointError::damaged(&self.path, why));
        }
        Ok(())
    }

    /// The pages of a chunk, one after the other.
    pub(crate) fn chunk(&self, number: u32) -> Result<Vec<u8>, CheckpointError> {
        let chunk = &self.index.chunks[narrow(number.into())];
        let mut bytes = vec![0; narrow(chunk.length.into())];
        self.source
            .read_at(&mut bytes, chunk.offset)
            .map_err(CheckpointError::io("read", &self.path))?;
        let wrong = |what: &str| {
            let why = format!("{what} of the chunk at {:#x}", chunk.offset);
            Err(CheckpointError::damaged(&self.path, why))
        };
        if Digest::of(&bytes).0 != chunk.digest {
            return wrong("the digest");
        }
        let Some(pages) = unpack(chunk, bytes) else { return wrong("the compression") };
        if crc32c::crc32c(&pages) != chunk.crc {
            return wrong("the checksum");
        }
        Ok(pages)
    }
}

/// Never more bytes than the chunk is to have.
fn unpack(chunk: &Chunk, bytes: Vec<u8>) -> Option<Vec<u8>> {
    let length = chunk.bytes();
    let pages = match chunk.stored {
        Stored::AsIs => bytes,
        Stored::Zstd => Decompressor::new().ok()?.decompress(&bytes, length).ok()?,
    };
    (pages.len() == length).then_some(pages)
}
