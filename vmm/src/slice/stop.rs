//! An orderly end: what a request to stop the VM leads to.
//!
//! ```text
//!   running --asked--> button pressed, again each second until the guest hears it --guest powers off--> over
//!                        |  asked again here, or the guest's time is up
//!                        v
//!                      over, without the guest
//! ```
//!
//! The power button is ACPI's (ACPI 6.5, 4.8.2.2.1.1): a stock guest shuts down in order when it is pressed.
//! A request that comes by another slice (`WantStop`) presses the button as well, but never ends the VM by itself: hosts that
//! are all told to stop at once would otherwise cut the guest off.

use super::events::{EventSender, SliceEvent};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use wire::SliceId;

/// A guest has no longer than this, which is for ever: times are added to.
pub(super) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Between presses that the guest does not hear, e.g. since it is still booting.
const AGAIN: Duration = Duration::from_secs(1);

/// Asks a running slice to stop; for handlers of signals. Clones ask the same slice.
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<Asking>);

#[derive(Debug, Default)]
struct Asking {
    events: OnceLock<EventSender>,
    is_asked: AtomicBool,
    is_over: AtomicBool,
}

impl StopHandle {
    /// A handle that is not of any slice yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the end. The first request is one for an orderly end, a second one ends the slice at once.
    /// False: no slice runs yet, or none any more, so that the process may just exit.
    #[must_use]
    pub fn ask(&self) -> bool {
        self.note();
        let Some(events) = self.0.events.get().filter(|_| !self.0.is_over.load(SeqCst)) else {
            return false;
        };
        events.send(SliceEvent::Stop);
        true
    }

    /// Somebody has asked elsewhere.
    pub(super) fn note(&self) {
        self.0.is_asked.store(true, SeqCst);
    }

    /// The slice has ended: from now on [`Self::ask`] is false. Whether somebody has asked before.
    #[must_use]
    pub fn end(&self) -> bool {
        self.0.is_over.store(true, SeqCst);
        self.0.is_asked.load(SeqCst)
    }

    /// From now on requests go to this slice.
    pub(super) fn attach(&self, events: &EventSender) {
        let _ = self.0.events.set(events.clone());
    }
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopStep {
    /// Nothing.
    Wait,
    /// Press the power button, and tell [`StopPlan::pressed`] whether the guest heard it.
    Press,
    /// End the VM: the guest has had its time, or is not to have it.
    End(WhyStopped),
}

/// Why the guest was not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhyStopped {
    /// It was asked for a second time.
    AskedAgain,
    /// The guest did not shut down in its time.
    TimeIsUp,
}

/// Decides what requests to stop lead to. It reads no clock and presses nothing.
#[derive(Debug)]
pub(super) struct StopPlan {
    /// The guest's time to shut down.
    limit: Duration,
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    /// The guest's time ends.
    until: Instant,
    /// The next press; none once the guest has heard one.
    press: Option<Instant>,
    /// By this process, not by another slice.
    here: bool,
}

