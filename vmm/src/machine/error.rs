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
    /// The vCPU is not at rest: it was not started, or has ended.
    #[error("{vcpu} is not at rest: it was not started, or has ended")]
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

/// Threads did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("threads of {stuck:?} did not end within {limit:?}")]
pub struct StopError {
    /// Their vCPUs.
    pub stuck: Vec<VcpuId>,
    /// How long was waited.
    pub limit: Duration,
}
