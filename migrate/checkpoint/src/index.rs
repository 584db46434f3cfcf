//! The index of a part: where its chunks and sections are, and which frames it has.

use crate::digest::Digest;
use crate::layout::{
    CHUNK_PAGES, FRAMES_END, HEAD_END, PAGE_BYTES, SECTION_BYTES_MAX, SECTION_NAME_MAX,
    SECTIONS_MAX, narrow, u16_at, u32_at, u64_at, wide,
};
use std::ops::Range;

const COUNTS_BYTES: usize = 32;
const CHUNK_ENTRY: usize = 64;
const RUN_ENTRY: usize = 12;
const ZEROS_ENTRY: usize = 16;
const SECTION_ENTRY: usize = 96;
/// Bytes that their writer gave a name: the only kind of section so far.
const KIND_NAMED: u16 = 1;

/// How the bytes of a chunk are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    AsIs,
    Zstd,
}

/// Pages that were written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) offset: u64,
    /// Bytes in the file.
    pub(crate) length: u32,
    pub(crate) pages: u16,
    pub(crate) stored: Stored,
    /// CRC32C of the pages.
    pub(crate) crc: u32,
    /// BLAKE3 of the bytes in the file.
    pub(crate) digest: [u8; 32],
    /// Its runs, in [`Index::runs`].
    pub(crate) runs: Range<u32>,
}

impl Chunk {
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.pages) * PAGE_BYTES
    }
}

/// Consecutive frames whose pages lie one after the other in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) chunk: u32,
    /// Pages of the chunk before it.
    pub(crate) at: u16,
    pub(crate) pages: u16,
}

impl Run {
    pub(crate) fn frames(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.pages)
    }
}

/// Bytes with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) crc: u32,
    pub(crate) digest: [u8; 32],
}

/// What a part has of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its contents, in the run of this number.
    Run(u32),
    /// That it is zero.
    Zero,
    Absent,
}

/// Why an index is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IndexError {
    Damaged(&'static str),
    Kind(u16),
}

/// Where everything of a part is. Made only of what fits together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) chunks: Vec<Chunk>,
    /// In the order of the chunks.
    pub(crate) runs: Vec<Run>,
    /// Numbers of the runs in the order of their frames.
    sorted: Vec<u32>,
    pub(crate) zeros: Vec<Range<u64>>,
    pub(crate) sections: Vec<Section>,
    pub(crate) pages: u64,
    pub(crate) zero_pages: u64,
}

impl Index {
    /// Bytes of an index with so many entries.
    pub(crate) fn bytes(chunks: usize, runs: usize, zeros: usize, sections: usize) -> u64 {
        wide(COUNTS_BYTES)
            + wide(chunks) * wide(CHUNK_ENTRY)
            + wide(runs) * wide(RUN_ENTRY)
            + wide(zeros) * wide(ZEROS_ENTRY)
            + wide(sections) * wide(SECTION_ENTRY)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let counts = [self.chunks.len(), self.runs.len(), self.zeros.len(), self.sections.len()];
        let [chunks, runs, zeros, sections] = counts;
        let mut out = Vec::with_capacity(narrow(Self::bytes(chunks, runs, zeros, sections)));
        for count in counts {
            out.extend(u32::try_from(count).expect("an index is bounded").to_le_bytes());
        }
        out.extend(self.pages.to_le_bytes());
        out.extend(self.zero_pages.to_le_bytes());
        for chunk in &self.chunks {
            out.extend(chunk.offset.to_le_bytes());
            out.extend(chunk.length.to_le_bytes());
            out.extend(chunk.pages.to_le_bytes());
            out.extend([u8::from(chunk.stored == Stored::Zstd), 0]);
            out.extend((chunk.runs.end - chunk.runs.start).to_le_bytes());
            out.extend(chunk.crc.to_le_bytes());
            out.extend([0; 8]);
            out.extend(chunk.digest);
        }
        for run in &self.runs {
            out.extend(run.first.to_le_bytes());
            out.extend(u32::from(run.pages).to_le_bytes());
        }
        for zeros in &self.zeros {
            out.extend(zeros.start.to_le_bytes());
            out.extend((zeros.end - zeros.start).to_le_bytes());
        }
        for section in &self.sections {
            let mut name = [0; SECTION_NAME_MAX];
            name[..section.name.len()].copy_from_slice(section.name.as_bytes());
            out.extend(name);
            out.extend(KIND_NAMED.to_le_bytes());
            out.extend([0; 2]);
            out.extend(section.crc.to_le_bytes());
            out.extend(section.offset.to_le_bytes());
            out.extend(section.length.to_le_bytes());
            out.extend([0; 8]);
            out.extend(section.digest);
        }
        out
    }

