//! Does one job after another.

use super::RelocationError;
use super::job::{Job, pulls};
use crate::slice::channels::{Channels, DeviceJob};
use crate::slice::cut_link::{CutError, CutHandle, Input};
use crate::slice::events::SliceEvent;
use crate::slice::handover::MoveHandle;
use crate::slice::joining::{Invited, JoinFailure};
use crate::slice::one_line;
use crate::slice::operations::Ongoing;
use crate::slice::pulling;
use crossbeam_channel::{RecvTimeoutError, bounded};
use dsm::HomeMoveError;
use migrate::Placement;
use migrate::cut::DeviceMove;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::control::{OrderedChange, RelocatedPart};
use wire::{Control, Epoch, SliceId};

/// For the homes of one piece of memory to move, two round trips for each of its few chunks. A slice that hangs is lost
/// long before.
const HOMES_LIMIT: Duration = Duration::from_secs(120);
/// For all slices to put a placement in force, which the order of changes bounds.
const PLACE_LIMIT: Duration = Duration::from_secs(120);

/// For the clock of a slice to be measured twice.
const CLOCK_LIMIT: Duration = Duration::from_secs(10);
/// For the slice that coordinates to have this one leave.
const LEAVE_LIMIT: Duration = Duration::from_secs(280);
/// Times that a slice is to leave that still has a page.
const LEAVE_TRIES: u32 = 4;
/// No try, and no pull of a piece, begins later. Either takes two minutes at most, so whoever waits for [`LEAVE_LIMIT`] is told the truth.
const LEAVE_TRIES_LIMIT: Duration = Duration::from_secs(140);

/// What does the jobs of one operation.
pub(super) struct Executor<'a> {
    pub(super) moves: &'a MoveHandle,
    pub(super) cuts: &'a CutHandle,
    pub(super) channels: &'a Channels,
    /// Nothing else is done to the VM meanwhile.
    pub(super) ongoing: Arc<Ongoing>,
    /// The slice that is to join, if one is.
    pub(super) newcomer: RefCell<Option<Invited<'a>>>,
}

