//! No slice closes before all know that the VM is over: who hears of another one's end first takes it for lost.
//!
//! ```text
//!   coordinator: End to all --> vCPUs stop --> EndSeen of all, or the limit ------> closes
//!   all others:  End --> vCPUs stop --> back ends finish --> EndSeen --> the coordinator is lost, or the limit --> closes
//! ```
//! The back ends of a slice finish before it says so: the coordinator that closes is lost to it, and its fence is shut then.
//! The memory engine goes on meanwhile: vCPUs of others may wait for pages, and do not stop before they come.

use super::events::{Events, SliceEvent};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use wire::SliceId;

/// For all slices to hear that the VM is over, and for their back ends, which take a second each at most, to finish.
const LIMIT: Duration = Duration::from_secs(5);

/// The coordinator has told these slices.
pub(super) fn wait_until_all_know(mut told: BTreeSet<SliceId>, events: &Events) {
    let limit = Instant::now() + LIMIT;
    while !told.is_empty() {
        match next(events, limit) {
            Some(SliceEvent::EndSeen(slice) | SliceEvent::LostDevices(slice, _)) => {
                told.remove(&slice);
            }
            // The engine ends with the first slice that is lost: nothing more is heard.
            Some(SliceEvent::Lost(..)) => return,
            Some(_) => {}
            None => {
                tracing::warn!("{told:?} did not answer within {LIMIT:?} that the VM is over");
                return;
            }
        }
    }
}

/// A slice has been told, and has said so.
pub(super) fn stay_until_all_know(events: &Events) {
    let limit = Instant::now() + LIMIT;
    while let Some(event) = next(events, limit) {
        if matches!(event, SliceEvent::Lost(..)) {
            return;
        }
    }
}

/// The next event before the limit, also while one comes after the other.
fn next(events: &Events, limit: Instant) -> Option<SliceEvent> {
    if Instant::now() < limit { events.recv(Some(limit)).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::BOOTSTRAP;
    use super::super::events::channel;
    use super::*;
    use std::thread;
    use wire::control::EndCause;

    #[test]
    fn bootstrap_waits_for_each_companion_that_is_there() {
        let (sender, events) = channel();
        sender.send(SliceEvent::EndSeen(SliceId(1)));
        sender.send(SliceEvent::AskReport);
        sender.send(SliceEvent::LostDevices(SliceId(2), "silent".into()));
        sender.send(SliceEvent::EndSeen(SliceId(3)));
        sender.send(SliceEvent::WantStop(SliceId(3)));
        wait_until_all_know([1, 2, 3].map(SliceId).into(), &events);
        // What came after the last answer is still there.
        assert!(matches!(events.try_iter().next(), Some(SliceEvent::WantStop(_))));
        wait_until_all_know(BTreeSet::new(), &events);
    }

    #[test]
    fn companion_stays_until_the_bootstrap_closes() {
        let (sender, events) = channel();
        sender.send(SliceEvent::Fatal("a vCPU failed".into()));
        sender.send(SliceEvent::AskReport);
        sender.send(SliceEvent::Lost(BOOTSTRAP, "it has closed".into()));
        sender.send(SliceEvent::EndSeen(SliceId(3)));
        stay_until_all_know(&events);
        assert_eq!(events.try_iter().count(), 2, "urgent ones come first");
    }

    #[test]
    fn wait_ends_also_while_a_peer_wants_the_end_without_end() {
        let (sender, events) = channel();
        let (over, ended) = crossbeam_channel::bounded::<()>(0);
        let flood = thread::spawn(move || {
            while ended.try_recv() == Err(crossbeam_channel::TryRecvError::Empty) {
                sender.send(SliceEvent::WantEnd(SliceId(1), EndCause::Reset));
            }
        });
        wait_until_all_know([SliceId(1)].into(), &events);
        stay_until_all_know(&events);
        drop(over);
        flood.join().unwrap();
    }
}
