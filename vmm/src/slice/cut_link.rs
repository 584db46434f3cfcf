//! The ways to the threads that bring a slice, or the whole VM, to rest. The threads themselves are in `cut`.
//!
//! ```text
//!   control socket --CutHandle--------------------> driver (coordinator)
//!   frames of other slices --CutLinks::take--+----> driver: what slices answer
//!                                            +----> member: what slices are asked for
//! ```

use super::operations::{Busy, Ongoing};
use super::refusing::Explains;
use crate::control::{PausesVm, Reason, Refusal};
use crossbeam_channel::{Sender, bounded};
use migrate::cut::{DeviceMove, FIRST_CUT, Message, Step};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;
use wire::{SLICES_MAX, SliceId};

/// For all slices to say that they run.
pub(super) const RESUME_LIMIT: Duration = Duration::from_secs(30);

/// Why the VM is not as it was asked to be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum CutError {
    /// It is paused already, or about to be.
    #[error(transparent)]
    Refused(#[from] migrate::cut::Refusal),
    /// It does not go on from here.
    #[error("the VM ends with its checkpoint")]
    Ends,
    /// Something else is done to the VM.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// It runs on.
    #[error("given up, and the VM runs on: {0}")]
    GivenUp(String),
    /// There is nothing to resume.
    #[error("the VM is not paused")]
    NotPaused,
    /// Some slice has not said that it runs.
    #[error("not all slices have said within {RESUME_LIMIT:?} that they run")]
    Silent,
    /// A signal has asked it to stop.
    #[error("the VM is asked to stop")]
    Stopping,
    /// The VM is over.
    #[error("the VM is over")]
    Over,
}

impl Explains for CutError {
    fn reason(&self) -> Reason {
        match self {
            Self::Refused(refusal) => refusal.reason(),
            Self::Busy(busy) => busy.reason(),
            Self::GivenUp(_) => Reason::Failed,
            Self::NotPaused => Reason::NotPaused,
            Self::Silent => Reason::Silent,
            Self::Ends | Self::Stopping | Self::Over => Reason::Over,
        }
    }
}

/// Whoever has a newcomer begin is told so here, with the number of the cut.
pub(super) type Admission = Sender<u64>;

/// Who asked waits here; gives how long it took.
pub(super) type Reply = Sender<Result<Duration, CutError>>;

/// What the driver is told.
pub(super) enum Input {
    /// Bring all slices to rest.
    Pause(Reply),
    /// Have them go on.
    Resume(Reply),
    /// Bring all slices to rest, have this one leave, and have the others go on; as a part of an operation.
    Leave(SliceId, Arc<Ongoing>, Reply),
    /// Bring all slices to rest, have this one coordinate, and have all go on; as a part of an operation.
    HandOver(SliceId, Arc<Ongoing>, Reply),
    /// Bring all slices to rest, have this one join that they all have a link to, and have all go on; as a part of an
    /// operation.
    Join(SliceId, (Arc<Ongoing>, Admission), Reply),
    /// A newcomer is gone. The VM goes on, unless it is a member already for some.
    Missed(SliceId),
    /// Bring all slices to rest, have a device go to another host, and have all go on; as a part of an operation.
    MoveDevice(DeviceMove, Arc<Ongoing>, Reply),
    /// Bring all slices to rest, and have them begin to write the checkpoint of this number; as a part of an operation.
    /// They stay at rest.
    Capture(u64, Arc<Ongoing>, Reply),
    /// A checkpoint with which the VM ends is about to exist: they stay at rest, whatever happens, until [`Self::Release`].
    Hold(Reply),
    /// There is no such checkpoint. What has come meanwhile is done now.
    Release,
    /// Have them go on, whether they are at rest or not; nobody waits for it.
    GoOn,
    /// What a slice answers.
    Message(SliceId, Message),
    /// A slice is gone, and the VM goes on.
    Lost(SliceId),
    /// The VM is over.
    Over,
}

impl Input {
    /// Tells whoever waits for the end of it that it is not done.
    pub(super) fn refuse(self, error: CutError) {
        let (Self::Pause(reply)
        | Self::Resume(reply)
        | Self::Leave(.., reply)
        | Self::HandOver(.., reply)
        | Self::MoveDevice(.., reply)
        | Self::Capture(.., reply)
        | Self::Hold(reply)
        | Self::Join(.., reply)) = self
        else {
            return;
        };
        // Whoever asked may have gone.
        let _ = reply.try_send(Err(error));
    }
}

/// Pauses a VM and has it go on. Clones are of the same VM.
#[derive(Clone)]
pub(super) struct CutHandle(Sender<Input>);

impl fmt::Debug for CutHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutHandle")
    }
}

impl CutHandle {
    /// The handle of the driver that takes these.
    pub(super) fn new(inputs: Sender<Input>) -> Self {
        Self(inputs)
    }

    /// Asks for something that has a [`Reply`]; waits for the end of it, which has a limit.
    pub(super) fn ask(&self, input: impl FnOnce(Reply) -> Input) -> Result<Duration, CutError> {
        let (reply, answer) = bounded(1);
        self.0.send(input(reply)).map_err(|_| CutError::Over)?;
        answer.recv().unwrap_or(Err(CutError::Over))
    }
}