    /// The index of a part whose bodies end at this offset.
    pub(crate) fn decode(bytes: &[u8], bodies_end: u64) -> Result<Self, IndexError> {
        if bytes.len() < COUNTS_BYTES {
            return Err(IndexError::Damaged("the index is too short"));
        }
        let count = |at| narrow(u32_at(bytes, at).into());
        let (chunks, runs, zeros, sections) = (count(0), count(4), count(8), count(12));
        // Four numbers of 32 bits, so this does not overflow. What is allocated below is no longer than the index.
        if Self::bytes(chunks, runs, zeros, sections) != wide(bytes.len()) {
            return Err(IndexError::Damaged("the length of the index"));
        }
        let (pages, zero_pages) = (u64_at(bytes, 16), u64_at(bytes, 24));
        let (chunk_bytes, rest) = bytes[COUNTS_BYTES..].split_at(chunks * CHUNK_ENTRY);
        let (run_bytes, rest) = rest.split_at(runs * RUN_ENTRY);
        let (zeros_bytes, section_bytes) = rest.split_at(zeros * ZEROS_ENTRY);
        let chunks = decode_chunks(chunk_bytes, run_bytes.len() / RUN_ENTRY)?;
        let runs = decode_runs(run_bytes, &chunks)?;
        let zeros = decode_zeros(zeros_bytes)?;
        let sections = decode_sections(section_bytes)?;
        let index = Self { sorted: sort(&runs), chunks, runs, zeros, sections, pages, zero_pages };
        index.check(bodies_end).map_err(IndexError::Damaged)?;
        Ok(index)
    }

    fn check(&self, bodies_end: u64) -> Result<(), &'static str> {
        self.check_bodies(bodies_end)?;
        let mut end = 0;
        let mut pages = 0;
        for run in self.in_order(0) {
            if run.first < end {
                return Err("a frame is in it twice");
            }
            end = run.frames().end;
            pages += u64::from(run.pages);
        }
        let twice = |zeros: &Range<u64>| {
            self.in_order(zeros.start).next().is_some_and(|run| run.first < zeros.end)
        };
        if self.zeros.iter().any(twice) {
            return Err("a frame is zero and has contents");
        }
        let zero_pages = self.zeros.iter().map(|zeros| zeros.end - zeros.start).sum::<u64>();
        if (pages, zero_pages) != (self.pages, self.zero_pages) {
            return Err("the numbers of its pages");
        }
        Ok(())
    }

    /// Bodies follow each other from the head to the index, without a gap.
    fn check_bodies(&self, bodies_end: u64) -> Result<(), &'static str> {
        const GAP: &str = "bodies overlap, or leave a gap";
        let mut chunks = self.chunks.iter().peekable();
        let mut sections = self.sections.iter().peekable();
        let mut position = HEAD_END;
        loop {
            let length = if let Some(section) = sections.next_if(|next| next.offset == position) {
                section.length
            } else if let Some(chunk) = chunks.next_if(|next| next.offset == position) {
                chunk.length.into()
            } else {
                break;
            };
            position = position.checked_add(length).ok_or(GAP)?;
        }
        let all = chunks.next().is_none() && sections.next().is_none() && position == bodies_end;
        all.then_some(()).ok_or(GAP)
    }

    /// Runs in the order of their frames, from the one that has this frame or the next.
    pub(crate) fn in_order(&self, frame: u64) -> impl Iterator<Item = &Run> {
        let number = |number: &u32| &self.runs[narrow(u64::from(*number))];
        let skip = self.sorted.partition_point(|run| number(run).frames().end <= frame);
        self.sorted[skip..].iter().map(number)
    }

    /// What the part has of a frame, and one past the last frame of which it has the same.
    pub(crate) fn presence(&self, frame: u64) -> (Presence, u64) {
        let run_of = |number: u32| &self.runs[narrow(number.into())];
        let next = self.sorted.partition_point(|run| run_of(*run).frames().end <= frame);
        let mut end = u64::MAX;
        if let Some(number) = self.sorted.get(next) {
            let frames = run_of(*number).frames();
            if frames.contains(&frame) {
                return (Presence::Run(*number), frames.end);
            }
            end = frames.start;
        }
        let next = self.zeros.partition_point(|zeros| zeros.end <= frame);
        if let Some(zeros) = self.zeros.get(next) {
            if zeros.contains(&frame) {
                return (Presence::Zero, zeros.end);
            }
            end = end.min(zeros.start);
        }
        (Presence::Absent, end)
    }

    /// The frames among these of which the part has something, piece by piece.
    pub(crate) fn each_common(&self, frames: &Range<u64>, each: &mut dyn FnMut(Range<u64>)) {
        let mut at = frames.start;
        while at < frames.end {
            let (presence, end) = self.presence(at);
            let piece = at..end.min(frames.end);
            at = piece.end;
            if presence != Presence::Absent {
                each(piece);
            }
        }
    }

    /// All frames of which the part has something, runs before zeros.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().map(Run::frames).chain(self.zeros.iter().cloned())
    }
}

