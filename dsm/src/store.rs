//! The protocol's port to guest memory: userfaultfd and the two mappings.
//!
//! Chunks of this slice's home stay unwatched until another slice asks for one of their pages, see
//! [`crate::chunks`]: memory that only its home uses costs nothing.

use crate::ahead::{Ahead, Run};
use crate::arrivals::Arrivals;
use crate::asked::Asked;
use crate::chunks::{ChunkId, Chunks};
use crate::error::EngineError;
use crate::mapping::{Installed, Uffd};
use crate::planted::PlantedBug;
use crate::ram::GuestRam;
use crate::share;
use crate::takings::{Taken, Taking, Takings};
use crate::whole::Whole;
use dsm_protocol::PageSet;
use dsm_protocol::entry::{ACCESSED_DIRTY, DIRTY, permits_clean_write, target};
use dsm_protocol::foresight::Habits;
use dsm_protocol::{Access, Entry, Gfn, Merge, PageStore, Table};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::{PAGE_SIZE, PageBody};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: u64 = 4096;

/// Entries compared at a time.
const ROW: usize = 8;

/// A replica as it was at the last flush.
#[derive(Debug)]
pub(crate) struct Twin {
    table: Table,
    entries: Box<[u64; 512]>,
}

/// Guest memory as the protocol sees it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) uffd: Uffd,
    pub(crate) ram: Arc<GuestRam>,
    /// Chunks of this slice's home.
    pub(crate) chunks: Chunks,
    pub(crate) twins: BTreeMap<Gfn, Twin>,
    /// Pages mapped without write access: giving it takes one call.
    pub(crate) readable: PageSet,
    /// Pages whose guest mapping is read-only so that a worker fails, see `workers`.
    pub(crate) asked: Asked,
    /// Pages fetched before they were touched.
    pub(crate) ahead: Ahead,
    /// Chunks that are fetched to be mapped as a whole.
    pub(crate) whole: Whole,
    /// Pages that have come and are not in the file yet.
    arrivals: RefCell<Arrivals>,
    /// What this slice did with pages that came.
    pub(crate) habits: Habits,
    /// Access that the step in hand has taken away.
    takings: Takings,
    failure: Option<EngineError>,
    /// A vCPU was just given a chunk that it waited for, and more is on its way.
    pub(crate) provided: bool,
    #[cfg(feature = "simulate")]
    pub(crate) planted: Option<PlantedBug>,
}

impl Store {
    /// What is left of it: those who wait for pages wait on it.
    pub(crate) fn into_uffd(self) -> Uffd {
        self.uffd
    }

    /// Watches everything whose home is elsewhere.
    pub(crate) fn new(
        uffd: Uffd,
        ram: Arc<GuestRam>,
        own: &[Range<u64>],
        others: &[Range<u64>],
    ) -> Result<Self, EngineError> {
        let chunks = share::watch_at_start(&uffd, &ram, own, others)?;
        let end = share::end_of(&ram);
        Ok(Self {
            uffd,
            ram,
            chunks,
            twins: BTreeMap::new(),
            readable: PageSet::new(end),
            asked: Asked::default(),
            ahead: Ahead::default(),
            whole: Whole::default(),
            arrivals: RefCell::default(),
            habits: Habits::default(),
            takings: Takings::default(),
            failure: None,
            provided: false,
            #[cfg(feature = "simulate")]
            planted: None,
        })
    }

    /// Whether the simulator has planted a bug.
    #[cfg(feature = "simulate")]
    pub(crate) fn has_bug(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }

    #[cfg(not(feature = "simulate"))]
    #[expect(clippy::unused_self, reason = "the simulator's looks")]
    pub(crate) const fn has_bug(&self, _: PlantedBug) -> bool {
        false
    }

    /// The first call that failed, once.
    pub(crate) fn take_failure(&mut self) -> Option<EngineError> {
        self.failure.take()
    }

    /// The store together with the body of the message in hand.
    pub(crate) fn with_body<'a>(&'a mut self, body: Option<PageBody<'a>>) -> StepStore<'a> {
        StepStore { store: self, body }
    }