impl Executor<'_> {
    pub(super) fn run(&self, job: &Job) -> Result<(), RelocationError> {
        match job {
            Job::Vcpu { vcpu, to } => {
                self.clock_in_step(*to)?;
                self.moves.move_to(*vcpu, *to, &self.ongoing)?;
                Ok(())
            }
            Job::Queues { device, first, queues, to } => {
                let (device, first, queues) = (*device, *first, *queues);
                self.place(RelocatedPart::Queues { device, first, queues }, *to, self.next_epoch())
            }
            Job::Device { device, to } => self.move_device(*device, *to),
            Job::Coordinate(slice) => {
                let ongoing = Arc::clone(&self.ongoing);
                self.cuts.ask(|reply| Input::HandOver(*slice, ongoing, reply))?;
                Ok(())
            }
            Job::Join(slice) => self.join(*slice),
            Job::Leave(slice) if *slice == self.channels.local() => self.leave_oneself(),
            Job::Leave(slice) => self.leave(*slice),
            Job::Home { frames, to } => self.home(frames, *to),
            Job::Pull { home, frames, from } => {
                Ok(pulling::pull(self.channels, (*home, frames.clone()), *from)?)
            }
        }
    }

    /// Brings all slices to rest for it.
    fn move_device(&self, device: u16, to: SliceId) -> Result<(), RelocationError> {
        let placement = self.channels.placement.load();
        let place = placement.devices().get(usize::from(device)).ok_or(RelocationError::Over)?;
        let moved = DeviceMove { device, from: place.owner, to };
        let ongoing = Arc::clone(&self.ongoing);
        self.cuts.ask(|reply| Input::MoveDevice(moved, ongoing, reply))?;
        Ok(())
    }

    /// A page that was being brought elsewhere may have come to the slice since it was pulled empty: it is pulled again then.
    pub(super) fn leave(&self, slice: SliceId) -> Result<(), RelocationError> {
        let began = Instant::now();
        let has_time = || began.elapsed() < LEAVE_TRIES_LIMIT;
        for last in (0..LEAVE_TRIES).rev() {
            let ongoing = Arc::clone(&self.ongoing);
            match self.cuts.ask(|reply| Input::Leave(slice, ongoing, reply)) {
                Ok(_) => return Ok(()),
                Err(CutError::GivenUp(why)) if last > 0 => {
                    tracing::info!("{slice} stays for now: {why}");
                }
                Err(error) => return Err(error.into()),
            }
            let placement = Placement::clone(&self.channels.placement.load());
            for (home, frames) in pulls(&placement, slice).take_while(|_| has_time()) {
                pulling::pull(self.channels, (home, frames), slice)?;
            }
            if !has_time() {
                let why = format!("{slice} could not leave within {LEAVE_TRIES_LIMIT:?}");
                return Err(CutError::GivenUp(why).into());
            }
        }
        Ok(())
    }

    /// All slices call the newcomer; then it is a member, in a cut.
    fn join(&self, slice: SliceId) -> Result<(), RelocationError> {
        let newcomer = self.newcomer.borrow_mut().take().filter(|it| it.slice == slice);
        let mut newcomer = newcomer.ok_or(JoinFailure::Uncalled)?;
        newcomer.commit(&Placement::clone(&self.channels.placement.load()))?;
        newcomer.meet(self.channels)?;
        let ongoing = Arc::clone(&self.ongoing);
        let admit = || newcomer.admit(self.channels).map_err(|error| one_line(&error));
        self.cuts.join(slice, ongoing, admit)?;
        self.clock_in_step(slice)
    }

    /// A vCPU takes its counter from the slice where it is. A newcomer's was set before it built its machine; and an operator may send a
    /// vCPU to one whose clock was not found while it joined. A slice with devices only gets no vCPU, which the move itself refuses.
    fn clock_in_step(&self, slice: SliceId) -> Result<(), RelocationError> {
        let channels = self.channels;
        let needs_none = slice == channels.local() || channels.bystanders.contains(&slice);
        if needs_none || channels.clock_rounds.wait(slice, CLOCK_LIMIT) {
            Ok(())
        } else {
            Err(RelocationError::Clock(slice, CLOCK_LIMIT))
        }
    }

    /// The slice that coordinates now has this one leave.
    fn leave_oneself(&self) -> Result<(), RelocationError> {
        let channels = self.channels;
        let told = channels.succession.wait();
        channels.send(channels.coordinator(), &Control::WantLeave);
        match told.recv_timeout(LEAVE_LIMIT) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(RelocationError::Stays(why)),
            Err(RecvTimeoutError::Timeout) => {
                Err(RelocationError::Stays(format!("no answer within {LEAVE_LIMIT:?}")))
            }
            Err(RecvTimeoutError::Disconnected) => Err(RelocationError::Over),
        }
    }

    fn next_epoch(&self) -> Epoch {
        // There is none behind the last: the placement refuses it.
        Epoch(self.channels.placement.load().epoch().0.saturating_add(1))
    }

    fn home(&self, frames: &Range<u64>, to: SliceId) -> Result<(), RelocationError> {
        let engine = self.channels.handle.get().ok_or(RelocationError::Over)?;
        let epoch = self.next_epoch();
        if let Err(error) = engine.move_home(frames.clone(), to, epoch, HOMES_LIMIT) {
            let text = one_line(&error);
            // Some chunks may have another home already, which no placement says, unless nothing was begun.
            if !matches!(error, HomeMoveError::NotAMember(_) | HomeMoveError::NoMemory(_)) {
                self.channels.event(SliceEvent::Fatal(format!("homes move to {to}: {text}")));
            }
            return Err(RelocationError::Homes(text));
        }
        let count = u32::try_from(frames.end - frames.start).expect("a piece has few frames");
        self.place(RelocatedPart::Memory { first: frames.start, frames: count }, to, epoch)
    }

    /// Has all slices put the next placement in force.
    fn place(
        &self,
        part: RelocatedPart,
        to: SliceId,
        placement: Epoch,
    ) -> Result<(), RelocationError> {
        let (done, told) = bounded(1);
        let change = OrderedChange::Relocated { part, to, placement };
        let job = DeviceJob::Place(change, done);
        let sent = self.channels.jobs().send_timeout(job, PLACE_LIMIT);
        sent.map_err(|_| RelocationError::Over)?;
        // An order that breaks ends the VM, and one that is still to come would change the placement under others.
        told.recv_timeout(PLACE_LIMIT).map_err(|error| {
            if error == RecvTimeoutError::Timeout {
                let text = format!("{part:?} has not gone to {to} within {PLACE_LIMIT:?}");
                self.channels.event(SliceEvent::Fatal(text));
            }
            RelocationError::Over
        })
    }
}