fn sort(runs: &[Run]) -> Vec<u32> {
    let mut sorted: Vec<u32> = (0..).take(runs.len()).collect();
    sorted.sort_unstable_by_key(|number| runs[narrow(u64::from(*number))].first);
    sorted
}

fn decode_chunks(bytes: &[u8], runs: usize) -> Result<Vec<Chunk>, IndexError> {
    let mut first = 0_u32;
    let mut decode = |entry: &[u8; CHUNK_ENTRY]| {
        let stored = match entry[14] {
            0 => Stored::AsIs,
            1 => Stored::Zstd,
            _ => return Err(IndexError::Damaged("how a chunk is compressed")),
        };
        if entry[15] != 0 || entry[24..32] != [0; 8] {
            return Err(IndexError::Damaged("bytes of a chunk that mean nothing"));
        }
        let end = first.checked_add(u32_at(entry, 16));
        let end = end.filter(|end| narrow(u64::from(*end)) <= runs);
        let end = end.ok_or(IndexError::Damaged("the runs of a chunk"))?;
        let mut digest = [0; 32];
        digest.copy_from_slice(&entry[32..]);
        let chunk = Chunk {
            offset: u64_at(entry, 0),
            length: u32_at(entry, 8),
            pages: u16_at(entry, 12),
            stored,
            crc: u32_at(entry, 20),
            digest,
            runs: first..end,
        };
        first = end;
        let most = chunk.bytes();
        let length = narrow(chunk.length.into());
        let fits = match stored {
            Stored::AsIs => length == most,
            Stored::Zstd => (1..most).contains(&length),
        };
        if !fits || !(1..=CHUNK_PAGES).contains(&usize::from(chunk.pages)) {
            return Err(IndexError::Damaged("the length of a chunk"));
        }
        Ok(chunk)
    };
    let chunks: Vec<Chunk> =
        bytes.as_chunks().0.iter().map(&mut decode).collect::<Result<_, _>>()?;
    if narrow(first.into()) != runs {
        return Err(IndexError::Damaged("the runs of the chunks"));
    }
    Ok(chunks)
}

fn decode_runs(bytes: &[u8], chunks: &[Chunk]) -> Result<Vec<Run>, IndexError> {
    let mut entries = bytes.as_chunks::<RUN_ENTRY>().0.iter();
    let mut runs = Vec::with_capacity(entries.len());
    for (number, chunk) in (0_u32..).zip(chunks) {
        let mut at = 0_u16;
        for _ in chunk.runs.clone() {
            let entry = entries.next().ok_or(IndexError::Damaged("the runs of a chunk"))?;
            let (first, pages) = (u64_at(entry, 0), u32_at(entry, 8));
            let rest = u32::from(chunk.pages - at);
            let pages = u16::try_from(pages).ok().filter(|pages| *pages > 0);
            let pages = pages.filter(|pages| u32::from(*pages) <= rest);
            let pages = pages.filter(|pages| first <= FRAMES_END - u64::from(*pages));
            let pages = pages.ok_or(IndexError::Damaged("a run of pages"))?;
            runs.push(Run { first, chunk: number, at, pages });
            at += pages;
        }
        if at != chunk.pages {
            return Err(IndexError::Damaged("the pages of a chunk"));
        }
    }
    Ok(runs)
}