    pub(crate) fn note(&mut self, result: Result<(), EngineError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    pub(crate) fn address(&self, gfn: Gfn) -> u64 {
        self.ram.guest_address(gfn).expect("the protocol checks frames")
    }

    /// Makes workers that wait for this page fail.
    pub(crate) fn ask(&mut self, gfn: Gfn) -> Result<(), EngineError> {
        if !self.asked.contains(gfn) {
            if let Some(oldest) = self.asked.push(gfn) {
                self.set_writable(oldest, true)?;
            }
            self.set_writable(gfn, false)?;
        }
        Ok(self.uffd.wake(self.address(gfn), PAGE)?)
    }

    /// Ends that; tells whether it was so.
    pub(crate) fn answer(&mut self, gfn: Gfn) -> Result<bool, EngineError> {
        let asked = self.asked.remove(gfn);
        if asked && !self.has_bug(PlantedBug::NeverAnswered) {
            self.set_writable(gfn, true)?;
        }
        Ok(asked)
    }

    /// Ends it for pages that can be read for a while.
    pub(crate) fn answer_expired(&mut self, now_ns: u64) -> Result<(), EngineError> {
        let expired = self.asked.expired(now_ns);
        expired.into_iter().try_for_each(|gfn| self.set_writable(gfn, true))
    }

    fn set_writable(&self, gfn: Gfn, on: bool) -> Result<(), EngineError> {
        self.ram.set_writable(gfn, on).map_err(|source| EngineError::Access { gfn, source })
    }

    /// Brings pages that have come into the file. Whoever looks at contents calls this first.
    pub(crate) fn write_arrivals(&self) -> Result<(), EngineError> {
        self.arrivals.borrow_mut().write(&self.ram).map_err(EngineError::Fill)
    }

    /// Hash of a page's contents as they are now.
    fn hash(&self, gfn: Gfn) -> u64 {
        hash(up_to_date(&self.ram, &self.arrivals), gfn)
    }

    /// The contents of a page have come.
    fn fill(&mut self, gfn: Gfn, body: Option<PageBody<'_>>) -> Result<(), EngineError> {
        match body {
            // It is there.
            Some(PageBody::Placed) => {}
            Some(body) if self.is_ahead(gfn) && self.ram.is_new(gfn) => {
                let page: &[u8] = match &body {
                    PageBody::Bytes(bytes) => bytes,
                    PageBody::Zero | PageBody::Placed => &[0; PAGE_SIZE],
                };
                let mut arrivals = self.arrivals.borrow_mut();
                return arrivals.push(&self.ram, gfn, page).map_err(EngineError::Fill);
            }
            Some(PageBody::Bytes(bytes)) => self.ram.write(gfn, 0, bytes),
            Some(PageBody::Zero) if self.ram.is_hole(gfn) => self.ram.back(gfn),
            _ => self.ram.clear(gfn),
        }
        self.ram.note_had(gfn);
        Ok(())
    }

    /// True for a page that was asked for before anybody touched it.
    fn is_ahead(&self, gfn: Gfn) -> bool {
        self.ahead.is_untouched(gfn) || self.whole.contains(gfn)
    }

    /// The page is about to be taken away, or its write access.
    fn before_recall(&mut self, gfn: Gfn) {
        if self.whole.recalled(gfn) && !self.has_bug(PlantedBug::WaiterForgotten) {
            // Whoever waits for it asks again.
            let woken = self.uffd.wake(self.address(gfn), PAGE);
            self.note(woken.map_err(EngineError::from));
        }
        let pending = self.ahead.recalled(gfn);
        if self.has_bug(PlantedBug::ArrivalsLost) {
            return;
        }
        let result = if pending { self.map_pending() } else { self.write_arrivals() };
        self.note(result);
    }

    /// Carries out what was put off.
    fn take_away(&mut self) -> Result<(), EngineError> {
        if self.takings.is_empty() {
            return Ok(());
        }
        let runs = self.takings.take();
        for run in &runs {
            ChunkId::pieces(run.first, run.pages).for_each(|(chunk, _)| self.watch(chunk));
            // By themselves: each waits for memory, and so they wait together.
            run.iter().for_each(|gfn| self.ram.back(gfn));
            self.take_run(*run)?;
            self.chunks.took(run.first, run.pages);
            run.iter().for_each(|gfn| self.goes(gfn));
        }
        self.takings.recycle(runs);
        Ok(())
    }

    /// Frames that follow one another may lie in different blocks of memory: then one by one.
    fn take_run(&self, run: Taken) -> Result<(), EngineError> {
        let last = Gfn(run.first.0 + run.pages - 1);
        let (start, bytes) = (self.address(run.first), run.pages * PAGE);
        if self.address(last) != start + bytes - PAGE {
            return run
                .iter()
                .try_for_each(|gfn| self.take_run(Taken { first: gfn, pages: 1, what: run.what }));
        }
        match run.what {
            Taking::Write => Ok(self.uffd.protect(start, bytes, true)?),
            Taking::All => {
                let zapped = self.ram.zap(run.first, run.pages);
                zapped.map_err(|source| EngineError::Zap { gfn: run.first, source })
            }
        }
    }

    /// The page can no longer be written through the guest's mapping.
    fn goes(&mut self, gfn: Gfn) {
        self.habits.goes(gfn, || hash(&self.ram, gfn));
    }

    fn try_map(&mut self, gfn: Gfn, access: Access) -> Result<(), EngineError> {
        self.take_away()?;
        match access {
            Access::Write => {
                self.answer(gfn)?;
                let Self { habits, arrivals, ram, .. } = self;
                habits.came(gfn, || hash(up_to_date(ram, arrivals), gfn));
            }
            _ => self.asked.readable(gfn),
        }
        if self.map_with_chunk(gfn, access)? || !self.ahead.maps_now(gfn, access == Access::Write) {
            return Ok(());
        }
        self.map_now(gfn, access)
    }

    /// Maps pages that were fetched ahead and have arrived.
    pub(crate) fn map_pending(&mut self) -> Result<(), EngineError> {
        self.write_arrivals()?;
        let runs = self.ahead.take();
        runs.into_iter().try_for_each(|run| self.map_run(run))
    }

    pub(crate) fn map_run(&mut self, run: Run) -> Result<(), EngineError> {
        let (start, bytes) = (self.address(run.first), run.pages * PAGE);
        let mut whole = false;
        if run.pages > 1 && self.is_watched(run) {
            match self.uffd.install(start, bytes, run.writable)? {
                Installed::Done => whole = true,
                Installed::Parted if self.has_bug(PlantedBug::RunOverParts) => {
                    return Err(EngineError::CannotMap { gfn: run.first });
                }
                Installed::Parted => {
                    let half = run.pages / 2;
                    self.map_run(Run { pages: half, ..run })?;
                    let first = Gfn(run.first.0 + half);
                    return self.map_run(Run { first, pages: run.pages - half, ..run });
                }
                Installed::Absent | Installed::Mapped => {}
            }
        }
        let mut pages = (run.first.0..run.first.0 + run.pages).map(Gfn);
        let access = if run.writable { Access::Write } else { Access::Read };
        if !whole {
            pages.try_for_each(|gfn| self.map_now(gfn, access))?;
        } else if run.writable {
            pages.for_each(|gfn| self.chunks.gave(gfn));
        } else {
            self.readable.extend(pages);
        }
        Ok(())
    }

    /// True when userfaultfd knows all pages of a run, and none is mapped read-only.
    fn is_watched(&self, run: Run) -> bool {
        let mut pages = (run.first.0..run.first.0 + run.pages).map(Gfn);
        pages.all(|gfn| !self.chunks.is_private(ChunkId::of(gfn)) && !self.readable.contains(gfn))
    }

    fn map_now(&mut self, gfn: Gfn, access: Access) -> Result<(), EngineError> {
        let writable = access == Access::Write;
        if self.chunks.is_private(ChunkId::of(gfn)) {
            return Ok(());
        }
        if writable {
            self.chunks.gave(gfn);
        }
        self.map_watched(gfn, writable)?;
        self.map_rest(ChunkId::of(gfn))
    }

    fn map_watched(&mut self, gfn: Gfn, writable: bool) -> Result<(), EngineError> {
        let address = self.address(gfn);
        if writable && self.readable.remove(gfn) {
            // It wakes the waiters too. Should the mapping be gone, they fault again.
            return Ok(self.uffd.protect(address, PAGE, false)?);
        }
        if !writable {
            self.readable.insert(gfn);
        }
        for _ in 0..3 {
            match self.uffd.install(address, PAGE, writable)? {
                Installed::Done => return Ok(()),
                // One page is of one part; it is tried again, a bounded number of times.
                Installed::Parted => {}
                Installed::Absent => self.ram.back(gfn),
                Installed::Mapped => {
                    self.uffd.protect(address, PAGE, !writable)?;
                    self.uffd.wake(address, PAGE)?;
                    return Ok(());
                }
            }
        }
        Err(EngineError::CannotMap { gfn })
    }
}

/// Guest memory with all that has come. What cannot be written now is tried again at the end of the batch,
/// and fails there.
fn up_to_date<'a>(ram: &'a GuestRam, arrivals: &RefCell<Arrivals>) -> &'a GuestRam {
    if let Err(error) = arrivals.borrow_mut().write(ram) {
        tracing::error!("pages that came cannot be kept: {error}");
    }
    ram
}

