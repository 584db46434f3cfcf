//! Memory whose contents are to be read as they are at one moment, while the guest runs on: copy-on-write by write protection.
//!
//! ```text
//!   open --begin_protection--> protecting --protect_on: a few chunks a turn--> protected: stores are noted
//!                                  ^--- until the moment: the pages that were stored to since ---|
//!                                                                                  |  freeze: all at rest
//!   open <--unprotect_on: a few chunks a turn, as they have been read-- frozen: stores copy the page first
//! ```
//! To protect a page takes time, and KVM drops its own mapping of it. So all is protected before the moment, while the guest
//! runs; what it stores to meanwhile is noted, and is protected once more at the moment. How long that takes depends on what
//! the guest stores to in this short time, and not on how much memory there is. To keep that short, what was stored to is
//! protected again, twice before all counts as protected, and from then on every 10 ms until the moment: another slice may have
//! more memory, or a slower disk.
//!
//! * A page of a shared chunk that the guest may write is made read-only, as one that others may read ([`Store::readable`]).
//! * A private chunk is watched for stores only, and stays private. If it lies off the file its pages are copied and
//!   given back all at once, so that its huge page stays whole.
//! * Replicas of page tables stay writable. They are copied at the moment.
//!
//! Meanwhile no chunk becomes private: its watch would end.
//!
//! [`super::protection`] knows how far it is.

use super::protection::Protection;
use super::store::Store;
use crate::error::EngineError;
use crate::kernel::FaultWatch;
use crate::memory::{ChunkId, Place};
use crate::planted::PlantedBug;
use crate::prefetch::PageRun;
use crate::snapshot::{Frozen, SnapshotLost};
use dsm_protocol::{Access, Gfn};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = 4096;
/// Chunks, or parts of one, that are protected in one turn of the engine: some 100 us.
const PIECES: usize = 4;

/// What the protocol says of pages.
pub(crate) type Accesses<'a> = &'a dyn Fn(Gfn) -> Access;

impl Store {
    /// Begins to protect all memory. False if that is so already.
    pub(crate) fn begin_protection(&mut self) -> bool {
        if self.protection.is_some() {
            return false;
        }
        let memory = self.memory();
        let pieces = memory.iter().flat_map(|range| {
            ChunkId::pieces(Gfn(range.start), range.end - range.start).map(|(_, piece)| piece)
        });
        self.protection = Some(Protection::new(pieces.collect()));
        true
    }

    /// Protects a little more; all of it if `all`.
    pub(crate) fn protect_on(
        &mut self,
        all: bool,
        access: Accesses<'_>,
    ) -> Result<(), EngineError> {
        for _ in 0..if all { usize::MAX } else { PIECES } {
            let Some(protection) = &mut self.protection else { return Ok(()) };
            let Some(piece) = protection.open.pop_front() else {
                return if all { Ok(()) } else { self.protect_again(access) };
            };
            protection.protected.push_back(piece.clone());
            self.protect_piece(&piece, access)?;
        }
        Ok(())
    }

    /// Protects pages again that were stored to, a few of them, before the moment.
    fn protect_again(&mut self, access: Accesses<'_>) -> Result<(), EngineError> {
        let Some(protection) = &mut self.protection else { return Ok(()) };
        let pages = protection.take_again();
        self.protect_list(pages, access)
    }

    /// Protects pages that were protected before, ascending.
    fn protect_list(&mut self, pages: Vec<Gfn>, access: Accesses<'_>) -> Result<(), EngineError> {
        let (private, shared): (Vec<_>, Vec<_>) =
            pages.into_iter().partition(|gfn| self.is_private(*gfn));
        let (whole, private): (Vec<_>, Vec<_>) = private
            .into_iter()
            .partition(|gfn| self.ram.place(ChunkId::of(*gfn)) == Place::OffFile);
        let whole: BTreeSet<ChunkId> = whole.into_iter().map(ChunkId::of).collect();
        let runs = PageRun::gather(private.into_iter().map(|gfn| (gfn, true)));
        let pieces = runs.iter().flat_map(|run| ChunkId::pieces(run.first, run.pages));
        let pieces = pieces.map(|(_, piece)| piece);
        for piece in whole.into_iter().map(ChunkId::frames).chain(pieces) {
            let bytes = (piece.end - piece.start) * PAGE;
            self.uffd.protect(self.address(Gfn(piece.start)), bytes, true)?;
        }
        self.protect_pages(shared.into_iter(), access)
    }

    fn is_private(&self, gfn: Gfn) -> bool {
        self.is_alone || self.chunks.is_private(ChunkId::of(gfn))
    }

