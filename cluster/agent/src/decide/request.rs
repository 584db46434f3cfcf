//! What is asked of an agent, and what it answers.

use super::ids::{Generation, Operation, SliceName, Term, Vm};
use super::slice::{Manner, Order, Slice};
use scheduler::Resources;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Whom an answer is for. Whoever has it may have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A request, and who asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The term of the orchestrator.
    pub term: Term,
    /// Whom the answer is for.
    pub ticket: Ticket,
    /// What is asked.
    pub request: Request,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Keep this free for a slice, for a time.
    Reserve {
        /// What it is for; the same one twice is one reservation.
        operation: Operation,
        /// Which slice.
        slice: SliceName,
        /// Which life of its VM.
        generation: Generation,
        /// How much.
        resources: Resources,
        /// Milliseconds.
        lasts: u64,
    },
    /// It is not needed any more.
    Release {
        /// What it was for.
        operation: Operation,
    },
    /// Have this slice run. Its reservation, if it has one, becomes what it uses.
    Ensure {
        /// Which slice.
        slice: SliceName,
        /// Which life of its VM.
        generation: Generation,
        /// What it is to be.
        order: Order,
    },
    /// Have this slice use so much of the host from now on: parts of its VM come to it, or have left it.
    Resize {
        /// Which slice.
        slice: SliceName,
        /// Which life of its VM.
        generation: Generation,
        /// All that it uses.
        resources: Resources,
    },
    /// Have this slice end.
    Stop {
        /// Which slice.
        slice: SliceName,
        /// Which life of its VM.
        generation: Generation,
        /// How.
        manner: Manner,
    },
    /// Forget a slice that has ended, once its life of the VM is fenced: a late copy of the order that started it finds the fence then.
    Remove {
        /// Which slice.
        slice: SliceName,
        /// Which life of its VM.
        generation: Generation,
    },
    /// No slice of this life of a VM, or an earlier one, ever runs here again. Answered when none does.
    Fence {
        /// The VM.
        vm: Vm,
        /// Its life.
        generation: Generation,
    },
}

/// That a life of a VM does not run on a host, and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The VM.
    pub vm: Vm,
    /// This life of it and all earlier ones.
    pub generation: Generation,
}

/// What was done, or was so already.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// It is so.
    Done,
    /// The slice as it is.
    Slice(Box<Slice>),
    /// It is fenced.
    Fenced(Proof),
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// A later orchestrator has spoken.
    #[error("{got} is over: this host has heard of {have}")]
    StaleTerm {
        /// The highest that was seen.
        have: Term,
        /// That of the request.
        got: Term,
    },
    /// A later life of the VM was here, or this one is fenced.
    #[error("{got} is over: this host has {have}")]
    StaleGeneration {
        /// The lowest that may run.
        have: Generation,
        /// That of the request.
        got: Generation,
    },
    /// The slice is here already, and is another one.
    #[error("the slice is here in this generation, and was ordered otherwise")]
    GenerationConflict,
    /// A slice of an earlier life of the VM may run.
    #[error("{0} of the VM is not fenced here")]
    OlderRuns(Generation),
    /// There is not so much.
    #[error("{free} are free")]
    NoCapacity {
        /// What is free.
        free: Resources,
    },
    /// There is no such slice.
    #[error("there is no such slice here")]
    Unknown,
    /// It has a process.
    #[error("the slice runs")]
    Runs,
    /// Its life of the VM may have slices started here.
    #[error("{0} of the VM is not fenced here")]
    NotFenced(Generation),
    /// There is none above it.
    #[error("{0} is the highest that there is")]
    HighestGeneration(Generation),
    /// Bounds of what an agent keeps.
    #[error("the agent has as many {0} as it can keep")]
    TooMany(&'static str),
}