/// Hash of a page's contents.
fn hash(ram: &GuestRam, gfn: Gfn) -> u64 {
    let mut bytes = [0; PAGE_SIZE];
    ram.read(gfn, 0, &mut bytes);
    xxh3_64(&bytes)
}

/// What a step works on.
#[derive(Debug)]
pub(crate) struct StepStore<'a> {
    store: &'a mut Store,
    body: Option<PageBody<'a>>,
}

impl PageStore for StepStore<'_> {
    fn fill(&mut self, gfn: Gfn) {
        let result = self.store.fill(gfn, self.body);
        self.store.note(result);
    }

    fn map(&mut self, gfn: Gfn, access: Access) {
        let result = self.store.try_map(gfn, access);
        self.store.note(result);
    }

    fn protect(&mut self, gfn: Gfn) {
        self.store.before_recall(gfn);
        self.store.readable.insert(gfn);
        self.store.takings.push(gfn, Taking::Write);
    }

    fn unmap(&mut self, gfn: Gfn) {
        self.store.before_recall(gfn);
        self.store.readable.remove(gfn);
        self.store.takings.push(gfn, Taking::All);
    }

    fn settle(&mut self) {
        if self.store.has_bug(PlantedBug::TakenLate) {
            return;
        }
        let result = self.store.take_away();
        self.store.note(result);
    }

    fn fingerprint(&self, gfn: Gfn) -> u64 {
        self.store.hash(gfn)
    }

    fn is_untouched(&self, gfn: Gfn) -> bool {
        self.store.ram.is_untouched(gfn)
    }

    fn snapshot(&mut self, gfn: Gfn, table: Table) {
        let page = up_to_date(&self.store.ram, &self.store.arrivals).entries(gfn);
        let entries = Box::new(std::array::from_fn(|at| page[at].load(Ordering::Relaxed)));
        self.store.twins.insert(gfn, Twin { table, entries });
        self.set_dirty(gfn);
    }

    fn set_dirty(&mut self, gfn: Gfn) {
        let page = self.store.ram.entries(gfn);
        let Some(Twin { table, entries }) = self.store.twins.get_mut(&gfn) else { return };
        for (entry, twin) in page.iter().zip(entries.iter_mut()) {
            let value = entry.load(Ordering::Acquire);
            if permits_clean_write(*table, value) {
                // Nobody else stores here now.
                entry.fetch_or(DIRTY, Ordering::AcqRel);
            }
            // What was clean stays the only difference that the next comparison need not see.
            if permits_clean_write(*table, *twin) {
                *twin |= DIRTY;
            }
        }
    }

    fn points_to(&self, gfn: Gfn, child: Gfn) -> bool {
        let entries = up_to_date(&self.store.ram, &self.store.arrivals).entries(gfn).iter();
        entries.map(|entry| entry.load(Ordering::Acquire)).any(|entry| target(entry) == Some(child))
    }

    fn changes(&mut self, gfn: Gfn, out: &mut Vec<Entry>) -> bool {
        let page = self.store.ram.entries(gfn);
        let Some(Twin { table, entries }) = self.store.twins.get_mut(&gfn) else { return false };
        let mut clean = false;
        let rows = page.chunks_exact(ROW).zip(entries.chunks_exact_mut(ROW));
        for (row, (page, twin)) in rows.enumerate() {
            // Hardly any entry changes between two flushes: look at a row at a time.
            let pairs = page.iter().zip(twin.iter());
            if pairs.fold(0, |all, (new, old)| all | (new.load(Ordering::Relaxed) ^ old)) == 0 {
                continue;
            }
            for (column, (entry, old)) in page.iter().zip(twin).enumerate() {
                let new = entry.load(Ordering::Acquire);
                clean |= permits_clean_write(*table, new);
                if (new ^ *old) & !ACCESSED_DIRTY != 0 {
                    let index = u16::try_from(row * ROW + column).expect("512 entries");
                    out.push(Entry { gfn, index, old: *old, new });
                }
                *old = new;
            }
        }
        clean
    }

    fn merge(&mut self, entry: &Entry) -> Merge {
        let at = usize::from(entry.index);
        let page = self.store.ram.entries(entry.gfn);
        let Some(twin) = self.store.twins.get_mut(&entry.gfn) else { return Merge::Applied };
        let differ = |a: u64, b: u64| (a ^ b) & !ACCESSED_DIRTY != 0;
        let before = std::mem::replace(&mut twin.entries[at], entry.new);
        loop {
            let now = page[at].load(Ordering::Acquire);
            if differ(now, before) {
                return if differ(now, entry.new) { Merge::Conflict } else { Merge::Applied };
            }
            let swap =
                page[at].compare_exchange(now, entry.new, Ordering::AcqRel, Ordering::Relaxed);
            if swap.is_ok() {
                break;
            }
        }
        if differ(before, entry.old) && differ(before, entry.new) {
            return Merge::Conflict;
        }
        Merge::Applied
    }

    fn forget(&mut self, gfn: Gfn) {
        self.store.twins.remove(&gfn);
    }

    fn twin_entry(&self, gfn: Gfn, index: u16) -> u64 {
        self.store.twins.get(&gfn).map_or(0, |twin| twin.entries[usize::from(index)])
    }

    fn twin_entries(&self, gfn: Gfn, visit: &mut dyn FnMut(u16, u64)) {
        let Some(twin) = self.store.twins.get(&gfn) else { return };
        for (index, value) in (0u16..).zip(twin.entries.iter()) {
            if *value != 0 {
                visit(index, *value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