impl CutHandle {
    /// The VM does not end with a checkpoint: it may go on.
    pub(super) fn release(&self) {
        // Of a VM that is over nobody is left who could.
        let _ = self.0.send(Input::Release);
    }

    /// Has a slice join, as a part of an operation. `admit` is called when all slices are at rest and have taken it into
    /// their transports.
    pub(super) fn join(
        &self,
        slice: SliceId,
        ongoing: Arc<Ongoing>,
        admit: impl FnOnce() -> Result<(), String>,
    ) -> Result<Duration, CutError> {
        let ((reply, answer), (admission, admitted)) = (bounded(1), bounded(1));
        self.0.send(Input::Join(slice, (ongoing, admission), reply)).map_err(|_| CutError::Over)?;
        // The driver forgets the one when it is asked for nothing else, and always answers.
        if let Ok(number) = admitted.recv()
            && let Err(why) = admit()
        {
            let failed = Input::Message(slice, Message::Failed(number, why));
            self.0.send(failed).map_err(|_| CutError::Over)?;
        }
        answer.recv().unwrap_or(Err(CutError::Over))
    }
}

impl PausesVm for CutHandle {
    fn pause(&self) -> Result<Duration, Refusal> {
        self.ask(Input::Pause).map_err(|error| error.refusal())
    }

    fn resume(&self) -> Result<Duration, Refusal> {
        self.ask(Input::Resume).map_err(|error| error.refusal())
    }
}

/// More messages about a cut, or a checkpoint, have come than anybody has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The ways to the threads of this slice that cuts need. Nobody is there before the guest starts and when it has ended.
#[derive(Default)]
pub(super) struct CutLinks(Mutex<Links>);

impl fmt::Debug for CutLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutLinks")
    }
}

#[derive(Default)]
struct Links {
    member: Option<Sender<(SliceId, Message)>>,
    /// On the coordinator.
    driver: Option<Sender<Input>>,
    /// What slices of a VM that is restored have said before this one could decide.
    early: Vec<(SliceId, Message)>,
    /// The VM is over: who is at rest stays so.
    is_over: bool,
    /// How often this slice has come to coordinate.
    term: u64,
    /// Slices that are gone and without which the VM goes on. The placement does not say so.
    lost: BTreeSet<SliceId>,
    /// Slices that are to join.
    expected: BTreeSet<SliceId>,
    /// The slice that leaves, while the others part with it.
    leaver: Option<SliceId>,
    /// Slices that were to join, and that this one has lost.
    missed: BTreeSet<SliceId>,
    /// The others go on without this slice, which ends.
    is_dismissed: bool,
}

impl CutLinks {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This slice can be brought to rest.
    pub(super) fn set_member(&self, member: Sender<(SliceId, Message)>) {
        self.lock().member = Some(member);
    }

    /// The VM can.
    pub(super) fn set_driver(&self, driver: Sender<Input>) {
        let mut links = self.lock();
        for (from, message) in links.early.drain(..) {
            let _ = driver.try_send(Input::Message(from, message));
        }
        for slice in &links.lost {
            let _ = driver.try_send(Input::Lost(*slice));
        }
        links.driver = Some(driver);
    }

    /// The number of the next driver.
    pub(super) fn next_term(&self) -> u64 {
        let mut links = self.lock();
        links.term += 1;
        links.term
    }

    /// Another slice does that from now on, unless this one has come to do so again.
    pub(super) fn unset_driver(&self, term: u64) {
        let mut links = self.lock();
        if links.term == term {
            links.driver = None;
        }
    }

    /// Takes a message to where it belongs. While nobody here can come to rest the coordinator is not left waiting: gives
    /// the answer that it is to have.
    pub(super) fn take(&self, from: SliceId, message: Message) -> Result<Option<Message>, TooMany> {
        let mut links = self.lock();
        if let (Message::Taken(FIRST_CUT, Step::Begin), None) = (&message, &links.driver)
            && links.early.len() < usize::from(SLICES_MAX)
        {
            links.early.push((from, message));
            return Ok(None);
        }
        let sent = match (message, &links.member, &links.driver) {
            (message, Some(member), _) if message.is_asking() => {
                member.try_send((from, message)).is_ok()
            }
            (Message::Take(number, _), None, _) => {
                return Ok(Some(Message::Failed(number, "its guest does not run".into())));
            }
            (Message::GoOn(number), None, _) => return Ok(Some(Message::GoesOn(number))),
            // Its guest does not run any more: it ends anyway.
            (Message::Dismiss(_), None, _) => true,
            (message, _, Some(driver)) => driver.try_send(Input::Message(from, message)).is_ok(),
            // The VM is over, or has not begun.
            (_, _, None) => true,
        };
        if sent { Ok(None) } else { Err(TooMany) }
    }

    fn tell(&self, input: Input) {
        if let Some(driver) = &self.lock().driver {
            let _ = driver.try_send(input);
        }
    }

