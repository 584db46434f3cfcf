//! What one client has seen of a slice's trace, and what is new to it.

use super::message::{Since, TraceAnswer, TraceRequest};
use dsm::{PageTrace, TraceReport};
use std::cmp::Reverse;
use std::collections::HashMap;
use wire::SliceId;

/// Pages of one answer at most.
pub const TOP_MAX: usize = 4096;

/// The last report that the client heard of; nothing before the first.
#[derive(Debug, Default)]
pub(super) struct View {
    pages: HashMap<u64, PageTrace>,
    at_ns: u64,
}

impl View {
    /// The answer from the slice's report of now, which the view keeps.
    pub(super) fn answer(
        &mut self,
        slice: SliceId,
        report: TraceReport,
        request: &TraceRequest,
    ) -> TraceAnswer {
        let before = match request.since {
            Since::Start => Self::default(),
            Since::Last => std::mem::take(self),
        };
        let change = |page: &PageTrace| match before.pages.get(&page.gfn) {
            Some(old) => page.since(old),
            None => page.clone(),
        };
        let mut pages: Vec<_> = report.pages.iter().map(change).collect();
        pages.retain(|page| page.heat() > 0);
        pages.sort_by_key(|page| (Reverse(page.heat()), page.gfn));
        let (pages_known, faults) =
            (pages.len(), pages.iter().map(|page| u64::from(page.faults())).sum());
        pages.truncate(request.top.min(TOP_MAX));
        #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
        let seconds = report.now_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        let TraceReport { on, now_ns, samples_asked, samples_kept, .. } = report;
        self.pages = report.pages.into_iter().map(|page| (page.gfn, page)).collect();
        self.at_ns = now_ns;
        TraceAnswer {
            slice: slice.0,
            on,
            seconds,
            samples_asked,
            samples_kept,
            pages_known,
            faults,
            pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(gfn: u64, read: u32) -> PageTrace {
        let mut page = PageTrace::default();
        (page.gfn, page.read) = (gfn, read);
        page
    }

    fn report(seconds: u64, pages: &[(u64, u32)]) -> TraceReport {
        let pages = pages.iter().map(|(gfn, read)| page(*gfn, *read)).collect();
        TraceReport { now_ns: seconds * 1_000_000_000, pages, ..TraceReport::default() }
    }

    fn listed(answer: &TraceAnswer) -> Vec<(u64, u32)> {
        answer.pages.iter().map(|page| (page.gfn, page.read)).collect()
    }

    #[test]
    fn later_answers_tell_what_is_new() {
        let mut view = View::default();
        let ask = TraceRequest { top: 2, since: Since::Last };
        let first = view.answer(SliceId(1), report(4, &[(1, 10), (2, 30), (3, 5)]), &ask);
        assert_eq!(listed(&first), [(2, 30), (1, 10)]);
        assert_eq!((first.seconds, first.pages_known, first.faults), (4.0, 3, 45));

        let second = report(6, &[(1, 11), (2, 30), (3, 9), (4, 1)]);
        let second = view.answer(SliceId(1), second, &ask);
        assert_eq!(listed(&second), [(3, 4), (1, 1)]);
        assert_eq!((second.seconds, second.pages_known, second.faults), (2.0, 3, 6));

        let all = TraceRequest { top: usize::MAX, since: Since::Start };
        let all = view.answer(SliceId(1), report(7, &[(1, 11), (3, 9)]), &all);
        assert_eq!((listed(&all), all.seconds), (vec![(1, 11), (3, 9)], 7.0));
    }
}
