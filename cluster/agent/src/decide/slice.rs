//! One slice on this host.

use super::ids::{Generation, Token};
use scheduler::Resources;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a slice is to be. Two orders are the same if all of it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// What it may use of the host.
    pub resources: Resources,
    /// The words of its process after `tessera`.
    pub words: Vec<String>,
}

/// A process: its number, and when it began in ticks since the host has, for numbers come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub began: u64,
}

/// How a slice has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum End {
    /// With this status (docs/operations.md).
    Status(u8),
    /// By this signal.
    Signal(u8),
    /// Its process could not be started: why.
    NotStarted(String),
    /// While no agent looked.
    Unseen,
    /// With its host.
    HostRestarted,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "ended with status {status}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::NotStarted(cause) => write!(f, "could not be started: {cause}"),
            Self::Unseen => f.write_str("has ended while no agent looked"),
            Self::HostRestarted => f.write_str("has ended with its host"),
        }
    }
}

/// How a slice is to end. The latter is the harder one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Manner {
    /// By SIGTERM: the guest of a bootstrap shuts down.
    Orderly,
    /// By SIGKILL.
    AtOnce,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Its process may be there, or not yet.
    Starting,
    /// This is its process.
    Running(Process),
    /// It has none any more.
    Ended(End),
}

/// A slice, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Which life of its VM.
    pub generation: Generation,
    /// What it is to be.
    pub order: Order,
    /// Its start.
    pub token: Token,
    /// How far it is.
    pub phase: Phase,
    /// It is to end.
    pub stop: Option<Manner>,
}

impl Slice {
    /// Whether it has a process, as far as anybody knows.
    #[must_use]
    pub fn may_run(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_))
    }
}