    /// A slice is gone, and the VM goes on.
    pub(super) fn lost(&self, slice: SliceId) {
        let mut links = self.lock();
        links.lost.insert(slice);
        if let Some(driver) = &links.driver {
            let _ = driver.try_send(Input::Lost(slice));
        }
    }

    /// A slice that all have a link to, and that has not joined, is gone.
    pub(super) fn missed(&self, slice: SliceId) {
        self.lock().missed.insert(slice);
        self.tell(Input::Missed(slice));
    }

    /// A slice is about to be taken into the transport. What became of an earlier one of its number is over.
    pub(super) fn expect(&self, slice: SliceId) {
        let mut links = self.lock();
        links.missed.remove(&slice);
        links.expected.insert(slice);
    }

    /// It has joined, or is no more to.
    pub(super) fn settled(&self, slice: SliceId) {
        self.lock().expected.remove(&slice);
    }

    /// The slice that leaves now, if one does: it misses nobody any more.
    pub(super) fn set_leaver(&self, slice: Option<SliceId>) {
        self.lock().leaver = slice;
    }

    /// Whether this slice does.
    pub(super) fn leaves(&self, slice: SliceId) -> bool {
        self.lock().leaver == Some(slice)
    }

    /// The coordinator has this slice end. What takes that to the main thread may be overtaken by the loss of others.
    pub(super) fn set_dismissed(&self) {
        self.lock().is_dismissed = true;
    }

    /// Whether it has.
    pub(super) fn is_dismissed(&self) -> bool {
        self.lock().is_dismissed
    }

    /// Whether any slice is to join.
    pub(super) fn expects_one(&self) -> bool {
        !self.lock().expected.is_empty()
    }

    /// Whether it is gone since. The coordinator may still have a link to it: nobody else would know.
    pub(super) fn is_missed(&self, slice: SliceId) -> bool {
        self.lock().missed.contains(&slice)
    }

    /// Whether a slice is gone.
    pub(super) fn is_lost(&self, slice: SliceId) -> bool {
        self.lock().lost.contains(&slice)
    }

    /// All that are gone, ascending.
    pub(super) fn lost_slices(&self) -> Vec<SliceId> {
        self.lock().lost.iter().copied().collect()
    }

    /// On the coordinator: a VM that is paused, or about to be, runs on.
    pub(super) fn go_on(&self) {
        self.tell(Input::GoOn);
    }

    /// The VM is over: nobody is brought to rest any more, and who waits for that is told.
    pub(super) fn end(&self) {
        self.tell(Input::Over);
        let mut links = self.lock();
        links.is_over = true;
        (links.member, links.driver) = (None, None);
    }

    /// Whether the VM is over.
    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: SliceId = SliceId(1);

    #[test]
    fn slice_that_cannot_rest_yet_or_any_more_says_so_at_once() {
        let links = CutLinks::default();
        let ask = || {
            let answer = links.take(PEER, Message::Take(3, Step::Vcpus)).unwrap();
            assert!(matches!(answer, Some(Message::Failed(3, _))), "{answer:?}");
            assert_eq!(links.take(PEER, Message::GoOn(3)), Ok(Some(Message::GoesOn(3))));
        };
        ask();
        let (member, messages) = bounded(1);
        links.set_member(member);
        assert_eq!(links.take(PEER, Message::GoOn(4)), Ok(None));
        assert_eq!(links.take(PEER, Message::GoOn(4)), Err(TooMany));
        assert_eq!(messages.try_recv(), Ok((PEER, Message::GoOn(4))));
        links.end();
        ask();
    }

    #[test]
    fn driver_hears_of_slices_that_were_lost_before_it_was_there() {
        let links = CutLinks::default();
        links.lost(PEER);
        let (driver, inputs) = bounded(4);
        links.set_driver(driver);
        links.lost(SliceId(2));
        for lost in [PEER, SliceId(2)] {
            assert!(matches!(inputs.try_recv(), Ok(Input::Lost(slice)) if slice == lost));
        }
    }

    /// A slice that does not coordinate has nobody to tell, and the coordinator may have a link to it still.
    #[test]
    fn newcomer_that_is_gone_is_not_forgotten_until_another_one_is_expected() {
        let links = CutLinks::default();
        links.expect(PEER);
        assert!(!links.is_missed(PEER));
        links.missed(PEER);
        assert!(links.is_missed(PEER) && !links.is_missed(SliceId(2)));
        links.expect(PEER);
        assert!(!links.is_missed(PEER));
    }

    /// A slice that is gone is a member still: the placement does not say that it is lost.
    #[test]
    fn driver_of_a_later_term_hears_of_a_slice_that_was_lost_in_an_earlier_one() {
        let links = CutLinks::default();
        let (driver, inputs) = bounded(4);
        links.set_driver(driver);
        links.lost(PEER);
        assert!(matches!(inputs.try_recv(), Ok(Input::Lost(PEER))));
        // Another slice coordinates for a time.
        links.unset_driver(0);
        let (driver, inputs) = bounded(4);
        links.set_driver(driver);
        assert!(matches!(inputs.try_recv(), Ok(Input::Lost(PEER))), "cuts wait for it for ever");
    }
}
