//! Whether this slice may still change anything outside: a disk, a network.
//!
//! ```text
//!   open       --not renewed for half a lease, or a peer
//!                not heard for a lease---------------------> late
//!   late       --renewed, and all peers heard--------------> open
//!   open, late --shut (a slice is lost, or this one cannot
//!                go on), not renewed for a lease, or
//!                another generation writes here------------> over
//! ```
//! Peers give up a slice that was silent for a lease, and the VM may then be started elsewhere. The
//! memory engine renews the fence each time it has looked at its peers, none of whom was lost; it speaks to them
//! every quarter of a lease, so that half a lease later none of them can have given this slice up. A process that was
//! stopped and wakes finds the fence late or over before it finds anything else. A fence that is over stays so.
//!
//! To look is not to hear. Silence is counted in looks, so that who was stopped blames nobody, and a slice that is cut off and slow may
//! take long to find its peers lost. They may have ended, and the VM be started elsewhere, so they must have been heard within a lease.

use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Between two looks at a fence that is late.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How a fence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The outside may be changed.
    Open,
    /// Not now: the engine has not looked at its peers for some time, or not all of them have been heard for some.
    Late,
    /// Never again.
    Over,
}

/// Why a disk is not known to be this generation's any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOurs {
    /// Another generation of the VM, or another VM, writes: it goes on there.
    Overtaken(String),
    /// Nobody can say who writes. The VM may have to go on from what was saved, and may do so here.
    Unknown(String),
}

impl NotOurs {
    /// In words.
    #[must_use]
    pub fn cause(&self) -> &str {
        match self {
            Self::Overtaken(cause) | Self::Unknown(cause) => cause,
        }
    }
}

/// Tells the slice why it is over. Called on any thread; returns at once.
type Teller = Box<dyn Fn(&NotOurs) + Send + Sync>;

/// The fence of one slice in one epoch of its VM. All times are nanoseconds of one clock that does not stop
/// while this process does, nor while its host sleeps ([`Fence::now`]).
#[derive(Default)]
pub struct Fence {
    over: AtomicBool,
    /// It is over because nobody renewed it in time.
    expired: AtomicBool,
    /// Nothing: there are no peers.
    lease_ns: AtomicU64,
    renewed_ns: AtomicU64,
    /// When the peer that was silent for longest had surely not ended.
    heard_ns: AtomicU64,
    /// When a look found it open last, or the lease began.
    open_ns: AtomicU64,
    /// Why another generation of the VM has what this one had, or may have it.
    not_ours: OnceLock<NotOurs>,
    teller: OnceLock<Teller>,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Fence");
        fields.field("over", &self.over).field("not_ours", &self.not_ours);
        fields.finish_non_exhaustive()
    }
}

