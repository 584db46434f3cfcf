//! What a step of the protocol wants done.

use wire::{Gfn, Message, SliceId};

/// Something that the shell must do, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send the message; if it has a body, the body is the page as it is now.
    Send {
        /// The receiver, never this slice.
        to: SliceId,
        /// The message.
        message: Message,
    },
    /// The release may go.
    Released {
        /// The shell's number.
        token: u64,
    },
    /// These pages have another home, and this slice asks that one from now on.
    HomeMoved {
        /// The first page.
        gfn: Gfn,
        /// How many.
        pages: u16,
    },
    /// The page is here and stays until it is unpinned.
    Pinned {
        /// The shell's number.
        token: u64,
    },
}
