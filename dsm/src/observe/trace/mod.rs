//! What happens to pages: who asked, who took them away, from where in the guest.
//!
//! ```text
//!   fault ------> count, class ---(now and then)--> due --Uplink::sample_fault--> a vCPU is kicked
//!   message in -> came: ping-pongs, peers                                              |
//!   message out > went: taken, shared, peers          Site <---Handle::sampled---------+
//! ```
//!
//! What messages tell is only noted as they pass, and looked at while the engine waits anyway. Faults are always
//! counted, because the engine decides by the counts when to look at the vCPUs' roots. What can be switched off is the
//! look at every message, and the samples. Nothing here decides about coherence, allocates on the path of a fault, or
//! grows: see [`table`] and [`sampler`].

mod kinds;
mod page;
mod sampler;
mod table;

pub(crate) use kinds::{Company, FaultKind};
pub use page::{PageTrace, SITES_MAX, Site, Touch};

use crate::observe::classify::PageClass;
use crate::observe::report::{ClassCounts, HotPage};
use dsm_protocol::{Access, Gfn, Message};
use page::Loss;
use sampler::Sampler;
use serde::{Deserialize, Serialize};
use table::Table;
use wire::SliceId;

/// Pages of a kind that a run report lists.
const LISTED: usize = 32;

/// Which pages are traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tracing {
    /// None.
    Off,
    /// All.
    #[default]
    On,
    /// Those of odd number: one run shows what tracing costs, by comparing them with the others.
    Odd,
}

/// What the trace of one slice holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// Whether messages are looked at and vCPUs sampled now.
    pub on: bool,
    /// Nanoseconds since the engine started.
    pub now_ns: u64,
    /// Times that vCPUs were asked where they are.
    pub samples_asked: u64,
    /// Answers that fitted a page.
    pub samples_kept: u64,
    /// All pages that are known, in no order.
    pub pages: Vec<PageTrace>,
}

/// Messages noted at a time. The engine waits more often than that.
const NOTED: usize = 256;

/// What a message told of a page.
#[derive(Clone, Copy, Debug)]
enum Note {
    Came { gfn: Gfn, from: SliceId, access: Access, company: Company },
    Went { gfn: Gfn, to: SliceId, loss: Loss, company: Company },
}

/// The trace of one slice.
#[derive(Debug)]
pub(crate) struct Trace {
    tracing: Tracing,
    classes: ClassCounts,
    pages: Table,
    notes: Vec<Note>,
    sampler: Sampler,
    /// A page whose waiting vCPU is to be sampled.
    due: Option<Gfn>,
    samples_asked: u64,
    samples_kept: u64,
}

impl Trace {
    pub(crate) fn new(tracing: Tracing) -> Self {
        Self {
            tracing,
            classes: ClassCounts::default(),
            pages: Table::default(),
            notes: Vec::with_capacity(NOTED),
            sampler: Sampler::default(),
            due: None,
            samples_asked: 0,
            samples_kept: 0,
        }
    }

    /// Switches everything but the counts of faults.
    pub(crate) fn set(&mut self, tracing: Tracing) {
        self.look_at_notes();
        if tracing != self.tracing {
            // What went meanwhile is not known.
            self.pages.iter_mut().for_each(PageTrace::forget_loss);
        }
        (self.tracing, self.due) = (tracing, None);
    }

    fn covers(&self, gfn: Gfn) -> bool {
        match self.tracing {
            Tracing::On => true,
            Tracing::Off => false,
            Tracing::Odd => gfn.0 % 2 == 1,
        }
    }

    /// Whether a page that travels so may have to be counted. What is noted already may make it known.
    fn counts(&self, gfn: Gfn, company: Company) -> bool {
        let may_know = || !self.notes.is_empty() || self.pages.may_know(gfn);
        self.covers(gfn) && (company == Company::Alone || may_know())
    }

    /// Counts a fault that needs another slice; `known` says that the protocol takes the page for a
    /// table. Returns the number of the page's faults so far.
    pub(crate) fn fault(
        &mut self,
        now_ns: u64,
        gfn: Gfn,
        kind: FaultKind,
        class: PageClass,
        known: bool,
    ) -> u32 {
        match class {
            PageClass::KernelPageTable => self.classes.kernel_page_table += 1,
            PageClass::UserPageTable => self.classes.user_page_table += 1,
            PageClass::Other => self.classes.other += 1,
        }
        // Pages that are not traced use up their share of the samples.
        if self.tracing != Tracing::Off && self.sampler.counts(now_ns) && self.covers(gfn) {
            self.due = Some(gfn);
            self.samples_asked += 1;
        }
        self.pages.touch(gfn).fault(kind, class, known)
    }

    /// Whether the vCPU that waits for this page is to be sampled. True once.
    pub(crate) fn is_due(&mut self, gfn: Gfn) -> bool {
        self.due.take_if(|due| *due == gfn).is_some()
    }

