//! Looks whether the memory engine still does: it tells of losses, and is what peers hear of this slice.
//!
//! ```text
//!   looks, each half lease, and a second after one that found something wrong --twice in a row the fence has expired, or the engine has ended--> the fence is shut, the engine abandoned,
//!                                                                                             the main thread told
//!   the fence has not been open for ten leases --------------> the main thread told; the engine goes on, and tells others, for ten seconds at most
//! ```
//! An engine that goes on, as after SIGCONT, tells by itself between the two looks what has become of its peers, which says more.
//!
//! This has a thread of its own: all others may wait for room in the engine's queue, the main thread too. They wait no longer once the
//! engine is abandoned.

use super::channels::Channels;
use super::dispatch::STOOD_STILL;
use super::events::SliceEvent;
use devices::Fence;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

/// For an engine that was asked to end: it may have large tables to free.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Between a look that has found something wrong and the next: an engine that goes on tells what it is within that.
const DOUBT: Duration = Duration::from_secs(1);
/// Peers that are lost are known after two. One that is not has a connection that takes nothing, or a way that takes longer than a lease.
const LATE_LEASES_MAX: u64 = 10;
const TOO_LATE: &str = "what another slice sends back of what it is sent has come too late, or not at all, for ten leases, and it is not lost: one of its connections takes nothing, or --lease is too short for the network";
/// For an engine that works to tell others of the end. It may hang since the fence was shut, by which nobody can tell.
const TELL_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at one that is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The memory engine, and who looks at it.
#[derive(Debug)]
pub(super) struct Engine {
    thread: JoinHandle<()>,
    /// It is to end.
    is_to_end: Arc<AtomicBool>,
}

impl Engine {
    /// From now on it is looked at, each half of this lease.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn new(
        thread: JoinHandle<()>,
        channels: &Arc<Channels>,
        lease: Duration,
    ) -> io::Result<Self> {
        let is_to_end = Arc::new(AtomicBool::new(false));
        let (channels, ends) = (Arc::downgrade(channels), Arc::clone(&is_to_end));
        let look = move || look(&channels, (lease / 2, TELL_LIMIT), &ends);
        Builder::new().name("standstill".into()).spawn(look)?;
        Ok(Self { thread, is_to_end })
    }

    /// Nobody looks at it any more: it is to end, and that is as it should be.
    pub(super) fn is_to_end(&self) {
        self.is_to_end.store(true, Ordering::SeqCst);
    }

    /// Waits for its end. One that hangs is left to the end of the process.
    pub(super) fn join(self) {
        let limit = Instant::now() + END_LIMIT;
        while !self.thread.is_finished() {
            if Instant::now() >= limit {
                return tracing::error!("the memory engine has not ended within {END_LIMIT:?}");
            }
            thread::sleep(LOOK_AGAIN);
        }
        if self.thread.join().is_err() {
            tracing::error!("the memory engine panicked");
        }
    }
}

fn look(
    channels: &Weak<Channels>,
    (pause, tell_limit): (Duration, Duration),
    is_to_end: &AtomicBool,
) {
    let (mut was_wrong, mut told) = (false, None);
    loop {
        thread::sleep(if was_wrong { pause.min(DOUBT) } else { pause });
        let Some(channels) = channels.upgrade() else { return };
        if is_to_end.load(Ordering::SeqCst) {
            return;
        }
        let wrong = standstill(&channels);
        if let Some(why) = wrong.filter(|_| was_wrong) {
            // First the cause: who waited for the engine asks for it.
            let told = *told.get_or_insert_with(|| {
                channels.event(SliceEvent::Fatal(why.into()));
                Instant::now()
            });
            // One that works is to tell the other slices why the VM ends.
            if why != TOO_LATE || told.elapsed() >= tell_limit {
                if let Some(handle) = channels.handle.get() {
                    handle.abandon();
                }
                return;
            }
        }
        was_wrong = wrong.is_some();
    }
}

/// What is wrong. The engine may be telling it just now.
fn standstill(channels: &Channels) -> Option<&'static str> {
    let expired = channels.fence.get().is_some_and(|fence| {
        fence.look(Fence::now());
        fence.has_expired()
    });
    if expired {
        return Some(STOOD_STILL);
    }
    if channels.handle.get().is_some_and(dsm::Handle::has_ended) {
        return Some("its memory engine has ended and said nothing");
    }
    let late = channels.fence.get().map_or(0, |fence| fence.late_leases(Fence::now()));
    (late >= LATE_LEASES_MAX).then_some(TOO_LATE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::BOOTSTRAP;
    use crate::slice::channels::tests::channels;
    use devices::Standing;

    #[test]
    fn fence_that_has_expired_is_told_and_one_that_was_shut_is_not() {
        let (channels, _told) = channels(BOOTSTRAP);
        assert_eq!(standstill(&channels), None, "nobody can join");
        let fence = Arc::new(Fence::default());
        channels.fence.set(Arc::clone(&fence)).unwrap();
        assert_eq!(standstill(&channels), None, "it is alone");
        fence.take_lease(Fence::now(), Duration::from_secs(1000));
        assert_eq!(standstill(&channels), None);
        fence.take_lease(Fence::now() - 10, Duration::from_nanos(10));
        assert_eq!(standstill(&channels), Some(STOOD_STILL));
        assert_eq!(fence.look(Fence::now()), Standing::Over);
    }

    /// The engine looks and speaks, and what a peer sends is heard on another connection.
    #[test]
    fn peer_that_sends_nothing_back_is_not_waited_for_without_end() {
        let (channels, _told) = channels(BOOTSTRAP);
        let fence = Arc::new(Fence::default());
        channels.fence.set(Arc::clone(&fence)).unwrap();
        let (now, lease) = (Fence::now(), Duration::from_secs(10));
        for (leases, wrong) in [(9, None), (11, Some(TOO_LATE))] {
            let begin = now - leases * 10_000_000_000;
            fence.take_lease(begin, lease);
            for half in 1..=2 * leases {
                assert!(fence.renew(begin + half * 5_000_000_000));
            }
            assert_eq!(standstill(&channels), wrong);
        }
    }

    /// Somebody else has ended the VM, and waits for an engine that hangs since.
    #[test]
    fn engine_is_abandoned_also_after_the_fence_was_shut() {
        let (channels, told) = channels(BOOTSTRAP);
        let fence = Arc::new(Fence::default());
        fence.take_lease(Fence::now() - 11_000_000, Duration::from_millis(1));
        fence.shut();
        channels.fence.set(fence).unwrap();
        let times = (Duration::from_millis(1), Duration::from_millis(20));
        // It returns.
        look(&Arc::downgrade(&channels), times, &AtomicBool::new(false));
        let events: Vec<_> = told.try_iter().collect();
        assert!(matches!(&events[..], [SliceEvent::Fatal(_)]), "{events:?}");
    }

    #[test]
    fn main_thread_is_told_unless_the_engine_is_to_end() {
        for is_to_end in [false, true] {
            let (channels, told) = channels(BOOTSTRAP);
            let fence = Arc::new(Fence::default());
            fence.take_lease(Fence::now() - 10, Duration::from_nanos(10));
            channels.fence.set(fence).unwrap();
            let times = (Duration::ZERO, Duration::ZERO);
            look(&Arc::downgrade(&channels), times, &AtomicBool::new(is_to_end));
            let events: Vec<_> = told.try_iter().collect();
            assert_eq!(events.len(), usize::from(!is_to_end), "{events:?}");
            assert!(events.iter().all(|event| matches!(event, SliceEvent::Fatal(_))));
        }
    }
}
