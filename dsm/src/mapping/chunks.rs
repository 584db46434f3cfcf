//! Chunks: 2 MiB of guest memory, private or shared as a whole.
//!
//! ```text
//!              another slice is given a page, or               all pages are this slice's alone, and
//!              the right to read one (share)                   have been for a while (settle)
//!   private ---------------------------------------> shared -------------------------------------+
//!   (not known to userfaultfd,                       (registered;   ^                            |
//!    a huge page where possible)                      4 KiB pages)  |                            v
//!                                                                   +------ share -------- private again
//! ```
//!
//! Chunks whose home is this slice begin private. Chunks of other homes begin shared. If all pages of one came to this
//! slice for writing, in order, the slice has an *exclusive grant* of it: the chunk is private until another slice, or
//! its home, is given a page of it again. [`crate::prefetch`] says how such chunks come.
//!
//! A private chunk costs what ordinary memory costs. Sharing it costs some system calls and the huge
//! page, so a chunk that is shared again soon after it became private waits twice as long next time.
//!
//! Each border between chunks of different state splits the guest's mapping, and the kernel limits the number of parts
//! (`vm.max_map_count`). At the limit a chunk is shared together with those between it and the nearest shared one, and
//! a chunk in the middle of shared ones stays shared.
//!
//! This module decides, and `share` carries it out.

use crate::memory::{ChunkId, whole_chunks};
use crate::prefetch::PageRun;
use dsm_protocol::Gfn;
use dsm_protocol::PageSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// How long all pages must have been here.
const QUIET_NS: u64 = 2_000_000_000;
/// The wait doubles so often at most.
const DOUBLINGS_MAX: u32 = 6;
/// A chunk that stayed private for so many waits begins anew with the shortest.
const PROVED: u64 = 16;
/// Chunks looked at in one go.
const LOOKS: usize = 256;
/// Chunks made private in one go.
const SETTLES: usize = 4;
/// Time between two looks.
const LOOK_NS: u64 = 100_000_000;

/// What became of chunks, since the start unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChunkCounts {
    /// Chunks of this slice's home (2 MiB each).
    pub own: u64,
    /// Chunks that were private before and are shared now.
    pub shared_now: u64,
    /// Chunks of other homes that became private here, all at once.
    pub exclusive_grants: u64,
    /// Chunks that became shared.
    pub shared: u64,
    /// Chunks that became shared with a neighbour, for want of parts of the mapping.
    pub shared_for_maps: u64,
    /// Shared chunks that were copied from private memory into the memory file.
    pub copied: u64,
    /// Chunks that became private again.
    pub private_again: u64,
    /// Chunks that stayed shared for want of parts of the mapping.
    pub kept_for_maps: u64,
    /// Chunks that were put on huge pages.
    pub collapsed: u64,
    /// Time that this took in total, in nanoseconds.
    pub collapse_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Shared,
    PrivateAgain,
}

/// A chunk that was shared at least once.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    state: State,
    /// Pages that the guest may not write now.
    away: u16,
    doublings: u8,
    /// Its pages are on 4 KiB mappings that are not there yet.
    unmapped: bool,
    /// When a page last came or went, or when it became private.
    since_ns: u64,
}

impl Chunk {
    fn wait_ns(&self) -> u64 {
        QUIET_NS << self.doublings
    }
}

/// The chunks of one slice's home.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// Ranges of chunk numbers: of this slice's home, and of others'.
    own: Vec<Range<u64>>,
    others: Vec<Range<u64>>,
    known: BTreeMap<ChunkId, Chunk>,
    away: PageSet,
    /// Borders between neighbours of different state, and how many there may be.
    seams: u64,
    seams_max: u64,
    /// Private chunks lie outside the memory file until they are shared.
    off_file: bool,
    now_ns: u64,
    look_ns: u64,
    /// Where the next look begins.
    cursor: ChunkId,
    pub(crate) counts: ChunkCounts,
}

impl Chunks {
    /// Chunks that lie fully in `own` (frames) are private, and those in `others` shared. `end` is beyond all frames.
    /// `off_file`: private chunks lie outside the memory file until they are shared.
    pub(crate) fn new(
        own: &[Range<u64>],
        others: &[Range<u64>],
        end: u64,
        seams_max: u64,
        off_file: bool,
    ) -> Self {
        let (own, others) = (whole_chunks(own), whole_chunks(others));
        let count = own.iter().map(|range| range.end - range.start).sum();
        Self {
            own,
            others,
            known: BTreeMap::new(),
            away: PageSet::new(end),
            seams: 0,
            seams_max,
            off_file,
            now_ns: 0,
            look_ns: 0,
            cursor: ChunkId(0),
            counts: ChunkCounts { own: count, ..ChunkCounts::default() },
        }
    }

