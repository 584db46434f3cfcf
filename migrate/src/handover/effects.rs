//! What a slice's part in a hand-over is told, and what it wants done.

use super::{Message, Move};
use wire::{Epoch, SliceId};

/// Something that happened to this slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<E, S> {
    /// A sender of this slice has something for the vCPU.
    Local(E),
    /// A message came. Messages of a slice to itself come this way, too.
    Message {
        /// The sender.
        from: SliceId,
        /// What it says.
        message: Message<E, S>,
    },
    /// [`Effect::Prepare`] is done, or cannot be done.
    Prepared(u64, Result<(), String>),
    /// [`Effect::Stop`] is done: the state; or the vCPU did not come out of the guest.
    Saved(u64, Result<S, String>),
    /// [`Effect::Install`] is done, or cannot be done.
    Restored(u64, Result<(), String>),
    /// A slice is lost, and the VM goes on without it.
    Lost(SliceId),
    /// A slice has become a member, while no move goes on.
    Joined(SliceId),
    /// Another slice decides about moves. None goes on.
    Coordinates(SliceId),
}

/// What the slice must do. Messages leave at once, in their order; all else is done one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<E, S> {
    /// Send a message, also to this slice itself. Messages between two slices keep their order.
    Send {
        /// The receiver.
        to: SliceId,
        /// The message.
        message: Message<E, S>,
    },
    /// See whether the vCPU could run here, and make all that does not need its state: it does not run while it moves.
    /// Answered by [`Input::Prepared`].
    Prepare(Move),
    /// Bring the vCPU out of the guest, disarm its timers and save its state. Answered by [`Input::Saved`].
    Stop(u64),
    /// Let the vCPU go on that [`Effect::Stop`] has stopped, or was to stop.
    Resume,
    /// Restore the vCPU from this state, without running it. Answered by [`Input::Restored`].
    Install(u64, S),
    /// Undo [`Effect::Prepare`] and [`Effect::Install`], as far as they were done.
    Discard,
    /// The placement of this move is in force.
    Place(Move, Epoch),
    /// Run the vCPU that was restored.
    Run,
    /// The vCPU that was stopped runs elsewhere: its state is of no use any more.
    Forget,
    /// Bring this to the vCPU, which is here.
    Deliver(E),
}
