//! What the vCPUs of a simulated cluster do.
//!
//! ```text
//!   frame 0        lock of the page tables
//!   frame 1        root of every vCPU
//!   frame 2        the table of level 3 that it points to
//!   frames 3..18   tables of level 2 and free pages: linked and unlinked under the lock
//!   frames 18..    data
//! ```

use super::random::Random;
use dsm_protocol::entry::DIRTY;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

pub(crate) const LOCK: u64 = 0;
pub(crate) const ROOT: u64 = 1;
pub(crate) const MIDDLE: u64 = 2;
const POOL: u64 = 15;
pub(crate) const DATA: u64 = 3 + POOL;
/// Entries of the root that may point to the middle table: a process's, or the kernel's.
pub(crate) const HALVES: [u16; 2] = [0, 256];
/// Entries that vCPUs change without a lock, to make conflicts.
pub(crate) const RACY: u16 = 400;
/// Entries of a table that hold leaves; the others hold data once the page is no table.
pub(crate) const LEAVES: std::ops::Range<u16> = 5..11;
const LARGE: u64 = 0x80;

/// The kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Any page, reads and writes alike.
    Uniform,
    /// A few pages get most of the writes.
    Hot,
    /// One slice writes, the others read.
    Producer,
    /// Page tables change under a lock while everyone walks them.
    Tables,
    /// The same, and two slices at times change one entry at once.
    Conflicts,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Uniform, Self::Hot, Self::Producer, Self::Tables, Self::Conflicts];

    pub(crate) fn has_tables(self) -> bool {
        matches!(self, Self::Tables | Self::Conflicts)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|workload| workload.to_string() == text);
        found.ok_or_else(|| format!("no workload is called {text:?}"))
    }
}

/// One step of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read(u64, u16),
    Write(u64, u16, u64),
    /// A store that the flat memory is not told of.
    Race(u64, u16, u64),
    Lock,
    Unlock,
    /// The next step is planned when the lock is held.
    Section,
    /// A walk from the root through this entry of the middle table.
    Walk(u16),
    /// The page was freed by another slice: it must be no replica.
    Free(u64),
    Release,
    /// Ask for so many pages ahead of time.
    Prefetch(u64, u16, bool),
    Pin(u64, bool),
    Unpin(u64),
}

/// Which table pages are linked where. Changed under the lock only.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Linked tables: entry of the middle table, frame.
    linked: Vec<(u16, u64)>,
    /// Free pages and who freed them.
    free: Vec<(u64, Option<u16>)>,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        Self { linked: Vec::new(), free: (MIDDLE + 1..DATA).map(|frame| (frame, None)).collect() }
    }

    /// A critical section.
    pub(crate) fn section(&mut self, slice: u16, random: &mut Random, plan: &mut VecDeque<Step>) {
        for _ in 0..=random.below(3) {
            let link = self.linked.is_empty() || random.one_in(4);
            if link && !self.free.is_empty() {
                self.link(slice, random, plan);
            } else if random.one_in(4) && !self.linked.is_empty() {
                let at = pick(random, self.linked.len());
                let (index, frame) = self.linked.swap_remove(at);
                plan.push_back(Step::Write(MIDDLE, index, 0));
                self.free.push((frame, Some(slice)));
            } else if random.one_in(3) && !self.free.is_empty() {
                let at = pick(random, self.free.len());
                let (frame, by) = self.free[at];
                self.reuse(slice, frame, by, plan);
                plan.push_back(Step::Read(frame, 3));
                plan.push_back(Step::Write(frame, 3, random.next() | 1));
            } else if !self.linked.is_empty() {
                let at = pick(random, self.linked.len());
                let (_, frame) = self.linked[at];
                let index = 5 + u16::try_from(random.below(6)).expect("small");
                plan.push_back(Step::Read(frame, index));
                plan.push_back(Step::Write(frame, index, leaf(random)));
            }
        }
    }

    /// vCPUs of one slice go on at another, in the middle of what they do.
    pub(crate) fn hand_over(&mut self, from: u16, to: u16) {
        let freed = self.free.iter_mut().filter(|(_, by)| *by == Some(from));
        freed.for_each(|(_, by)| *by = Some(to));
    }

    fn reuse(&mut self, slice: u16, frame: u64, by: Option<u16>, plan: &mut VecDeque<Step>) {
        if by.is_some_and(|by| by != slice) {
            plan.push_back(Step::Free(frame));
        }
        for (free, by) in &mut self.free {
            if *free == frame && *by != Some(slice) {
                *by = None;
            }
        }
    }

    fn link(&mut self, slice: u16, random: &mut Random, plan: &mut VecDeque<Step>) {
        let at = pick(random, self.free.len());
        let (frame, by) = self.free[at];
        self.reuse(slice, frame, by, plan);
        self.free.swap_remove(at);
        // A new table is cleared before it is linked.
        for index in [3, 5, 6, 7, 8, 9, 10, RACY] {
            plan.push_back(Step::Write(frame, index, 0));
        }
        let used = |index: &u16| self.linked.iter().any(|(taken, _)| taken == index);
        let index = (0..).find(|index| !used(index)).expect("fewer tables than entries");
        plan.push_back(Step::Write(MIDDLE, index, table(frame)));
        self.linked.push((index, frame));
    }

    fn oldest(&self) -> Option<(u16, u64)> {
        self.linked.first().copied()
    }

    /// A linked table, read without the lock.
    fn any(&self, random: &mut Random) -> Option<(u16, u64)> {
        let at = (!self.linked.is_empty()).then(|| pick(random, self.linked.len()))?;
        Some(self.linked[at])
    }
}

