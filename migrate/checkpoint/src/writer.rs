//! Writes the part of one slice.
//!
//! ```text
//!   create --> head --pages, zeros, section--> bodies --finish--> index, trailer, fsync --> PartSummary
//! ```
//! A part that is not finished has no trailer, and stays so: whoever takes the checkpoint deletes its folder.

use crate::contents::PartSummary;
use crate::digest::Digest;
use crate::error::CheckpointError;
use crate::files;
use crate::flusher::Flusher;
use crate::frames::FrameSet;
use crate::index::{Chunk, Index, Run, Section, Stored, is_section_name};
use crate::layout::{
    CHUNK_BYTES, FRAMES_END, HEAD_END, INDEX_BYTES_MAX, PAGE_BYTES, PartHead, SECTION_BYTES_MAX,
    SECTIONS_MAX, Trailer, wide,
};
use crate::points::{NoPoints, Point, Points};
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zstd::bulk::Compressor;

const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
/// zstd's fastest of its ordinary levels.
const LEVEL: i32 = 1;

/// What is done to chunks of pages before they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Nothing.
    None,
    /// zstd of level 1. A chunk that does not become shorter is written as it is.
    Zstd,
}

/// The part of one slice while it is written.
pub struct PartWriter {
    file: File,
    flusher: Flusher,
    path: PathBuf,
    folder: PathBuf,
    head: PartHead,
    points: Box<dyn Points>,
    compressor: Option<Compressor<'static>>,
    /// Where the next body goes. What lies beyond it, of a write that has failed, is overwritten.
    position: u64,
    present: FrameSet,
    zeros: FrameSet,
    /// Pages of the next chunk, and their runs.
    pending: Vec<u8>,
    runs: Vec<Run>,
    index: Index,
}

impl fmt::Debug for PartWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, position, .. } = self;
        f.debug_struct("PartWriter").field("path", path).field("position", position).finish()
    }
}

impl PartWriter {
    /// Creates the file of the slice's part in the folder of the checkpoint, and that folder unless another slice has.
    ///
    /// # Errors
    /// The folder is a checkpoint already, has a part of this slice, or cannot be written.
    pub fn create(
        folder: &Path,
        head: &PartHead,
        compression: Compression,
    ) -> Result<Self, CheckpointError> {
        Self::with_points(folder, head, compression, Box::new(NoPoints))
    }