    fn protect_piece(
        &mut self,
        piece: &Range<u64>,
        access: Accesses<'_>,
    ) -> Result<(), EngineError> {
        let (first, bytes) = (Gfn(piece.start), (piece.end - piece.start) * PAGE);
        if !self.is_private(first) {
            return self.protect_pages(piece.clone().map(Gfn), access);
        }
        let (chunk, address) = (ChunkId::of(first), self.address(first));
        self.loaded(chunk)?;
        let place = self.ram.place(chunk);
        if matches!(place, Place::Plain | Place::Huge) {
            self.ram.set_place(chunk, Place::Watched);
            self.protection.iter_mut().for_each(|at| {
                at.held.insert(chunk);
            });
        }
        self.uffd.register(address, bytes, FaultWatch::Writes)?;
        Ok(self.uffd.protect(address, bytes, true)?)
    }

    /// Protects those of these pages of shared chunks that the guest may write, but for replicas.
    fn protect_pages(
        &mut self,
        pages: impl Iterator<Item = Gfn>,
        access: Accesses<'_>,
    ) -> Result<(), EngineError> {
        let twins = &self.twins;
        let writable =
            pages.filter(|gfn| access(*gfn) == Access::Write && twins.page(*gfn).is_none());
        for run in PageRun::gather(writable.map(|gfn| (gfn, true))) {
            self.uffd.protect(self.address(run.first), run.pages * PAGE, true)?;
            self.readable.extend((run.first.0..run.first.0 + run.pages).map(Gfn));
        }
        Ok(())
    }

    /// All slices are at rest: from now on each of these pages is copied before it changes; those of `at_once` are now.
    pub(crate) fn freeze(
        &mut self,
        frozen: Arc<Frozen>,
        at_once: &[Gfn],
        access: Accesses<'_>,
    ) -> Result<(), EngineError> {
        self.write_staged()?;
        self.protect_on(true, access)?;
        let Some(protection) = &mut self.protection else { return Ok(()) };
        let mut list = std::mem::take(&mut protection.list);
        list.append(&mut protection.again);
        list.sort_unstable();
        list.dedup();
        at_once.iter().for_each(|gfn| frozen.keep(*gfn));
        protection.frozen = Some(frozen);
        if self.has_bug(PlantedBug::WrittenUnprotected) {
            return Ok(());
        }
        self.protect_list(list, access)
    }

    /// A page is about to change, or to go, or the guest is about to be able to store to it.
    pub(crate) fn about_to_change(&mut self, gfn: Gfn) {
        let Some(protection) = &mut self.protection else { return };
        match &protection.frozen {
            None => protection.note(gfn),
            Some(frozen) => frozen.keep(gfn),
        }
    }

    fn all_about_to_change(&mut self, frames: Range<u64>) {
        frames.for_each(|gfn| self.about_to_change(Gfn(gfn)));
    }

    /// The guest is about to get these pages, perhaps to write them.
    pub(super) fn about_to_be_written(&mut self, run: PageRun) {
        if run.writable && self.protection.is_some() {
            self.all_about_to_change(run.first.0..run.first.0 + run.pages);
        }
    }

    /// Another slice is about to get a page, or this one loses it.
    pub(super) fn about_to_go(&mut self, gfn: Gfn) {
        if !self.has_bug(PlantedBug::TakenUnkept) {
            self.about_to_change(gfn);
        }
    }

    /// Whether a store to this page, which the guest may write as far as the protocol is concerned, is held up here.
    pub(crate) fn is_protected(&self, gfn: Gfn) -> bool {
        let covered = self.protection.as_ref().is_some_and(|at| at.covers(gfn));
        covered && (self.is_private(gfn) || self.readable.contains(gfn))
    }

    /// The guest stores to a protected page. It may go on at once, or once there is room for a copy.
    pub(crate) fn release(&mut self, gfn: Gfn) -> Result<(), EngineError> {
        let Some(protection) = &mut self.protection else { return Ok(()) };
        if protection.frozen.as_ref().is_some_and(|frozen| frozen.is_full()) {
            protection.waiting.push(gfn);
            return Ok(());
        }
        self.open_page(gfn)
    }

    /// The VMM is about to store to a page, through the alias.
    pub(crate) fn before_store(&mut self, gfn: Gfn) -> Result<(), EngineError> {
        if self.is_protected(gfn) {
            return self.open_page(gfn);
        }
        self.about_to_change(gfn);
        Ok(())
    }

    /// Gives a page back to the guest, and its copy to the reader.
    fn open_page(&mut self, gfn: Gfn) -> Result<(), EngineError> {
        let chunk = ChunkId::of(gfn);
        let whole = self.is_private(gfn) && self.ram.place(chunk) == Place::OffFile;
        let pages = if whole { chunk.frames() } else { gfn.0..gfn.0 + 1 };
        if !self.has_bug(PlantedBug::StoredUnkept) {
            self.all_about_to_change(pages.clone());
        }
        self.readable.remove(gfn);
        let bytes = (pages.end - pages.start) * PAGE;
        Ok(self.uffd.protect(self.address(Gfn(pages.start)), bytes, false)?)
    }