fn pick(random: &mut Random, len: usize) -> usize {
    usize::try_from(random.below(u64::try_from(len).expect("small"))).expect("small")
}

/// An entry that points to a table.
pub(crate) fn table(frame: u64) -> u64 {
    frame << 12 | 0x63
}

/// An entry that points to no table, dirty or not.
fn leaf(random: &mut Random) -> u64 {
    let dirty = if random.one_in(3) { 0 } else { DIRTY };
    random.below(1 << 20) << 12 | LARGE | 0x23 | dirty
}

/// What a vCPU does next.
pub(crate) fn plan(
    workload: Workload,
    slice: u16,
    frames: u64,
    kernel: &Kernel,
    random: &mut Random,
    plan: &mut VecDeque<Step>,
) {
    if workload.has_tables() && random.one_in(3) {
        tables(workload, kernel, random, plan);
        return;
    }
    let spread = frames - DATA;
    let frame = DATA
        + match workload {
            Workload::Hot | Workload::Tables | Workload::Conflicts if !random.one_in(8) => {
                random.below(3)
            }
            _ => random.below(spread),
        };
    let index = u16::try_from(random.below(3)).expect("small");
    let write = match workload {
        Workload::Producer => u64::from(slice) == frame % 3,
        _ => random.one_in(2),
    };
    match random.below(20) {
        0 => {
            plan.push_back(Step::Pin(frame, write));
            plan.push_back(Step::Read(frame, index));
            plan.push_back(Step::Unpin(frame));
        }
        1 => plan.push_back(Step::Release),
        2 => {
            // Frames of tables as well, which this slice may not know as such.
            let tables = workload.has_tables() && random.one_in(2);
            let first = if tables { MIDDLE + random.below(DATA - MIDDLE) } else { frame };
            let pages = u16::try_from(4.min(frames - first)).expect("small");
            plan.push_back(Step::Prefetch(first, pages, write));
        }
        _ if write => plan.push_back(Step::Write(frame, index, random.next() | 1)),
        _ => plan.push_back(Step::Read(frame, index)),
    }
}

fn tables(workload: Workload, kernel: &Kernel, random: &mut Random, plan: &mut VecDeque<Step>) {
    match random.below(4) {
        0 => plan.extend([Step::Lock, Step::Section, Step::Unlock]),
        1 if workload == Workload::Conflicts => {
            if let Some((_, frame)) = kernel.oldest() {
                plan.push_back(Step::Race(frame, RACY, leaf(random)));
            }
        }
        _ => {
            let index = kernel.any(random).map_or(0, |(index, _)| index);
            plan.push_back(Step::Walk(index));
        }
    }
}
