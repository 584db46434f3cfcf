//! What can go wrong with a machine.

use crate::vcpu::StateError;
use migrate::PlacementError;
use std::io;
use std::time::Duration;
use wire::VcpuId;

/// A machine cannot be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The KVM device cannot be opened.
    #[error("cannot open /dev/kvm")]
    Open {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host's KVM is too old or too small.
    #[error("this host's KVM lacks {what}")]
    Missing {
        /// The capability.
        what: &'static str,
    },
    /// The configuration contradicts itself.
    #[error("machine configuration: {reason}")]
    Config {
        /// What does not fit.
        reason: String,
    },
    /// The vCPUs cannot be placed.
    #[error("place the machine's vCPUs")]
    Placement(#[from] PlacementError),
    /// KVM refused a step for the whole VM.
    #[error("cannot {action}")]
    Vm {
        /// What was attempted.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// KVM refused a step for one vCPU.
    #[error("cannot {action} of {vcpu}")]
    Vcpu {
        /// Which.
        vcpu: VcpuId,
        /// What was attempted.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no such vCPU.
    #[error("{vcpu} does not exist")]
    UnknownVcpu {
        /// Which.
        vcpu: VcpuId,
    },
    /// The vCPU runs, or is elsewhere.
    #[error("cannot {action} of {vcpu}: it runs, or is not here")]
    NotStopped {
        /// Which.
        vcpu: VcpuId,
        /// What was attempted.
        action: &'static str,
    },
    /// The vCPU is not at rest: it was not started, has ended, or is handed over.
    #[error("{vcpu} is not at rest: it was not started, has ended, or is handed over")]
    NotAtRest {
        /// Which.
        vcpu: VcpuId,
    },
    /// The state of a vCPU cannot be saved or restored.
    #[error("cannot {action} {vcpu}")]
    State {
        /// Which.
        vcpu: VcpuId,
        /// Whether it was saved or restored.
        action: &'static str,
        /// The step, and why.
        #[source]
        source: StateError,
    },
    /// A step of a hand-over does not fit, or did not succeed. Nothing has changed.
    #[error("cannot {action} {vcpu}: {refusal}")]
    Handover {
        /// Which.
        vcpu: VcpuId,
        /// The step.
        action: &'static str,
        /// Why.
        refusal: HandoverRefusal,
    },
    /// A hand-over was given up, and the vCPU's ghost cannot be started again: what is sent to the vCPU from here would be lost.
    #[error("its ghost cannot be started again here")]
    NoGhost {
        /// Of which vCPU.
        vcpu: VcpuId,
        /// Why.
        #[source]
        source: Box<MachineError>,
    },
    /// No thread for a vCPU.
    #[error("cannot start the thread of {vcpu}")]
    Thread {
        /// Which.
        vcpu: VcpuId,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Why a step of a hand-over is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoverRefusal {
    /// The step before has not been made, or this one already.
    #[error("it is {0}")]
    Is(&'static str),
    /// The placement does not say so yet, or says so already.
    #[error("by the placement it is {0}")]
    Placed(&'static str),
    /// It has no thread: the machine was not started, or stops, or the vCPU has ended.
    #[error("it has no thread here")]
    NoThread,
    /// The vCPU did not leave the guest: it waits for a page or a device, or the machine is at rest.
    #[error("it did not leave the guest within {0:?}")]
    Late(Duration),
    /// Its ghost did not end: something for the vCPU is not forwarded yet, or a start-up is under way.
    #[error("its ghost did not end within {0:?}")]
    Ghost(Duration),
    /// An INIT was sent to it, and maybe no start-up yet.
    #[error("a start-up of it is under way")]
    StartUp,
    /// Other vCPUs here did not leave the guest for the moment in which its APIC is set.
    #[error("other vCPUs did not leave the guest within {0:?}")]
    Others(Duration),
}

/// Threads did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("threads of {stuck:?} did not end within {limit:?}")]
pub struct StopError {
    /// Their vCPUs.
    pub stuck: Vec<VcpuId>,
    /// How long was waited.
    pub limit: Duration,
}