    /// [`Self::create`], with somebody who hears of each step.
    ///
    /// # Errors
    /// As those of [`Self::create`].
    pub fn with_points(
        folder: &Path,
        head: &PartHead,
        compression: Compression,
        points: Box<dyn Points>,
    ) -> Result<Self, CheckpointError> {
        files::make_folder(folder)?;
        if folder.join(files::MANIFEST).exists() {
            return Err(CheckpointError::Exists { folder: folder.to_path_buf() });
        }
        let path = folder.join(files::part_name(head.slice));
        let compressor = match compression {
            Compression::None => None,
            Compression::Zstd => Some(Compressor::new(LEVEL)),
        };
        let compressor =
            compressor.transpose().map_err(CheckpointError::io("start zstd for", &path))?;
        let file = files::create(&path)?;
        let begun = file.write_all_at(&head.encode(), 0);
        let begun = begun.map_err(CheckpointError::io("write", &path)).and_then(|()| {
            Flusher::start(&file).map_err(CheckpointError::io("start to flush", &path))
        });
        let flusher = begun.inspect_err(|_| {
            let _ = fs::remove_file(&path);
            // Others may have parts in it still.
            let _ = fs::remove_dir(folder);
        })?;
        points.reach(Point::PartCreated);
        Ok(Self {
            file,
            flusher,
            path,
            folder: folder.to_path_buf(),
            head: *head,
            points,
            compressor,
            position: HEAD_END,
            present: FrameSet::default(),
            zeros: FrameSet::default(),
            pending: Vec::with_capacity(CHUNK_BYTES),
            runs: Vec::new(),
            index: Index::default(),
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the contents of consecutive frames. Pages of zeros take no room in the file.
    ///
    /// # Errors
    /// The bytes are no whole pages, a frame is in the part already, or the file cannot be written. What was taken of
    /// them stays: give the part up.
    pub fn pages(&mut self, first: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (pages, rest) = bytes.as_chunks::<PAGE_BYTES>();
        let frames = first..first.saturating_add(wide(pages.len()));
        if !rest.is_empty() {
            let (first, end) = (frames.start, frames.end);
            return Err(CheckpointError::Frames {
                first,
                end,
                why: "their bytes are no whole pages",
            });
        }
        self.take(&frames)?;
        let mut zeros = first..first;
        for (frame, page) in frames.zip(pages) {
            if page == &ZEROS {
                zeros.end = frame + 1;
                continue;
            }
            self.zero(zeros)?;
            self.page(frame, page)?;
            zeros = frame + 1..frame + 1;
        }
        self.zero(zeros)
    }

    /// Takes frames that are known to be zero.
    ///
    /// # Errors
    /// A frame is in the part already, or none that can be.
    pub fn zeros(&mut self, frames: Range<u64>) -> Result<(), CheckpointError> {
        self.take(&frames)?;
        self.zero(frames)
    }

    /// Writes bytes under a name of lower-case letters, digits, dots and hyphens, as the saved form of the slice.
    ///
    /// # Errors
    /// The name is in the part already or cannot be one, there are too many sections or bytes of them, or the file cannot
    /// be written.
    pub fn section(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let refuse =
            |why: &str| Err(CheckpointError::Section { name: name.into(), why: why.into() });
        if !is_section_name(name) {
            return refuse("a name has 1 to 32 lower-case letters, digits, dots and hyphens");
        }
        if self.index.sections.iter().any(|section| section.name == name) {
            return refuse("it is in the part already");
        }
        if self.index.sections.len() == SECTIONS_MAX {
            return refuse("the part has as many sections as it may");
        }
        let length = wide(bytes.len());
        let before: u64 = self.index.sections.iter().map(|section| section.length).sum();
        if before.saturating_add(length) > SECTION_BYTES_MAX {
            return refuse("the sections of a part have 1 GiB at most");
        }
        self.write(bytes)?;
        self.index.sections.push(Section {
            name: name.to_owned(),
            offset: self.position,
            length,
            crc: crc32c::crc32c(bytes),
            digest: Digest::of(bytes).0,
        });
        self.position += length;
        Ok(())
    }

    /// Writes the index, and waits until all is on stable storage.
    ///
    /// # Errors
    /// The file cannot be written, or its index would be too long: the memory is too scattered.
    pub fn finish(mut self) -> Result<PartSummary, CheckpointError> {
        self.flush()?;
        self.index.zeros = self.zeros.ranges().collect();
        self.index.zero_pages = self.index.zeros.iter().map(|zeros| zeros.end - zeros.start).sum();
        self.index.pages = self.index.runs.iter().map(|run| u64::from(run.pages)).sum();
        self.bounded()?;
        let mut bytes = self.index.encode();
        let (offset, length) = (self.position, wide(bytes.len()));
        let digest = index_digest(&self.head, &bytes);
        bytes.extend(Trailer { offset, length, digest: digest.0 }.encode());
        self.write(&bytes)?;
        let end = offset + wide(bytes.len());
        // Nothing of a write that has failed may follow.
        self.file.set_len(end).map_err(CheckpointError::io("write", &self.path))?;
        self.points.reach(Point::IndexWritten);
        let flushed = self.flusher.end().and_then(|()| self.file.sync_all());
        flushed.map_err(CheckpointError::io("write to stable storage", &self.path))?;
        files::sync_folder(&self.folder)?;
        self.points.reach(Point::PartSynced);
        Ok(PartSummary {
            slice: self.head.slice,
            file: files::part_name(self.head.slice),
            bytes: end,
            digest,
            pages: self.index.pages,
            zero_pages: self.index.zero_pages,
        })
    }

    /// Notes frames as given.
    fn take(&mut self, frames: &Range<u64>) -> Result<(), CheckpointError> {
        let Range { start: first, end } = *frames;
        if first > end || end > FRAMES_END {
            return Err(CheckpointError::Frames { first, end, why: "no such frames can be" });
        }
        self.present.insert(frames.clone()).map_err(|frame| CheckpointError::Twice { frame })
    }

    fn zero(&mut self, frames: Range<u64>) -> Result<(), CheckpointError> {
        self.zeros.insert(frames).map_err(|frame| CheckpointError::Twice { frame })
    }

    fn page(&mut self, frame: u64, page: &[u8; PAGE_BYTES]) -> Result<(), CheckpointError> {
        if self.pending.len() == CHUNK_BYTES {
            self.flush()?;
        }
        let at = u16::try_from(self.pending.len() / PAGE_BYTES).expect("a chunk has few pages");
        self.pending.extend_from_slice(page);
        match self.runs.last_mut() {
            Some(run) if run.frames().end == frame => run.pages += 1,
            _ => {
                let chunk = u32::try_from(self.index.chunks.len()).expect("an index is bounded");
                self.runs.push(Run { first: frame, chunk, at, pages: 1 });
            }
        }
        Ok(())
    }

    /// Writes the pending pages as a chunk.
    fn flush(&mut self) -> Result<(), CheckpointError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.bounded()?;
        let shorter = match &mut self.compressor {
            None => None,
            Some(compressor) => {
                let done = compressor.compress(&self.pending);
                let done = done.map_err(CheckpointError::io("compress pages for", &self.path))?;
                (done.len() < self.pending.len()).then_some(done)
            }
        };
        let stored = if shorter.is_some() { Stored::Zstd } else { Stored::AsIs };
        let body = shorter.as_ref().unwrap_or(&self.pending);
        self.write(body)?;
        let length = u32::try_from(body.len()).expect("a chunk is short");
        let pages = self.pending.len() / PAGE_BYTES;
        let runs = |number: usize| u32::try_from(number).expect("an index is bounded");
        let first = self.index.runs.len();
        self.index.chunks.push(Chunk {
            offset: self.position,
            length,
            pages: u16::try_from(pages).expect("a chunk has few pages"),
            stored,
            crc: crc32c::crc32c(&self.pending),
            digest: Digest::of(body).0,
            runs: runs(first)..runs(first + self.runs.len()),
        });
        self.position += u64::from(length);
        self.flusher.written(u64::from(length));
        self.index.runs.append(&mut self.runs);
        self.pending.clear();
        self.points.reach(Point::ChunkWritten);
        Ok(())
    }

    /// What could not be read back is not written.
    fn bounded(&self) -> Result<(), CheckpointError> {
        let Index { chunks, runs, sections, .. } = &self.index;
        let runs = runs.len() + self.runs.len();
        let zeros = self.zeros.ranges().len();
        if Index::bytes(chunks.len() + 1, runs, zeros, sections.len()) > INDEX_BYTES_MAX {
            let why = "they are too scattered: the index of the part would be too long";
            return Err(CheckpointError::Frames { first: 0, end: FRAMES_END, why });
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.file
            .write_all_at(bytes, self.position)
            .map_err(CheckpointError::io("write", &self.path))
    }
}

/// What the manifest says of a part: the digest of its head and index, which has the digests of all its bodies.
pub(crate) fn index_digest(head: &PartHead, index: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head.encode()).update(index);
    Digest(*hasher.finalize().as_bytes())
}
