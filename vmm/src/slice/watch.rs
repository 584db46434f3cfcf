//! The main thread of a slice while the guest runs: what ends the VM, or this slice alone.
//!
//! ```text
//!                   ends, losses, the time limit, two requests to stop
//!   coordinates: ------------------------------------------------------> reports gathered, all told: End
//!     |      ^
//!     |      |  Coordinates
//!     v      |      the coordinator says End
//!   follows: ------------------------------------------------------> EndSeen
//!            \--Dismissed--> it ends alone, and the VM goes on
//! ```

use super::borrowing::own_load;
use super::coordination::Coordination;
use super::end;
use super::events::SliceEvent;
use super::launch::{Parts, ending_of};
use super::negotiation::Launch;
use super::peripherals::BackEnds;
use super::report::{LostSlice, RunReport, SliceReport};
use super::stop::{StopPlan, StopStep, WhyStopped};
use super::{Ending, one_line};
use crate::control::Desk;
use crossbeam_channel::RecvTimeoutError;
use dsm::Handle;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::control::EndCause;
use wire::{Control, SliceId};

/// For the reports of all slices.
const REPORT_LIMIT: Duration = Duration::from_secs(4);
/// For a checkpoint that is being written to be given up, or to become one.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(2);
/// Events that wait until all slices know that this one coordinates.
const EARLY_MAX: usize = 64;
/// For whoever has this slice drained to hear that it is.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A slice whose guest runs, and what it is to be reported with.
pub(super) struct Watch {
    pub(super) parts: Parts,
    pub(super) coordination: Arc<Coordination>,
    pub(super) back_ends: BackEnds,
    pub(super) launch: Launch,
    /// Name of this host.
    pub(super) host: String,
    /// Who has said that the VM is over.
    pub(super) told_by: Option<SliceId>,
}

impl Watch {
    /// Waits for the end of the VM, or of this slice, and brings it to an end.
    pub(super) fn run(mut self, desk: &Desk) -> (Ending, RunReport) {
        let (ending, led) = self.wait_for_end();
        // One that has just come to coordinate may be told by the one before.
        let coordinates = led && self.told_by.is_none();
        if coordinates {
            // It stays with this slice to bring the VM to its end.
            self.parts.channels.cut.end();
            if !self.is_heard_by_nobody(&ending) {
                self.parts.channels.checkpoints.end_writer(CHECKPOINT_LIMIT);
            }
            self.parts.channels.checkpoints.end();
        }
        let seconds = self.coordination.terms().started.elapsed().as_secs_f64();
        let (slices, lost_devices) = if coordinates {
            let slices = self.gather_reports(&ending);
            self.tell_all(&ending);
            (slices, std::mem::take(&mut self.coordination.terms().lost))
        } else {
            (vec![self.report()], Vec::new())
        };
        let report = RunReport {
            ending: ending.describe(),
            status: ending.status(),
            seconds,
            interrupts: self.launch.interrupts.back_end().to_string(),
            page_tables: self.launch.page_tables,
            lost_devices,
            slices,
        };
        if let Ending::Drained | Ending::Saved = &ending {
            desk.wait_until_answered(ANSWER_LIMIT);
        }
        let Self { parts, coordination, back_ends, told_by, .. } = self;
        if matches!(ending, Ending::Told(_)) && !coordinates {
            tracing::info!("the VM is over; the coordinator tells the other slices");
            parts.stop_vcpus();
            // As long as the fence is open: who closes first is lost to the others, which shuts theirs.
            back_ends.finish();
            let by = told_by.unwrap_or_else(|| parts.channels.coordinator());
            parts.channels.send(by, &Control::EndSeen);
            end::stay_until_all_know(&parts.events);
        }
        parts.stop();
        coordination.finish();
        back_ends.finish();
        (ending, report)
    }

