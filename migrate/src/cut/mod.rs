//! A cut: all slices of a VM at rest at one moment, with nothing on its way between them. Decided here, done by the slices;
//! nothing here waits, reads a clock or sends.
//!
//! ```text
//!   coordinator                     every slice
//!     |--Take(Vcpus)------------------>| its vCPUs leave the guest
//!     |<-------------------Taken(Vcpus)|        ... when all have: Queues, then Devices, then Memory
//!     |--Take(Count)------------------>| counts what went to and came from each other slice
//!     |<------------------------Counted|
//!     | all numbers agree: at rest     |
//!     | some do not: from Devices on once more, for what was on its way has come meanwhile
//!     |--GoOn------------------------->| runs again, from whatever step
//!     |<------------------------GoesOn-|
//!
//!   at rest, a slice that has nothing any more can leave
//!     |--Take(MayPart)---------------->| every other slice: can it do without that one?
//!     |--Take(Part)------------------->| every other slice: that one is no member any more
//!     |--Dismiss---------------------->| that one: it ends, and nobody misses it
//!
//!   at rest, another slice can come to coordinate
//!     |--Take(MayCoordinate)---------->| its own slice sends what is to be known; then that one gets ready
//!     |--Take(Coordinate)------------->| every slice: that one coordinates
//!     |--GoOn------------------------->| every slice, from the one before; when all run:
//!     |--HandedOver------------------->| that one: it may begin the next cut
//!
//!   at rest, one slice more can join
//!     |--Take(MayJoin)-------------->| every slice: it takes that one into its transport; can it do with it?
//!     |--Take(MayJoin)-------------->| that one, when all have: it begins, and has nothing
//!     |--Take(Join)----------------->| every slice but that one: it is a member
//!
//!   at rest, the real part of a device can go to another host
//!     |--Take(MayMove)---------------->| every slice: may it be there?
//!     |--Take(CloseDevice)------------>| the one that has it closes it, and tells the other one what it is
//!     |--Take(OpenDevice)------------->| that one opens it
//!     |--Take(DeviceMoved)------------>| every slice: it is there
//!
//!   at rest, all slices can begin to write a checkpoint
//!     |--Take(Capture)--------------->| every slice takes its form; it writes its part while it rests, or what that was when it has gone on
//!
//!   a VM that is restored begins at rest, in its first cut
//!     |<-----------------Taken(Begin)-| every slice: it is at rest, with all that it had
//!     |--GoOn------------------------>| when all are
//! ```
//! All slices take a step before any takes the next one, for a step needs what the next one ends (a vCPU waits for the
//! answer of a device thread, a queue for a page). The coordinator's slice, which orders changes of devices, takes
//! [`Step::Devices`] before the others: they must still acknowledge its last change.
//!
//! **Nothing is on its way.** No slice can see what was sent to it and has not come. So each counts, and the numbers
//! of sender and receiver are compared. Slices count at different times. That does no harm: a slice at rest does nothing by
//! itself. Whatever one does after it has counted follows from a message that it had not received then, and the number of
//! that one does not agree (decision 40 has the argument, which needs no order of messages).
//!
//! **A slice leaves** at a cut, since then nothing is on its way to it, and none is asked for anything. All others say first
//! that they can do without it. From the first that does there is no way back, and none is needed: what is left to do cannot
//! fail. It is dismissed last, so its end is a loss to nobody.
//!
//! **A slice joins** at a cut, since then nothing is counted for one slice less. All that can fail is done before the first takes it
//! for a member: it begins, and it has nothing, so one that is not taken in is missed by nobody.
//!
//! **Another slice coordinates** from a cut on, at which no call waits for its answer. The one before drives its cut to the end, so there are never two that
//! ask a slice to rest or to go on.
//!
//! **A device moves** without ever being open at two hosts. Its next place opens it when the former one has closed it. A slice that goes
//! on, and has closed a device that has not moved, opens it again, once the other one has let it go.
//!
//! **The VM goes on.** A step that fails, a limit that passes, or a wish: all slices are told to go on, and the next cut
//! begins when all have said that they do.

mod coordinator;
mod news;
mod planted;
#[cfg(test)]
mod tests;

pub use coordinator::{Coordinator, FIRST_CUT};
pub use news::{News, Refusal, Verdict};
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use wire::control::{CutMessage as Message, CutStep as Step, DeviceMove, PeerCounts};