    /// A private chunk that lies off the file is about to be brought into it.
    pub(super) fn before_move(&mut self, chunk: ChunkId) {
        if self.protection.is_some() {
            self.all_about_to_change(chunk.frames());
        }
    }

    /// Nobody is to read, or go on reading.
    pub(crate) fn end_protection(&mut self) {
        if let Some(protection) = &mut self.protection {
            protection.open.clear();
            protection.over = true;
        }
    }

    /// Stores that wait go on when there is room for copies.
    pub(crate) fn stores_go_on(&mut self, now_ns: u64) -> Result<(), EngineError> {
        let Some(protection) = &mut self.protection else { return Ok(()) };
        protection.look_how_long_stores_wait(now_ns);
        let has_room = protection.frozen.as_ref().is_none_or(|frozen| !frozen.is_full());
        let waiting = if has_room { std::mem::take(&mut protection.waiting) } else { Vec::new() };
        if has_room {
            protection.since_ns = None;
        }
        for gfn in waiting {
            if self.is_protected(gfn) {
                self.open_page(gfn)?;
            } else {
                self.uffd.wake(self.address(gfn), PAGE)?;
            }
        }
        Ok(())
    }

    /// Gives back what has been read, a little at a time.
    pub(crate) fn unprotect_on(&mut self, access: Accesses<'_>) -> Result<(), EngineError> {
        let Some(protection) = &mut self.protection else { return Ok(()) };
        let below = match &protection.frozen {
            Some(frozen) if !protection.over => frozen.read_below(),
            _ if protection.over => u64::MAX,
            _ => return Ok(()),
        };
        if below == u64::MAX {
            protection.over = true;
        }
        for _ in 0..PIECES {
            let Some(protection) = &mut self.protection else { return Ok(()) };
            let done = |piece: &mut Range<u64>| piece.end <= below;
            let Some(piece) = protection.protected.pop_front_if(done) else { break };
            self.unprotect_piece(&piece, access)?;
        }
        self.protection.take_if(|at| at.over && at.protected.is_empty());
        Ok(())
    }

    fn unprotect_piece(
        &mut self,
        piece: &Range<u64>,
        access: Accesses<'_>,
    ) -> Result<(), EngineError> {
        let first = Gfn(piece.start);
        if self.is_private(first) {
            let chunk = ChunkId::of(first);
            let bytes = (piece.end - piece.start) * PAGE;
            self.uffd.unregister(self.address(first), bytes)?;
            if self.protection.as_mut().is_some_and(|at| at.held.remove(&chunk)) {
                self.map_unwatched(chunk);
                self.ram.set_place(chunk, Place::Plain);
            }
            return Ok(());
        }
        let writable = |gfn: &Gfn| {
            self.readable.contains(*gfn)
                && access(*gfn) == Access::Write
                && self.twins.page(*gfn).is_none()
        };
        let runs = PageRun::gather(piece.clone().map(Gfn).filter(writable).map(|gfn| (gfn, true)));
        for run in runs {
            self.uffd.protect(self.address(run.first), run.pages * PAGE, false)?;
            (run.first.0..run.first.0 + run.pages).for_each(|gfn| {
                self.readable.remove(Gfn(gfn));
            });
        }
        Ok(())
    }