impl Fence {
    /// The time.
    #[must_use]
    pub fn now() -> u64 {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000) + u64::try_from(now.tv_nsec).unwrap_or(0)
    }

    /// From `now` on there are peers, which take this slice for lost after so long a silence. It is late until all of
    /// them were heard.
    pub fn take_lease(&self, now: u64, lease: Duration) {
        self.renewed_ns.store(now, Ordering::Release);
        self.open_ns.store(now, Ordering::Release);
        self.heard_ns.store(0, Ordering::Release);
        let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.lease_ns.store(lease, Ordering::Release);
    }

    /// There are no peers any more: nobody takes this slice for lost.
    pub fn end_lease(&self) {
        self.lease_ns.store(0, Ordering::Release);
    }

    /// Whether there is anybody who takes this slice for lost after a silence.
    pub fn has_lease(&self) -> bool {
        self.lease_ns.load(Ordering::Acquire) != 0
    }

    /// All peers without which the VM cannot go on have said something since then.
    pub fn hear(&self, since: u64) {
        self.heard_ns.fetch_max(since, Ordering::AcqRel);
    }

    /// For how many leases no look has found it open; 0 where nobody is to be heard. All peers may be there, and what one of them sends may
    /// not come, or come too late each time. Only looks count: one that is never looked at is never found open.
    pub fn late_leases(&self, now: u64) -> u64 {
        now.saturating_sub(self.open_ns.load(Ordering::Acquire))
            .checked_div(self.lease_ns.load(Ordering::Acquire))
            .unwrap_or(0)
    }

    /// The peers were looked at and spoken to. False: too late, the fence is over.
    pub fn renew(&self, now: u64) -> bool {
        let stands = self.look(now) != Standing::Over;
        if stands {
            self.renewed_ns.fetch_max(now, Ordering::AcqRel);
        }
        stands
    }

    /// A slice is lost, or this one cannot go on.
    pub fn shut(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// The VM was restored elsewhere, and that generation of it writes from now on; or that is not known. The slice is told once.
    pub fn lose(&self, why: NotOurs) {
        self.shut();
        if self.not_ours.set(why).is_ok() {
            self.tell();
        }
    }

    /// Why another generation writes, or may write, if that is so.
    pub fn not_ours(&self) -> Option<&NotOurs> {
        self.not_ours.get()
    }

    /// Calls `teller` with the cause when another generation writes, or may write, perhaps at once, and perhaps twice if that
    /// happens now. Only the first teller counts.
    pub fn when_not_ours(&self, teller: impl Fn(&NotOurs) + Send + Sync + 'static) {
        if self.teller.set(Box::new(teller)).is_ok() {
            self.tell();
        }
    }

    fn tell(&self) {
        if let (Some(why), Some(teller)) = (self.not_ours.get(), self.teller.get()) {
            teller(why);
        }
    }

    /// True when it is over because of the lease, not because it was shut: the peers have given this slice up.
    pub fn has_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// How it stands.
    pub fn look(&self, now: u64) -> Standing {
        if self.over.load(Ordering::Acquire) {
            return Standing::Over;
        }
        let lease = self.lease_ns.load(Ordering::Acquire);
        let age = now.saturating_sub(self.renewed_ns.load(Ordering::Acquire));
        let silence = now.saturating_sub(self.heard_ns.load(Ordering::Acquire));
        if lease == 0 || (age <= lease / 2 && silence <= lease) {
            self.open_ns.fetch_max(now, Ordering::AcqRel);
            Standing::Open
        } else if age < lease {
            Standing::Late
        } else {
            self.expired.store(true, Ordering::Release);
            self.shut();
            Standing::Over
        }
    }

    /// Waits while the fence is late. True: the caller may change the outside now. Look as shortly before as
    /// can be.
    #[must_use]
    pub fn pass(&self) -> bool {
        loop {
            match self.look(Self::now()) {
                Standing::Open => return true,
                Standing::Over => return false,
                Standing::Late => thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::mpsc::channel;

    const LEASE: Duration = Duration::from_nanos(1000);

    #[test]
    fn a_vm_without_peers_has_no_lease() {
        let fence = Fence::default();
        assert_eq!(fence.look(u64::MAX), Standing::Open);
        assert!(fence.pass());
        fence.shut();
        assert_eq!(fence.look(0), Standing::Over);
        assert!(!fence.pass());
    }

    #[test]
    fn who_is_left_alone_has_no_lease_any_more() {
        let fence = Fence::default();
        fence.take_lease(100, LEASE);
        assert_eq!(fence.look(601), Standing::Late);
        fence.end_lease();
        assert_eq!(fence.look(u64::MAX), Standing::Open);
        assert!(fence.renew(u64::MAX) && !fence.has_expired());
    }

    #[test]
    fn who_begins_is_late_until_all_were_heard() {
        let fence = Fence::default();
        assert_eq!(fence.late_leases(u64::MAX), 0);
        fence.take_lease(1_000_000, LEASE);
        assert_eq!(fence.look(1_000_001), Standing::Late);
        assert!(fence.renew(1_000_300));
        assert_eq!(fence.look(1_000_300), Standing::Late);
        assert_eq!((fence.late_leases(1_000_999), fence.late_leases(1_002_000)), (0, 2));
        fence.hear(1_000_200);
        assert_eq!(fence.look(1_000_300), Standing::Open);
        assert_eq!((fence.late_leases(1_001_299), fence.late_leases(1_010_300)), (0, 10));
    }

    /// As over a network that takes longer there and back than the lease is.
    #[test]
    fn who_hears_all_too_late_each_time_is_late_for_ever_longer() {
        let fence = Fence::default();
        fence.take_lease(0, LEASE);
        for now in [500, 1000] {
            assert!(fence.renew(now));
            assert_eq!(fence.look(now), Standing::Open);
        }
        for half in 3..1000 {
            let now = half * 500;
            fence.hear(now - 1500);
            assert!(fence.renew(now));
            assert_eq!(fence.look(now), Standing::Late);
            assert_eq!(fence.late_leases(now), (now - 1000) / 1000);
        }
    }

    #[test]
    fn who_is_late_may_come_back_and_who_is_over_may_not() {
        let fence = Fence::default();
        fence.take_lease(100, LEASE);
        assert_eq!(fence.look(600), Standing::Open);
        assert_eq!(fence.look(601), Standing::Late);
        assert_eq!(fence.look(1099), Standing::Late);
        fence.hear(1099);
        assert!(fence.renew(1099));
        assert_eq!(fence.look(1599), Standing::Open);
        // A renewal that was on its way for long does not turn time back.
        assert!(fence.renew(1000));
        assert_eq!(fence.look(1599), Standing::Open);
        assert_eq!(fence.look(2099), Standing::Over);
        assert!(!fence.renew(2099) && !fence.renew(1100));
        assert_eq!(fence.look(1100), Standing::Over);
    }

    #[test]
    fn fence_that_was_shut_has_not_expired() {
        let fence = Fence::default();
        fence.take_lease(0, LEASE);
        fence.shut();
        assert!(!fence.renew(5000) && !fence.has_expired());
        let fence = Fence::default();
        fence.take_lease(0, LEASE);
        assert_eq!(fence.look(1000), Standing::Over);
        assert!(fence.has_expired());
    }

    #[test]
    fn who_is_overtaken_is_over_and_the_slice_hears_why_whenever_it_listens() {
        for early in [true, false] {
            let (fence, (told, heard)) = (Fence::default(), channel());
            let listen = || {
                let told = told.clone();
                fence.when_not_ours(move |why| told.send(why.clone()).unwrap());
            };
            if early {
                listen();
            }
            assert_eq!(fence.not_ours(), None);
            let why = NotOurs::Overtaken("generation 7 writes".into());
            fence.lose(why.clone());
            fence.lose(NotOurs::Unknown("it cannot be read".into()));
            if !early {
                listen();
            }
            assert_eq!(heard.try_iter().collect::<Vec<_>>(), [why]);
            assert_eq!(fence.look(0), Standing::Over);
            assert!(!fence.renew(1) && !fence.has_expired());
        }
    }

    #[test]
    fn who_was_stopped_for_a_lease_passes_no_more() {
        let fence = Fence::default();
        // The last look at the peers was a lease ago, as after SIGSTOP and SIGCONT.
        fence.take_lease(Fence::now() - 50_000_000, Duration::from_millis(50));
        assert!(!fence.pass());
        assert!(!fence.renew(Fence::now()));
    }

    #[test]
    fn a_late_fence_is_waited_for() {
        let fence = Fence::default();
        // A minute, so that it stays late.
        fence.take_lease(Fence::now() - 30_000_000_001, Duration::from_secs(60));
        assert_eq!(fence.look(Fence::now()), Standing::Late);
        let passed = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| passed.store(fence.pass(), Ordering::Release));
            assert!(!passed.load(Ordering::Acquire));
            fence.hear(Fence::now());
            assert!(fence.renew(Fence::now()));
        });
        assert!(passed.load(Ordering::Acquire));
    }

    /// As one that is cut off and looks at its peers just often enough.
    #[test]
    fn who_hears_nobody_for_a_lease_is_late_however_often_it_looks() {
        let fence = Fence::default();
        fence.take_lease(0, LEASE);
        for now in [400, 800, 1000] {
            assert!(fence.renew(now));
            assert_eq!(fence.look(now), Standing::Open);
        }
        assert_eq!(fence.look(1001), Standing::Late);
        assert!(fence.renew(1500));
        assert_eq!(fence.look(1500), Standing::Late);
        fence.hear(1400);
        assert_eq!(fence.look(1500), Standing::Open);
        // What was heard before is no news.
        fence.hear(300);
        assert_eq!(fence.look(1500), Standing::Open);
    }

    proptest! {
        /// Whatever happens in whatever order: open only within half a lease of a renewal that was no
        /// full lease after the one before it, and within a lease of all peers' last words; never again once it was over.
        #[test]
        fn a_fence_is_open_only_with_a_fresh_lease(
            steps in proptest::collection::vec((0_u64..1500, 0_u8..20), 1..60),
        ) {
            let fence = Fence::default();
            fence.take_lease(0, LEASE);
            let (mut now, mut renewed, mut heard, mut over) = (0, 0, 0, false);
            for (wait, what) in steps {
                now += wait;
                over |= now - renewed >= 1000;
                match what {
                    0 => {
                        fence.shut();
                        over = true;
                    }
                    1..=4 => {
                        fence.hear(now);
                        heard = now;
                    }
                    5..=14 => {
                        prop_assert_eq!(fence.renew(now), !over);
                        if !over {
                            renewed = now;
                        }
                    }
                    _ => {}
                }
                let wanted = match now - renewed {
                    _ if over => Standing::Over,
                    0..=500 if now - heard <= 1000 => Standing::Open,
                    _ => Standing::Late,
                };
                prop_assert_eq!(fence.look(now), wanted);
            }
        }
    }
}
