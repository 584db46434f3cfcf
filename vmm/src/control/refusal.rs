//! Why something is not done: a [`Reason`] for programs, and words for people.

use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// What is done to the whole VM, one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Parts go to other slices, or a slice joins.
    Moving,
    /// A checkpoint is written.
    Checkpointing,
    /// The guest is told of vCPUs, or asked for them.
    ChangingVcpus,
    /// It is paused, comes to that, or goes on after it.
    Pausing,
}

/// Why, for programs: what each means to them is said once, in the table of `cluster/vm-service`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// What was asked cannot be read.
    Malformed,
    /// Whoever asks may not.
    NotAllowed,
    /// Others are here already.
    TooManyClients,
    /// There is no VM yet.
    NoVm,
    /// The VM is over, or about to be.
    Over,
    /// Another slice coordinates the VM: the request is made there.
    NotLeader {
        /// Which, as far as is known here.
        leader: Option<u16>,
    },
    /// A VM of one slice that nobody can join has no memory engine.
    NoEngine,
    /// The memory engine does not answer.
    EngineSilent,
    /// Something else is done to the VM.
    Busy(Activity),
    /// The VM is paused.
    Paused,
    /// The VM is not paused.
    NotPaused,
    /// Something that was asked for cannot be.
    Invalid {
        /// Which part of the request says so.
        field: String,
    },
    /// Everything is as it was asked to be.
    NothingToDo,
    /// No slice has room for it.
    NoCapacity,
    /// A host lacks what this needs.
    HostUnfit,
    /// A slice is lost.
    SliceLost {
        /// Which.
        slice: u16,
    },
    /// The VM was started without what this needs.
    Unsupported,
    /// The guest says no, or does not listen.
    GuestRefused,
    /// Somebody has not answered in time: it may be done, or come to be.
    Silent,
    /// Some of it was done.
    Partly {
        /// Steps that were done.
        done: u64,
        /// Steps in all.
        total: u64,
    },
    /// It was tried, and given up.
    Failed,
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub reason: Reason,
    /// One line for people.
    pub message: String,
}

impl Refusal {
    /// For this reason, in these words.
    pub fn new(reason: Reason, message: impl fmt::Display) -> Self {
        Self { reason, message: message.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_words_on_the_socket() {
        let refusal = Refusal::new(Reason::NotLeader { leader: Some(2) }, "ask slice2");
        let line = serde_json::to_string(&refusal).unwrap();
        assert_eq!(line, r#"{"reason":{"not_leader":{"leader":2}},"message":"ask slice2"}"#);
        assert_eq!(serde_json::from_str::<Refusal>(&line).unwrap(), refusal);
        let busy = serde_json::to_string(&Reason::Busy(Activity::ChangingVcpus)).unwrap();
        assert_eq!(busy, r#"{"busy":"changing_vcpus"}"#);
    }
}