    /// No touch of guest memory is told any more. What was not read may change from now on.
    pub(super) fn spoil_snapshot(&mut self) {
        if let Some(frozen) = self.protection.take().and_then(|at| at.frozen) {
            frozen.spoil(SnapshotLost::Unwatched);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fake::{FakeKernel, Touch};
    use crate::memory::{GuestRam, Memory};
    use crate::snapshot::SnapshotReader;
    use dsm_protocol::{Mechanisms, PageStore, Table};
    use std::slice::from_ref;
    use std::sync::Mutex;
    use wire::{Half, Level};

    /// Two chunks of this slice, of which the second is a part.
    const FRAMES: Range<u64> = 0..700;

    fn store(memory: Memory) -> (Store, FakeKernel) {
        let made = Mutex::new(None);
        let frames = from_ref(&FRAMES);
        let ram = GuestRam::with_mapping(frames, frames, memory, |span, file| {
            let kernel = FakeKernel::new(span, file, 1, 0)?;
            *made.lock().unwrap() = Some(kernel.clone());
            Ok(Box::new(kernel))
        });
        let ram = Arc::new(ram.unwrap());
        let uffd = ram.userfaultfd().unwrap();
        let store = Store::new(uffd, ram, frames, &[], Mechanisms::ALL).unwrap();
        (store, made.into_inner().unwrap().unwrap())
    }

    fn freeze(store: &mut Store) -> SnapshotReader {
        let frozen = Arc::new(Frozen::new(Arc::clone(&store.ram), from_ref(&FRAMES), FRAMES.end));
        store.freeze(Arc::clone(&frozen), &[], &|_| Access::Write).unwrap();
        SnapshotReader::new(frozen, from_ref(&FRAMES))
    }

    fn read(reader: &mut SnapshotReader, frame: u64) -> u8 {
        let (mut bytes, mut found) = (Vec::new(), 0);
        while let Some(first) = reader.next(&mut bytes).unwrap() {
            let at = frame.checked_sub(first.0).and_then(|pages| usize::try_from(pages).ok());
            found |= at.and_then(|pages| bytes.get(pages * 4096).copied()).unwrap_or(0);
        }
        found
    }

    /// A huge page of hugetlbfs is protected as a whole or not at all.
    #[test]
    fn chunk_off_the_file_is_given_back_and_protected_as_a_whole() {
        let (mut store, kernel) = store(Memory::Anonymous);
        let is_writable = |page| kernel.touch(page, 0, page, true) == Touch::Done;
        assert!(store.begin_protection());
        store.protect_on(true, &|_| Access::Write).unwrap();
        assert!(!is_writable(3) && store.is_protected(Gfn(3)));
        store.release(Gfn(3)).unwrap();
        assert!(is_writable(3) && is_writable(511));

        store.protect_on(false, &|_| Access::Write).unwrap();
        assert!(![3, 200, 400, 511].into_iter().any(is_writable));
    }

    /// Another slice may take long. Meanwhile a store waits for one turn of the engine, and not until the moment.
    #[test]
    fn stores_go_on_while_another_slice_is_not_ready() {
        let (mut store, kernel) = store(Memory::Anonymous);
        assert!(store.begin_protection());
        let mut now_ns = 0;
        let mut turn = |store: &mut Store| {
            now_ns += 100_000;
            if store.protection.as_ref().is_some_and(|at| at.next_ns() <= now_ns) {
                store.protect_on(false, &|_| Access::Write).unwrap();
                store.protection.iter_mut().for_each(|at| at.rest_after(now_ns, now_ns + 1));
            }
        };
        (0..10).for_each(|_| turn(&mut store));
        let stores = (0..1000).filter(|_| {
            store.release(Gfn(3)).unwrap();
            turn(&mut store);
            kernel.touch(3, 0, 3, true) == Touch::Done
        });
        assert!(stores.count() > 900);
        let protection = store.protection.as_ref().unwrap();
        assert!(protection.is_complete() && protection.upkeep > 0);
    }

    #[test]
    fn chunk_off_the_file_that_is_stored_to_is_read_as_it_was() {
        let (mut store, _kernel) = store(Memory::Anonymous);
        let was = |page: u64| u8::try_from(page % 251 + 1).unwrap();
        (0..700).for_each(|page| store.ram.write(Gfn(page), 0, &[was(page)]));
        assert!(store.begin_protection());
        store.protect_on(true, &|_| Access::Write).unwrap();
        let mut reader = freeze(&mut store);
        store.release(Gfn(3)).unwrap();
        (0..512).for_each(|page| store.ram.write(Gfn(page), 0, &[0xff]));

        let (mut bytes, mut read) = (Vec::new(), Vec::new());
        while let Some(first) = reader.next(&mut bytes).unwrap() {
            assert!(bytes.len() <= 256 << 10);
            read.extend((first.0..).zip(bytes.chunks(4096).map(|page| page[0])));
        }
        read.sort_unstable();
        assert_eq!(read, (0..700).map(|page| (page, was(page))).collect::<Vec<_>>());
    }

    #[test]
    fn replica_that_ends_before_the_moment_is_protected_at_it() {
        let (mut store, kernel) = store(Memory::Memfd);
        let (gfn, page) = (Gfn(600), 600);
        store.ram.write(gfn, 0, &[7]);
        let table = Table { level: Level::ROOT, half: Half::Kernel };
        store.with_body(None).snapshot(gfn, table);
        store.map_run(PageRun { first: gfn, pages: 1, writable: true }).unwrap();
        assert!(store.begin_protection());
        store.protect_on(true, &|_| Access::Write).unwrap();
        assert_eq!(kernel.touch(0, 0, page, true), Touch::Done, "a replica stays writable");

        store.with_body(None).forget(gfn);
        let mut reader = freeze(&mut store);

        assert_eq!(kernel.touch(0, 0, page, true), Touch::Waits);
        assert!(store.is_protected(gfn));
        store.release(gfn).unwrap();
        store.ram.write(gfn, 0, &[8]);
        assert_eq!(read(&mut reader, gfn.0), 7);
    }
}