    /// Looks at a message before the protocol does.
    pub(crate) fn received(&mut self, from: SliceId, message: &Message, company: Company) {
        let (gfn, access) = match message {
            Message::Data { gfn, access, .. } => (*gfn, *access),
            // The right to write comes without the page: from the home, or from those who drop their
            // copies.
            Message::Grant { gfn, .. } | Message::Acked { gfn, upgrade: 1.., .. } => {
                (*gfn, Access::Write)
            }
            _ => return,
        };
        if self.counts(gfn, company) {
            self.note(Note::Came { gfn, from, access, company });
        }
    }

    /// Looks at a message to another slice.
    pub(crate) fn sent(&mut self, to: SliceId, message: &Message, company: Company) {
        let (gfn, loss) = match message {
            Message::Data { gfn, access: Access::Write, .. } | Message::Acked { gfn, .. } => {
                (*gfn, Loss::Page)
            }
            Message::Data { gfn, .. } => (*gfn, Loss::Writing),
            _ => return,
        };
        if self.counts(gfn, company) {
            self.note(Note::Went { gfn, to, loss, company });
        }
    }

    fn note(&mut self, note: Note) {
        if self.notes.len() == NOTED {
            self.look_at_notes();
        }
        self.notes.push(note);
    }

    /// Counts what was noted. To be called when there is nothing better to do: each note may cost
    /// several misses of the caches.
    pub(crate) fn look_at_notes(&mut self) {
        let Self { notes, pages, .. } = self;
        for note in notes.drain(..) {
            match note {
                Note::Came { gfn, from, access, company } => {
                    if let Some(page) = pages.counted(gfn, company) {
                        page.came(from, access);
                    }
                }
                Note::Went { gfn, to, loss, company } => {
                    if let Some(page) = pages.counted(gfn, company) {
                        page.went(to, loss);
                    }
                }
            }
        }
    }

    /// Adds what a vCPU said that was sampled for this page.
    pub(crate) fn sampled(&mut self, gfn: Gfn, site: Site) {
        // A page that was forgotten meanwhile was not that hot.
        if let Some(page) = self.pages.get_mut(gfn) {
            page.sampled(site);
            self.samples_kept += 1;
        }
    }

    pub(crate) fn classes(&self) -> ClassCounts {
        self.classes
    }

    /// The pages asked for most often, hottest first.
    pub(crate) fn hottest(&self) -> Vec<HotPage> {
        self.list(|_| true)
    }

    /// The same of page tables only.
    pub(crate) fn hottest_tables(&self) -> Vec<HotPage> {
        self.list(|page| page.class != PageClass::Other)
    }

    fn list(&self, wanted: impl Fn(&PageTrace) -> bool) -> Vec<HotPage> {
        let pages = self.pages.iter().filter(|page| page.faults() > 0 && wanted(page));
        let mut hot: Vec<&PageTrace> = pages.collect();
        hot.sort_by_key(|page| (std::cmp::Reverse(page.faults()), page.gfn));
        hot.truncate(LISTED);
        let hot = hot.into_iter().map(|page| HotPage {
            gfn: page.gfn,
            faults: page.faults(),
            as_table: page.as_table,
            class: page.class,
        });
        hot.collect()
    }