    fn state(&self, id: ChunkId) -> Option<State> {
        self.known.get(&id).map(|chunk| chunk.state)
    }

    /// True for a chunk of this slice's home.
    pub(crate) fn is_own(&self, id: ChunkId) -> bool {
        self.own.iter().any(|range| range.contains(&id.0))
    }

    /// True for a chunk that no other slice uses.
    pub(crate) fn is_private(&self, id: ChunkId) -> bool {
        match self.state(id) {
            Some(state) => state == State::PrivateAgain,
            None => self.is_own(id),
        }
    }

    /// True for a chunk of another home that may become private.
    pub(crate) fn may_grant(&self, id: ChunkId) -> bool {
        self.others.iter().any(|range| range.contains(&id.0)) && !self.is_private(id)
    }

    /// The time of the last look.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn is_shared(&self, id: ChunkId) -> bool {
        self.state(id) == Some(State::Shared)
    }

    /// The seams on both sides of a chunk if it had this state.
    fn seams_with(&self, id: ChunkId, state: Option<State>) -> u64 {
        let part = self.part(id, state);
        let differs = |other: u64| self.part(ChunkId(other), self.state(ChunkId(other))) != part;
        u64::from(id.0 > 0 && differs(id.0 - 1)) + u64::from(differs(id.0 + 1))
    }

    /// What the kernel tells apart. It merges neighbours that are alike into one part.
    fn part(&self, id: ChunkId, state: Option<State>) -> Option<State> {
        let begins = if self.is_own(id) { State::PrivateAgain } else { State::Shared };
        let same = !(self.off_file && self.is_own(id)) && state == Some(begins);
        state.filter(|_| !same)
    }

    fn set(&mut self, id: ChunkId, chunk: Chunk) {
        self.seams += self.seams_with(id, Some(chunk.state));
        self.seams -= self.seams_with(id, self.state(id));
        self.known.insert(id, chunk);
    }

    /// A private chunk becomes shared. Returns the chunks that the caller has to watch from now on.
    pub(crate) fn share(&mut self, id: ChunkId) -> Range<u64> {
        let range = self.widened(id);
        for at in range.clone().map(ChunkId) {
            let before = self.known.get(&at);
            let doublings = before.map_or(0, |chunk| {
                let stayed = self.now_ns.saturating_sub(chunk.since_ns);
                let next = (u32::from(chunk.doublings) + 1).min(DOUBLINGS_MAX);
                if stayed > PROVED * chunk.wait_ns() { 0 } else { next }
            });
            let doublings = u8::try_from(doublings).unwrap_or(u8::MAX);
            let since_ns = self.now_ns;
            self.set(
                at,
                Chunk { state: State::Shared, away: 0, doublings, unmapped: false, since_ns },
            );
        }
        self.counts.shared += range.end - range.start;
        self.counts.shared_for_maps += range.end - range.start - 1;
        self.counts.shared_now += range.end - range.start;
        range
    }

    /// The chunk alone, or, if the mapping has too many parts, all up to the nearest shared one.
    fn widened(&self, id: ChunkId) -> Range<u64> {
        let alone = id.0..id.0 + 1;
        let more = self.seams_with(id, Some(State::Shared));
        let now = self.seams_with(id, self.state(id));
        if self.seams + more <= self.seams_max + now {
            return alone;
        }
        let Some(own) = self.own.iter().find(|range| range.contains(&id.0)) else { return alone };
        let shared =
            |(at, chunk): (&ChunkId, &Chunk)| (chunk.state == State::Shared).then_some(at.0);
        let below = self.known.range(ChunkId(own.start)..id).rev().find_map(shared);
        let above = self.known.range(id..ChunkId(own.end)).find_map(shared);
        let down = below.map(|at| (id.0 - at, at + 1..id.0 + 1));
        let up = above.map(|at| (at - id.0, id.0..at));
        let nearest = [down, up].into_iter().flatten().min_by_key(|(distance, _)| *distance);
        nearest.map_or(alone, |(_, range)| range)
    }

    /// The guest may no longer write these neighbours, which are in shared chunks or not of this home.
    /// Each chunk is looked up once: a busy home does little but this.
    pub(crate) fn took(&mut self, first: Gfn, pages: u64) {
        for (id, frames) in ChunkId::pieces(first, pages) {
            let Some(chunk) = self.known.get_mut(&id) else { continue };
            chunk.since_ns = self.now_ns;
            for gfn in frames.map(Gfn) {
                if !self.away.contains(gfn) {
                    self.away.insert(gfn);
                    chunk.away += 1;
                }
            }
        }
    }

    /// The guest may write the page.
    pub(crate) fn gave(&mut self, gfn: Gfn) {
        let now = self.now_ns;
        if let Some(chunk) = self.known.get_mut(&ChunkId::of(gfn)) {
            chunk.since_ns = now;
            if self.away.remove(gfn) {
                chunk.away -= 1;
            }
        }
    }

    /// The mappings of the chunk went all at once.
    pub(crate) fn set_unmapped(&mut self, id: ChunkId) {
        if let Some(chunk) = self.known.get_mut(&id) {
            chunk.unmapped = true;
        }
    }

    /// Runs of pages that the guest may write but that are not mapped, if there are. They are mapped after this.
    pub(crate) fn take_unmapped(&mut self, id: ChunkId) -> Vec<PageRun> {
        match self.known.get_mut(&id) {
            Some(chunk) if chunk.unmapped && chunk.state == State::Shared => {
                chunk.unmapped = false;
            }
            _ => return Vec::new(),
        }
        let here = id.frames().map(Gfn).filter(|gfn| !self.away.contains(*gfn));
        PageRun::gather(here.map(|gfn| (gfn, true)))
    }

    /// Takes note of the time. Returns chunks that have been quiet for long enough, a few at a time.
    pub(crate) fn quiet(&mut self, now_ns: u64) -> Vec<ChunkId> {
        self.now_ns = now_ns;
        if self.counts.shared_now == 0 || now_ns < self.look_ns {
            return Vec::new();
        }
        self.look_ns = now_ns + LOOK_NS;
        let is_quiet = |chunk: &Chunk| {
            chunk.state == State::Shared
                && chunk.away == 0
                && now_ns.saturating_sub(chunk.since_ns) >= chunk.wait_ns()
        };
        let mut found = Vec::new();
        let mut next = ChunkId(0);
        for (looked, (id, chunk)) in self.known.range(self.cursor..).enumerate() {
            if looked == LOOKS || found.len() == SETTLES {
                next = *id;
                break;
            }
            if is_quiet(chunk) {
                found.push(*id);
            }
        }
        self.cursor = next;
        found
    }

    /// A quiet chunk becomes private. False if the mapping has too many parts for that.
    pub(crate) fn settle(&mut self, id: ChunkId) -> bool {
        let Some(chunk) = self.known.get(&id).copied().filter(|_| self.is_shared(id)) else {
            return false;
        };
        if !self.has_room(id) {
            self.counts.kept_for_maps += 1;
            self.postpone(id);
            return false;
        }
        let state = State::PrivateAgain;
        self.set(id, Chunk { state, unmapped: false, since_ns: self.now_ns, ..chunk });
        self.counts.private_again += 1;
        self.counts.shared_now -= 1;
        true
    }

    /// True if the mapping has parts enough for a chunk to become private.
    fn has_room(&self, id: ChunkId) -> bool {
        let more = self.seams_with(id, Some(State::PrivateAgain));
        self.seams + more <= self.seams_max + self.seams_with(id, self.state(id))
    }

    /// A chunk of another home becomes private: all its pages are here, and nobody else has one. False if the
    /// mapping has too many parts for that.
    pub(crate) fn exclusive_grant(&mut self, id: ChunkId) -> bool {
        if !self.may_grant(id) || !self.has_room(id) {
            return false;
        }
        self.counts.exclusive_grants += 1;
        self.make_private(id);
        true
    }

    /// Nobody else uses any of these chunks (ranges of their numbers). Gives back those that were shared: they are
    /// private from now on.
    pub(crate) fn settle_all(&mut self, all: &[Range<u64>]) -> Vec<ChunkId> {
        let ids = all.iter().cloned().flatten().map(ChunkId);
        let shared: Vec<ChunkId> = ids.filter(|id| !self.is_private(*id)).collect();
        for id in &shared {
            self.make_private(*id);
        }
        self.counts.private_again += u64::try_from(shared.len()).unwrap_or(u64::MAX);
        shared
    }

    /// A chunk is private whose pages are all here.
    fn make_private(&mut self, id: ChunkId) {
        for gfn in id.frames().map(Gfn) {
            self.away.remove(gfn);
        }
        let before = self.known.get(&id).copied();
        self.counts.shared_now -= u64::from(before.is_some());
        let doublings = before.map_or(0, |chunk| chunk.doublings);
        let (state, since_ns) = (State::PrivateAgain, self.now_ns);
        self.set(id, Chunk { state, away: 0, doublings, unmapped: false, since_ns });
    }

    /// A quiet chunk stays shared for now.
    pub(crate) fn postpone(&mut self, id: ChunkId) {
        if let Some(chunk) = self.known.get_mut(&id) {
            chunk.since_ns = self.now_ns;
        }
    }
}

#[cfg(test)]
mod tests;