fn decode_zeros(bytes: &[u8]) -> Result<Vec<Range<u64>>, IndexError> {
    const WRONG: IndexError = IndexError::Damaged("the frames that are zero");
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(bytes.len() / ZEROS_ENTRY);
    for entry in bytes.as_chunks::<ZEROS_ENTRY>().0 {
        let start = u64_at(entry, 0);
        let end = start.checked_add(u64_at(entry, 8)).filter(|end| *end <= FRAMES_END);
        let end = end.filter(|end| *end > start).ok_or(WRONG)?;
        // Ranges that meet would be one.
        if ranges.last().is_some_and(|before| before.end >= start) {
            return Err(WRONG);
        }
        ranges.push(start..end);
    }
    Ok(ranges)
}

fn decode_sections(bytes: &[u8]) -> Result<Vec<Section>, IndexError> {
    let entries = bytes.as_chunks::<SECTION_ENTRY>().0;
    if entries.len() > SECTIONS_MAX {
        return Err(IndexError::Damaged("more sections than there may be"));
    }
    let mut sections: Vec<Section> = Vec::with_capacity(entries.len());
    let mut rest = SECTION_BYTES_MAX;
    for entry in entries {
        let kind = u16_at(entry, 32);
        if kind != KIND_NAMED {
            return Err(IndexError::Kind(kind));
        }
        if entry[34..36] != [0; 2] || entry[56..64] != [0; 8] {
            return Err(IndexError::Damaged("bytes of a section that mean nothing"));
        }
        let name = &entry[..SECTION_NAME_MAX];
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let (name, padding) = name.split_at(length);
        let name = str::from_utf8(name).ok().filter(|name| is_section_name(name));
        let name = name.filter(|name| sections.iter().all(|before| before.name != *name));
        let name = name.filter(|_| padding.iter().all(|byte| *byte == 0));
        let name = name.ok_or(IndexError::Damaged("the name of a section"))?.to_owned();
        let length = u64_at(entry, 48);
        rest = rest.checked_sub(length).ok_or(IndexError::Damaged("the length of a section"))?;
        let mut digest = [0; 32];
        digest.copy_from_slice(&entry[64..]);
        let (crc, offset) = (u32_at(entry, 36), u64_at(entry, 40));
        sections.push(Section { name, offset, length, crc, digest });
    }
    Ok(sections)
}

/// Lower-case letters, digits, dots and hyphens.
pub(crate) fn is_section_name(name: &str) -> bool {
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-');
    (1..=SECTION_NAME_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// Puts the digests of chunks and sections right in what may be an index, by a file that has their bodies.
pub(crate) fn reseal(index: &mut [u8], file: &[u8]) {
    if index.len() < COUNTS_BYTES {
        return;
    }
    let [chunks, runs, zeros, sections] = [0, 4, 8, 12].map(|at| narrow(u32_at(index, at).into()));
    if Index::bytes(chunks, runs, zeros, sections) != wide(index.len()) {
        return;
    }
    // Bodies that overlap are refused anyway, and would take long.
    let mut rest = file.len();
    let mut body = |offset: u64, length: u64| {
        let (start, end) = (usize::try_from(offset).ok()?, offset.checked_add(length)?);
        let body = file.get(start..usize::try_from(end).ok()?)?;
        rest = rest.checked_sub(body.len())?;
        Some(body)
    };
    let (chunk_bytes, rest) = index[COUNTS_BYTES..].split_at_mut(chunks * CHUNK_ENTRY);
    for entry in chunk_bytes.as_chunks_mut::<CHUNK_ENTRY>().0 {
        if let Some(body) = body(u64_at(entry, 0), u32_at(entry, 8).into()) {
            entry[32..].copy_from_slice(&Digest::of(body).0);
        }
    }
    let section_bytes = &mut rest[runs * RUN_ENTRY + zeros * ZEROS_ENTRY..];
    for entry in section_bytes.as_chunks_mut::<SECTION_ENTRY>().0 {
        if let Some(body) = body(u64_at(entry, 40), u64_at(entry, 48)) {
            entry[36..40].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
            entry[64..].copy_from_slice(&Digest::of(body).0);
        }
    }
}
