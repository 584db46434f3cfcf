//! What the machine hears of a VM, and what it has done.

use super::layout::Layout;
use std::fmt;

/// How a VM ended, or did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// As its guest or its user wanted it, or its time was over.
    Wanted,
    /// Its guest's kernel panicked.
    Panicked,
    /// A slice is lost, cannot go on, or was killed.
    Lost,
    /// It did not begin.
    Refused,
    /// A later life of it has its disks: it goes on elsewhere.
    Overtaken,
    /// It did not begin because its checkpoint is not what was written.
    Damaged,
}

/// Why nothing is supervised any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The VM has ended, and is not to be started again.
    Ended(Cause),
    /// The user wants the end while nothing runs.
    Stopped,
    /// It was started again, and ended, so many times without a new checkpoint.
    TooOften(usize),
    /// No checkpoint of it can be gone on from.
    NoCheckpoint,
}

impl Reason {
    /// Whether the VM is over: whoever starts it the next time begins it anew. Else it may go on from its checkpoints.
    #[must_use]
    pub fn is_end(self) -> bool {
        match self {
            Self::Ended(cause) => {
                matches!(cause, Cause::Wanted | Cause::Panicked | Cause::Refused)
            }
            Self::Stopped | Self::TooOften(_) | Self::NoCheckpoint => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(Cause::Wanted) => f.write_str("the VM has ended"),
            Self::Ended(Cause::Panicked) => f.write_str("the guest's kernel has panicked"),
            Self::Ended(Cause::Overtaken) => {
                f.write_str("it was restored elsewhere, and goes on there")
            }
            Self::Ended(_) => f.write_str("the VM did not begin"),
            Self::Stopped => f.write_str("stopped while the VM did not run"),
            Self::TooOften(times) => write!(
                f,
                "given up: the VM was started again {times} times, and ended each time before a new checkpoint; mend the cause and start this again, and it goes on"
            ),
            Self::NoCheckpoint => {
                f.write_str("given up: no checkpoint of the VM can be gone on from; give another one by --restore, or remove its vm-*.supervised to begin anew")
            }
        }
    }
}

/// The number of a life of the VM (a *generation* in the records beside images), and of those that its supervisor has begun before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lives {
    /// The last one that was begun here, whether it ever ran or not. A record that names a later one is of a VM that goes on elsewhere.
    pub last: u64,
    /// The one that begins.
    pub next: u64,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Find out which other hosts answer; told by [`Supervisor::answers`].
    Ask,
    /// Start the VM anew, or from a checkpoint.
    Start {
        /// The checkpoint.
        from: Option<u64>,
        /// Before all memory of it was read: what is damaged is found when the guest runs.
        lazy: bool,
        /// When all slices of former lives have surely stopped. It uses no disk, and runs no guest, before.
        fenced_at: u64,
        /// Which life of the VM it is; nothing if that is found out by whoever starts it: it begins anew, or goes on from the checkpoint that
        /// was given, whatever went on from it before.
        lives: Option<Lives>,
        /// Where.
        layout: Layout,
    },
    /// Have a checkpoint written; told by [`Supervisor::committed`] or [`Supervisor::not_committed`].
    Checkpoint {
        /// Its number.
        number: u64,
        /// It is an increment of this one, which is the last one of this life of the VM.
        base: Option<u64>,
    },
    /// Say that a checkpoint, which is asked for since this time, is still not there, and that the next ones wait for it.
    Late {
        /// Its number.
        number: u64,
        /// When it was asked for.
        since: u64,
    },
    /// Delete what there is of a checkpoint.
    Delete(u64),
    /// Ask the VM to stop.
    Stop,
    /// Kill the process: its peers have given it up.
    Kill,
    /// Nothing is supervised any more.
    Over(Reason),
}

/// What follows from an input, in this order.
pub type Verdict = Vec<Effect>;
