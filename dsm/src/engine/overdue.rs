//! What is waited for too long: a lost step of the protocol would otherwise be a VM that hangs without a word.
//!
//! ```text
//!   nothing waits, or what waits changes --> fine
//!   the same page, or the same release, for the limit --> late: the engine tells, and ends the VM
//! ```
//! A peer that is lost is known after its lease, so a wait of several leases on peers that live is an error in the
//! protocol, in the transport, or in a peer.

use dsm_protocol::Gfn;
use std::time::Duration;

/// Between two looks.
const LOOK_NS: u64 = 500_000_000;

/// What is late, and for how long it has been waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// A page.
    Page(Gfn, Duration),
    /// The leave to send something that must not overtake changes of tables.
    Release(Duration),
}

/// Looks now and then. Times are nanoseconds of the engine's clock.
#[derive(Debug)]
pub(crate) struct Overdue {
    limit_ns: u64,
    next_ns: u64,
    /// The oldest release of the last look, and when it was seen first.
    release: Option<(u64, u64)>,
}

impl Overdue {
    pub(crate) fn new(limit: Duration) -> Self {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self { limit_ns, next_ns: 0, release: None }
    }

    /// True when it is time for [`Self::look`].
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// `page` is the page that is waited for the longest and since when, `release` the oldest of the releases.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        page: Option<(Gfn, u64)>,
        release: Option<u64>,
    ) -> Option<Late> {
        self.next_ns = now_ns + LOOK_NS.min(self.limit_ns / 2);
        self.release = release.map(|token| match self.release {
            Some((before, since)) if before == token => (token, since),
            _ => (token, now_ns),
        });
        let late = |since: u64| {
            let waited = now_ns.saturating_sub(since);
            (waited >= self.limit_ns).then(|| Duration::from_nanos(waited))
        };
        let page = page.and_then(|(gfn, since)| Some(Late::Page(gfn, late(since)?)));
        page.or_else(|| self.release.and_then(|(_, since)| late(since)).map(Late::Release))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(30);
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn page_is_late_at_the_limit() {
        let mut overdue = Overdue::new(LIMIT);
        let page = Some((Gfn(7), 5 * SECOND));
        assert_eq!(overdue.look(34 * SECOND, page, None), None);
        assert!(!overdue.is_due(34 * SECOND + 1) && overdue.is_due(35 * SECOND));
        let late = Some(Late::Page(Gfn(7), LIMIT));
        assert_eq!(overdue.look(35 * SECOND, page, None), late);
    }

    #[test]
    fn release_is_late_when_the_same_one_waits_for_the_limit() {
        let mut overdue = Overdue::new(LIMIT);
        for second in 0..100 {
            assert_eq!(overdue.look(second * SECOND, None, Some(second / 20)), None);
        }
        assert_eq!(overdue.look(200 * SECOND, None, None), None);
        assert_eq!(overdue.look(201 * SECOND, None, Some(9)), None);
        let late = Some(Late::Release(LIMIT));
        assert_eq!(overdue.look(231 * SECOND, None, Some(9)), late);
    }

    proptest! {
        #[test]
        fn nothing_that_is_younger_than_the_limit_is_late(
            looks in prop::collection::vec((0..LIMIT.as_secs(), 0..60u64, any::<bool>()), 1..50),
        ) {
            let mut overdue = Overdue::new(LIMIT);
            let mut now = 0;
            for (token, (age, pause, waits)) in (0..).zip(looks) {
                now += pause * SECOND;
                let page = waits.then(|| (Gfn(1), now.saturating_sub(age * SECOND)));
                prop_assert_eq!(overdue.look(now, page, Some(token)), None);
            }
        }
    }
}