impl StopPlan {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit: limit.min(LONGEST), asked: None }
    }

    /// Whether somebody has asked.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The guest's time to shut down is another one, as far as nobody has asked yet.
    pub(super) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit.min(LONGEST);
    }

    /// Somebody asks for the end: this process, or the slice that it came by.
    pub(super) fn ask(&mut self, by: Option<SliceId>, now: Instant) -> StopStep {
        let here = by.is_none();
        match &mut self.asked {
            None => {
                self.asked = Some(Asked { until: now + self.limit, press: Some(now), here });
                self.step(now)
            }
            Some(asked) if here && asked.here => StopStep::End(WhyStopped::AskedAgain),
            Some(asked) => {
                asked.here |= here;
                self.step(now)
            }
        }
    }

    /// The button was pressed.
    pub(super) fn pressed(&mut self, heard: bool, now: Instant) {
        if let Some(asked) = &mut self.asked {
            asked.press = (!heard).then_some(now + AGAIN);
        }
    }

    /// When [`Self::step`] has something to say, if nothing else happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let asked = self.asked.as_ref()?;
        Some(asked.press.map_or(asked.until, |press| press.min(asked.until)))
    }

    /// What is to be done now.
    pub(super) fn step(&self, now: Instant) -> StopStep {
        match &self.asked {
            Some(asked) if now >= asked.until => StopStep::End(WhyStopped::TimeIsUp),
            Some(Asked { press: Some(press), .. }) if now >= *press => StopStep::Press,
            _ => StopStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::events;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn first_request_presses_until_heard_and_second_ends() {
        let start = Instant::now();
        let mut plan = StopPlan::new(LIMIT);
        assert_eq!((plan.due(), plan.step(start)), (None, StopStep::Wait));
        assert_eq!(plan.ask(None, start), StopStep::Press);
        plan.pressed(false, start);
        assert_eq!(plan.step(start), StopStep::Wait);
        assert_eq!(plan.due(), Some(start + AGAIN));
        assert_eq!(plan.step(start + AGAIN), StopStep::Press);
        plan.pressed(true, start + AGAIN);
        assert_eq!(plan.due(), Some(start + LIMIT));
        assert_eq!(plan.ask(None, start + AGAIN), StopStep::End(WhyStopped::AskedAgain));
    }

    #[test]
    fn guest_that_does_not_shut_down_is_ended_at_its_limit() {
        let start = Instant::now();
        let mut plan = StopPlan::new(LIMIT);
        assert_eq!(plan.ask(None, start), StopStep::Press);
        plan.pressed(true, start);
        assert_eq!(plan.step(start + LIMIT - AGAIN), StopStep::Wait);
        assert_eq!(plan.step(start + LIMIT), StopStep::End(WhyStopped::TimeIsUp));
    }

    #[test]
    fn limit_may_be_as_long_as_the_option_takes() {
        let (start, mut plan) = (Instant::now(), StopPlan::new(Duration::from_secs(u64::MAX)));
        assert_eq!(plan.ask(None, start), StopStep::Press);
        assert!(plan.due().is_some());
    }

    #[test]
    fn slice_that_does_not_run_is_not_asked() {
        let (sender, receiver) = events::channel();
        let handle = StopHandle::new();
        assert!(!handle.ask());
        handle.attach(&sender);
        assert!(handle.ask() && handle.ask());
        assert!(matches!(receiver.recv(None), Ok(SliceEvent::Stop)));
    }

    /// Who begins a VM anew must not miss a request.
    #[test]
    fn slice_that_has_ended_is_asked_nothing() {
        let (sender, receiver) = events::channel();
        let handle = StopHandle::new();
        handle.attach(&sender);
        assert!(!handle.clone().end(), "nobody has asked");
        assert!(!handle.ask());
        assert!(handle.end());
        assert!(receiver.recv(Some(Instant::now())).is_err(), "the slice was told nothing");

        let (sender, _receiver) = events::channel();
        let handle = StopHandle::new();
        handle.attach(&sender);
        handle.note();
        assert!(handle.end(), "another slice was asked");
    }

    proptest! {
        #[test]
        fn companions_alone_never_end_the_vm_early(
            requests in prop::collection::vec((any::<bool>(), 0u64..2000, any::<bool>()), 1..60),
        ) {
            let start = Instant::now();
            let mut plan = StopPlan::new(LIMIT);
            let (mut now, mut own, mut first) = (start, 0, None);
            for (here, wait, heard) in requests {
                now += Duration::from_millis(wait);
                let step = plan.ask((!here).then_some(SliceId(1)), now);
                let first = *first.get_or_insert(now);
                own += u32::from(here);
                match step {
                    StopStep::End(WhyStopped::AskedAgain) => {
                        prop_assert_eq!(own, 2);
                        return Ok(());
                    }
                    StopStep::End(WhyStopped::TimeIsUp) => {
                        prop_assert!(now - first >= LIMIT);
                        return Ok(());
                    }
                    StopStep::Press => plan.pressed(heard, now),
                    StopStep::Wait => {}
                }
                prop_assert!(own < 2);
                prop_assert!(plan.due().is_some_and(|due| due <= first + LIMIT));
            }
        }
    }
}