    pub(crate) fn report(&mut self, now_ns: u64) -> TraceReport {
        self.look_at_notes();
        TraceReport {
            on: self.tracing != Tracing::Off,
            now_ns,
            samples_asked: self.samples_asked,
            samples_kept: self.samples_kept,
            pages: self.pages.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: SliceId = SliceId(5);

    fn count(trace: &mut Trace, gfn: u64, class: PageClass, known: bool) -> u32 {
        trace.fault(0, Gfn(gfn), FaultKind::Read, class, known)
    }

    fn data(gfn: u64, access: Access) -> Message {
        Message::Data { gfn: Gfn(gfn), access, acks: 0, held_us: 0, table: None }
    }

    #[test]
    fn hottest_tables_leaves_other_pages_out() {
        let mut trace = Trace::new(Tracing::Off);
        count(&mut trace, 1, PageClass::Other, false);
        count(&mut trace, 2, PageClass::KernelPageTable, false);
        for _ in 0..3 {
            count(&mut trace, 3, PageClass::UserPageTable, true);
        }
        assert_eq!(count(&mut trace, 2, PageClass::KernelPageTable, true), 2);

        let gfns = |pages: Vec<HotPage>| pages.iter().map(|page| page.gfn).collect::<Vec<_>>();
        assert_eq!(gfns(trace.hottest()), [3, 2, 1]);
        assert_eq!(gfns(trace.hottest_tables()), [3, 2]);
        assert_eq!(trace.hottest_tables()[1].as_table, 1);
        let counts = ClassCounts { kernel_page_table: 2, user_page_table: 3, other: 1 };
        assert_eq!(trace.classes(), counts);
    }

    #[test]
    fn lists_are_bounded() {
        let mut trace = Trace::new(Tracing::On);
        for gfn in 0..100 {
            count(&mut trace, gfn, PageClass::Other, false);
        }
        assert_eq!(trace.hottest().len(), LISTED);
    }

    #[test]
    fn page_that_goes_and_comes_plays_ping_pong() {
        let mut trace = Trace::new(Tracing::On);
        trace.received(PEER, &data(9, Access::Write), Company::Alone);
        for _ in 0..2 {
            trace.sent(PEER, &data(9, Access::Write), Company::Alone);
            trace.received(PEER, &data(9, Access::Read), Company::Alone);
        }
        let page = &trace.report(0).pages[0];
        assert_eq!((page.taken, page.shared, page.ping_pongs), (2, 0, 2));
        assert_eq!((page.peer, page.peers), (Some(5), 1 << 5));
    }

    #[test]
    fn right_to_write_comes_back_by_grant_or_by_dropped_copies() {
        let mut trace = Trace::new(Tracing::On);
        let back = [
            vec![Message::Acked { gfn: Gfn(9), upgrade: 1, held_us: 0 }],
            vec![
                Message::Grant { gfn: Gfn(9), acks: 1, table: None },
                Message::Acked { gfn: Gfn(9), upgrade: 1, held_us: 0 },
            ],
        ];
        for messages in back {
            trace.sent(PEER, &data(9, Access::Read), Company::Alone);
            messages.iter().for_each(|message| trace.received(PEER, message, Company::Alone));
        }
        let page = &trace.report(0).pages[0];
        assert_eq!((page.shared, page.taken, page.ping_pongs), (2, 0, 2));
    }

    #[test]
    fn notes_are_bounded_and_none_is_lost() {
        let mut trace = Trace::new(Tracing::On);
        for round in 0..1000 {
            trace.sent(PEER, &data(round % 7, Access::Write), Company::Alone);
            assert!(trace.notes.len() <= NOTED && trace.notes.capacity() == NOTED);
        }
        let taken: u32 = trace.report(0).pages.iter().map(|page| page.taken).sum();
        assert_eq!((taken, trace.notes.len()), (1000, 0));
    }

    #[test]
    fn trace_that_is_off_counts_faults_only() {
        let mut trace = Trace::new(Tracing::Off);
        trace.sent(PEER, &data(9, Access::Write), Company::Alone);
        trace.received(PEER, &data(9, Access::Write), Company::Alone);
        for _ in 0..100 {
            count(&mut trace, 8, PageClass::Other, false);
        }
        assert!(!trace.is_due(Gfn(8)));
        let report = trace.report(0);
        assert_eq!((report.on, report.samples_asked, report.pages.len()), (false, 0, 1));
        assert_eq!(report.pages[0].read, 100);
    }

    #[test]
    fn pages_of_odd_number_can_be_traced_alone() {
        let mut trace = Trace::new(Tracing::Odd);
        // The first fault of all is the one to be sampled.
        for gfn in [9, 8] {
            count(&mut trace, gfn, PageClass::Other, false);
            trace.received(PEER, &data(gfn, Access::Write), Company::Alone);
            trace.sent(PEER, &data(gfn, Access::Write), Company::Alone);
        }
        assert!(!trace.is_due(Gfn(8)) && trace.is_due(Gfn(9)));
        let mut pages = trace.report(0).pages;
        pages.sort_by_key(|page| page.gfn);
        let counts: Vec<_> = pages.iter().map(|page| (page.gfn, page.read, page.taken)).collect();
        assert_eq!(counts, [(8, 1, 0), (9, 1, 1)]);
    }

    #[test]
    fn loss_that_nobody_saw_come_back_is_no_ping_pong() {
        let mut trace = Trace::new(Tracing::On);
        trace.sent(PEER, &data(9, Access::Write), Company::Alone);
        trace.set(Tracing::Off);
        trace.set(Tracing::On);
        trace.received(PEER, &data(9, Access::Write), Company::Alone);
        assert_eq!(trace.report(0).pages[0].ping_pongs, 0);
    }

    #[test]
    fn sample_is_due_once_and_kept_for_a_known_page() {
        let mut trace = Trace::new(Tracing::On);
        count(&mut trace, 8, PageClass::Other, false);
        assert!(!trace.is_due(Gfn(7)));
        assert!(trace.is_due(Gfn(8)));
        assert!(!trace.is_due(Gfn(8)));

        let site = Site { rip: 0x1000, ..Site::default() };
        trace.sampled(Gfn(8), site);
        trace.sampled(Gfn(7), site);
        let report = trace.report(0);
        assert_eq!((report.samples_asked, report.samples_kept), (1, 1));
        assert_eq!(report.pages[0].sites, [Site { count: 1, ..site }]);
    }

    #[test]
    fn page_in_a_run_counts_only_if_it_is_known() {
        let mut trace = Trace::new(Tracing::On);
        trace.sent(PEER, &data(9, Access::Write), Company::Alone);
        for gfn in [9, 10] {
            trace.received(PEER, &data(gfn, Access::Write), Company::InRun);
            trace.sent(PEER, &data(gfn, Access::Write), Company::InRun);
        }
        let pages = trace.report(0).pages;
        let seen: Vec<_> =
            pages.iter().map(|page| (page.gfn, page.taken, page.ping_pongs)).collect();
        assert_eq!(seen, [(9, 2, 1)]);
    }
}
