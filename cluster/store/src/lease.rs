//! How long a leader may decide. Its lease is counted by somebody else's clock, so it stops early.
//!
//! ```text
//!   leader          asks ─────────────── may decide ──────────────│ 2 x error │
//!   store's clock        └ counts the lease ───────────────────────────────────└ another one may lead
//! ```
//! Time is CLOCK_BOOTTIME: it goes on while a host sleeps, and nobody sets it. The lease begins when it was asked for, which is
//! before the store counts. Twice the largest error: the leader's clock may be slow by one, and the store's fast by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::StoreError;
use crate::ids::Term;

/// The name of a candidate, which others are told, has at most so many bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The longest lease: nobody waits longer for a leader that is gone.
pub const LEASE_MAX: Duration = Duration::from_secs(600);

/// Nanoseconds since the host started, those in which it slept too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    }

    /// So much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// From here until then; nothing if that is over.
    #[must_use]
    pub fn until(self, then: Self) -> Duration {
        Duration::from_nanos(then.0.saturating_sub(self.0))
    }
}

/// A leader whose lease of this length was asked for then may decide up to this time: `lease - 2 x clock_error` after it asked.
#[must_use]
pub fn decides_until(asked: BootTime, lease: Duration, clock_error: Duration) -> BootTime {
    asked.after(lease.saturating_sub(clock_error.saturating_mul(2)))
}

/// Who wants to lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// What others are told: where it is reached.
    pub name: String,
    /// Without a renewal for so long it leads no more. etcd counts whole seconds, at least two.
    pub lease: Duration,
    /// During a lease no two clocks come to differ by more.
    pub clock_error: Duration,
}

impl Candidate {
    /// Whether it may lead at all.
    ///
    /// # Errors
    /// Where its lease is over before it begins, is too long, or its name is.
    pub fn check(&self) -> Result<(), StoreError> {
        let refuse = |why: String| Err(StoreError::Candidate(why));
        if self.name.len() > NAME_BYTES_MAX {
            return refuse(format!("its name has {} bytes", self.name.len()));
        }
        if self.lease > LEASE_MAX {
            return refuse(format!("a lease of {:?} is longer than {LEASE_MAX:?}", self.lease));
        }
        if self.lease <= self.clock_error.saturating_mul(2) {
            let Self { lease, clock_error, .. } = self;
            return refuse(format!("a lease of {lease:?} with clocks that err by {clock_error:?}"));
        }
        Ok(())
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    /// Since when.
    pub term: Term,
    /// The name of the candidate.
    pub name: String,
}

/// What all parts of a leader ask before they decide. Copies are one.
#[derive(Clone, Debug)]
pub struct Tenure {
    term: Term,
    until: Arc<AtomicU64>,
}

impl Tenure {
    /// Which leader.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether the leader may decide at this time. What it writes is fenced by its term nevertheless.
    #[must_use]
    pub fn may_decide(&self, now: BootTime) -> bool {
        now < self.until()
    }

    /// Up to when, if the lease is not renewed.
    #[must_use]
    pub fn until(&self) -> BootTime {
        BootTime(self.until.load(Ordering::Acquire))
    }
}

/// The lease of a leader. Whoever has it renews it ([`keep`](crate::keep)); if it is dropped, it ends by itself.
#[derive(Debug)]
pub struct Leadership {
    tenure: Tenure,
    /// The store's number of it.
    pub(crate) lease_id: i64,
    lease: Duration,
    clock_error: Duration,
}

impl Leadership {
    pub(crate) fn new(
        term: Term,
        lease_id: i64,
        lease: Duration,
        clock_error: Duration,
        asked: BootTime,
    ) -> Self {
        let until = AtomicU64::new(decides_until(asked, lease, clock_error).0);
        let tenure = Tenure { term, until: Arc::new(until) };
        Self { tenure, lease_id, lease, clock_error }
    }

    /// What others ask.
    #[must_use]
    pub fn tenure(&self) -> Tenure {
        self.tenure.clone()
    }

    /// Which leader.
    #[must_use]
    pub fn term(&self) -> Term {
        self.tenure.term
    }

    /// How long it is.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// A renewal that was asked for then has been granted. Answers may come in another order.
    pub(crate) fn renewed(&self, asked: BootTime) {
        let until = decides_until(asked, self.lease, self.clock_error);
        self.tenure.until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Nobody may decide by it any more.
    pub(crate) fn ended(&self) {
        self.tenure.until.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn candidate(lease: Duration, clock_error: Duration) -> Candidate {
        Candidate { name: "a".to_owned(), lease, clock_error }
    }

    #[test]
    fn leader_stops_two_errors_early() {
        let asked = BootTime(5_000_000_000);
        let error = Duration::from_millis(100);

        assert_eq!(decides_until(asked, 2 * SECOND, error), BootTime(6_800_000_000));
        assert_eq!(decides_until(asked, SECOND, SECOND), asked, "never before it asked");
        assert_eq!(decides_until(BootTime(u64::MAX), SECOND, error), BootTime(u64::MAX));
    }

    #[test]
    fn answers_in_another_order_shorten_nothing() {
        let leadership = Leadership::new(Term(3), 0, 2 * SECOND, SECOND / 10, BootTime(0));
        let tenure = leadership.tenure();
        assert!(tenure.may_decide(BootTime(1_799_999_999)));
        assert!(!tenure.may_decide(BootTime(1_800_000_000)));
        leadership.renewed(BootTime(1_000_000_000));
        leadership.renewed(BootTime(500_000_000));
        assert_eq!(tenure.until(), BootTime(2_800_000_000));
        leadership.ended();
        assert!(!tenure.may_decide(BootTime(0)));
    }

    #[test]
    fn lease_that_is_over_before_it_begins_is_refused() {
        assert!(candidate(2 * SECOND, SECOND).check().is_err());
        assert!(candidate(3 * SECOND, SECOND).check().is_ok());
        assert!(candidate(LEASE_MAX + SECOND, SECOND).check().is_err());
        let name = "n".repeat(NAME_BYTES_MAX + 1);
        assert!(Candidate { name, ..candidate(3 * SECOND, SECOND) }.check().is_err());
    }

    proptest! {
        /// Two clocks that start anywhere and err by no more than allowed: who asked never decides when the store has
        /// given the lease to somebody else.
        #[test]
        fn no_two_decide_at_once(
            asked in 0_u64..1 << 40,
            delay in 0_u64..1 << 32,
            lease in 1_u64..1 << 36,
            error in 0_u64..1 << 34,
            // Of the leader's clock against true time, and of the store's, during the lease.
            slow in -1.0_f64..1.0,
            fast in -1.0_f64..1.0,
        ) {
            let until = decides_until(
                BootTime(asked),
                Duration::from_nanos(lease),
                Duration::from_nanos(error),
            );
            prop_assume!(lease > 2 * error);
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "no more than the error")]
            let (slow, fast) = ((slow * error as f64) as i128, (fast * error as f64) as i128);
            // In true time since it asked.
            let stops = i128::from(until.0 - asked) + slow;
            let freed = i128::from(delay) + i128::from(lease) - fast;
            prop_assert!(stops <= freed, "stops at {stops}, freed at {freed}");
        }
    }
}