    /// How it has ended, and whether this slice coordinated then, as far as it knew.
    fn wait_for_end(&mut self) -> (Ending, bool) {
        let mut stop = StopPlan::new(self.coordination.terms().stop_limit);
        let mut asked = false;
        // As far as this thread has been told, so that nothing is done before it knows the terms.
        let mut leads = false;
        // What came before all others know that this slice coordinates.
        let mut early = Vec::new();
        loop {
            let channels = &self.parts.channels;
            let limit = self.coordination.terms().limit;
            let deadline = [limit, stop.due()].into_iter().flatten().min();
            let event = match self.parts.events.recv(deadline.filter(|_| leads)) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    Some(SliceEvent::Fatal("its threads are gone".into()))
                }
            };
            match event {
                Some(SliceEvent::Coordinates) if channels.leads() => {
                    leads = true;
                    stop.set_limit(self.coordination.terms().stop_limit);
                    early.drain(..).for_each(|event| channels.events.send(event));
                }
                Some(SliceEvent::Coordinates) => {
                    leads = false;
                    // The guest may not have heard the button, and the next one knows nothing of it.
                    if stop.is_asked() {
                        channels.send(channels.coordinator(), &Control::WantStop);
                    }
                    stop = StopPlan::new(Duration::ZERO);
                    early.drain(..).for_each(|event| channels.events.send(event));
                }
                Some(
                    event @ (SliceEvent::Stop | SliceEvent::WantStop(_) | SliceEvent::WantEnd(..)),
                ) if !leads && channels.succession.is_chosen() => {
                    // More than that say the same.
                    if early.len() < EARLY_MAX {
                        early.push(event);
                    }
                }
                event => {
                    if let Some(ending) = self.take(event, (leads, limit), &mut stop, &mut asked) {
                        return (ending, leads);
                    }
                }
            }
        }
    }

    /// What follows from an event, or from the time.
    fn take(
        &mut self,
        event: Option<SliceEvent>,
        (leads, limit): (bool, Option<Instant>),
        stop: &mut StopPlan,
        asked: &mut bool,
    ) -> Option<Ending> {
        let channels = &self.parts.channels;
        match &event {
            Some(SliceEvent::Fatal(cause)) if !leads => self.complain(cause, EndCause::Failure),
            Some(SliceEvent::Overtaken(cause)) if !leads => {
                self.complain(cause, EndCause::Overtaken);
            }
            // It came while this slice coordinated.
            Some(SliceEvent::WantEnd(_, cause)) if !leads => {
                channels.send(channels.coordinator(), &Control::WantEnd(*cause));
                return None;
            }
            Some(SliceEvent::End(from, _)) => self.told_by = Some(*from),
            _ => {}
        }
        let (local, panicked) = (self.parts.local, self.coordination.has_panicked());
        let over = event.as_ref().and_then(|event| ending_of(event, local, panicked));
        if over.is_some() {
            return over;
        }
        if leads { self.coordinate(event, limit, stop) } else { self.follow(event.as_ref(), asked) }
    }

    /// The coordinator is to end the VM: this slice cannot go on.
    fn complain(&self, why: &str, cause: EndCause) {
        tracing::error!("{why}");
        let channels = &self.parts.channels;
        channels.send(channels.coordinator(), &Control::WantEnd(cause));
        // The coordinator ends the VM; give the frame time to leave.
        std::thread::sleep(Duration::from_millis(200));
    }

    /// What else happens on the coordinator.
    fn coordinate(
        &self,
        event: Option<SliceEvent>,
        limit: Option<Instant>,
        stop: &mut StopPlan,
    ) -> Option<Ending> {
        // Deadlines count also while events keep coming.
        let now = Instant::now();
        if limit.is_some_and(|limit| now >= limit) {
            return Some(Ending::TimeLimit);
        }
        let step = match event {
            Some(SliceEvent::Stop) => stop.ask(None, now),
            Some(SliceEvent::WantStop(from)) => {
                tracing::info!("{from} was asked to stop");
                // It may have come before there was whom to tell.
                self.parts.channels.note_stop();
                stop.ask(Some(from), now)
            }
            Some(SliceEvent::LostDevices(slice, cause)) => {
                self.coordination.terms().lost.push(LostSlice { slice: slice.0, cause });
                stop.step(now)
            }
            _ => stop.step(now),
        };
        let limit = self.coordination.terms().stop_limit;
        match step {
            StopStep::Wait => None,
            StopStep::Press => {
                // A paused guest hears no button.
                self.parts.channels.cut.go_on();
                self.press(stop, limit);
                None
            }
            StopStep::End(why) => Some(stopped(why, limit)),
        }
    }

    fn press(&self, stop: &mut StopPlan, limit: Duration) {
        let chipset = self.parts.channels.chipset.load();
        let heard = chipset.as_ref().is_some_and(|chipset| chipset.press_power_button());
        if heard {
            tracing::info!(
                "asked to stop: the guest has {limit:?} to shut down; asked again, the VM ends at once"
            );
        } else {
            tracing::warn!(
                "asked to stop, but the guest does not listen to its power button (yet)"
            );
        }
        stop.pressed(heard, Instant::now());
    }

    /// What else happens on any other slice.
    fn follow(&self, event: Option<&SliceEvent>, asked: &mut bool) -> Option<Ending> {
        let channels = &self.parts.channels;
        match event {
            Some(SliceEvent::AskReport) => {
                let bytes = serde_json::to_vec(&self.report()).unwrap_or_default();
                channels.send(channels.coordinator(), &Control::Report(bytes));
            }
            Some(SliceEvent::AskLoad) => {
                if let Some(load) = own_load(channels, &self.parts.machine) {
                    channels.send(channels.coordinator(), &Control::Load(load));
                }
            }
            Some(SliceEvent::Stop) => {
                if *asked {
                    let cause = "asked twice; the VM has lost this slice".into();
                    return Some(Ending::Stopped { cause });
                }
                *asked = true;
                tracing::info!(
                    "asked to stop: the guest is to shut down; asked again, this slice ends at once"
                );
                channels.send(channels.coordinator(), &Control::WantStop);
            }
            Some(SliceEvent::LostDevices(slice, cause)) => {
                let (slice, cause) = (slice.0, cause.clone());
                self.coordination.terms().lost.push(LostSlice { slice, cause });
            }
            // It came while this slice coordinated.
            Some(SliceEvent::WantStop(_)) => {
                channels.send(channels.coordinator(), &Control::WantStop);
            }
            _ => {}
        }
        None
    }

    /// What this slice did. Its clock is the measure while it coordinates.
    fn report(&self) -> SliceReport {
        let index = usize::from(self.parts.local.0);
        let clock = self.launch.clocks.get(index).copied().unwrap_or_default();
        self.parts.report(&self.host, clock)
    }

    /// This slice's report and those of the others that still answer.
    fn gather_reports(&self, ending: &Ending) -> Vec<SliceReport> {
        let mut reports = vec![self.report()];
        let members = 1 + self.parts.channels.others().len();
        if self.is_heard_by_nobody(ending) || members == 1 {
            return reports;
        }
        // Whoever counts meanwhile gets no more.
        self.parts.channels.reports.end();
        self.tell(&Control::AskReport);
        let deadline = Instant::now() + REPORT_LIMIT;
        while reports.len() < members && Instant::now() < deadline {
            match self.parts.events.recv(Some(deadline)) {
                Ok(SliceEvent::Report(from, bytes)) => match serde_json::from_slice(&bytes) {
                    Ok(report) => reports.push(report),
                    Err(error) => {
                        let error = one_line(&error);
                        tracing::warn!("{from} sent an unreadable report: {error}");
                    }
                },
                Ok(_) => {}
                Err(_) => break,
            }
        }
        if let Some(clock_sync) = self.parts.dispatcher.clock_sync.get() {
            for report in &mut reports {
                if let Some(clock) = clock_sync.measured(SliceId(report.slice)) {
                    (report.clock_skew_ns, report.clock_bound_ns) = clock;
                }
            }
        }
        reports.sort_by_key(|report| report.slice);
        reports
    }

    fn tell(&self, frame: &Control) {
        let channels = &self.parts.channels;
        channels.others().into_iter().for_each(|slice| channels.send(slice, frame));
    }

    /// The memory engine ends with the loss of a slice. If it has ended otherwise, or the others have given this slice up, nobody answers either.
    fn is_heard_by_nobody(&self, ending: &Ending) -> bool {
        let channels = &self.parts.channels;
        matches!(ending, Ending::LostSlice { .. })
            || channels.fence.get().is_some_and(|fence| fence.has_expired())
            || channels.handle.get().is_some_and(Handle::has_ended)
    }

    /// All slices hear how the VM has ended, and none closes before the others know.
    fn tell_all(&self, ending: &Ending) {
        let cause = match ending {
            Ending::Reset => EndCause::Reset,
            Ending::GuestPanic => EndCause::GuestPanic,
            Ending::PowerOff => EndCause::PowerOff,
            Ending::TimeLimit => EndCause::TimeLimit,
            Ending::Stopped { .. } => EndCause::Stopped,
            Ending::Saved => EndCause::Saved,
            Ending::Told(cause) => *cause,
            // The coordinator is not dismissed.
            Ending::Drained => EndCause::Stopped,
            Ending::Overtaken { .. } => EndCause::Overtaken,
            Ending::LostSlice { .. } | Ending::Failed { .. } => EndCause::Failure,
        };
        self.tell(&Control::End(cause));
        if self.is_heard_by_nobody(ending) {
            return;
        }
        self.parts.stop_vcpus();
        let told = self.parts.channels.others().into_iter().collect();
        end::wait_until_all_know(told, &self.parts.events);
    }
}

fn stopped(why: WhyStopped, limit: Duration) -> Ending {
    Ending::Stopped {
        cause: match why {
            WhyStopped::AskedAgain => "asked twice, the guest was not waited for".into(),
            WhyStopped::TimeIsUp => format!("the guest did not shut down within {limit:?}"),
        },
    }
}
