//! What can go wrong with a vCPU.

use migrate::Invalid;
use std::io;
use wire::VcpuId;

/// A vCPU cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum VcpuError {
    /// `KVM_RUN` failed.
    #[error("{vcpu}: KVM_RUN failed at rip {rip:#x} (exit reason {exit_reason})")]
    Run {
        /// Which.
        vcpu: VcpuId,
        /// Its instruction pointer.
        rip: u64,
        /// The exit reason that KVM left behind; stale for most errors.
        exit_reason: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An exit that nothing handles.
    #[error("{vcpu}: unexpected exit {exit} at rip {rip:#x}")]
    Exit {
        /// Which.
        vcpu: VcpuId,
        /// The exit in words.
        exit: String,
        /// Its instruction pointer.
        rip: u64,
    },
    /// A KVM call for the vCPU failed.
    #[error("{vcpu}: cannot {action}")]
    Ioctl {
        /// Which.
        vcpu: VcpuId,
        /// What was attempted.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was out of the guest for a hand-over, and cannot go on.
    #[error("{vcpu}: cannot let it back into the guest")]
    Held {
        /// Which.
        vcpu: VcpuId,
        /// Why.
        #[source]
        source: Box<StateError>,
    },
    /// A ghost did what a ghost never does.
    #[error("ghost of {vcpu}: {what} at rip {rip:#x}")]
    Ghost {
        /// The vCPU it stands for.
        vcpu: VcpuId,
        /// What happened.
        what: String,
        /// Its instruction pointer.
        rip: u64,
    },
}

/// The state of a vCPU cannot be taken from KVM, or given to it.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// KVM refused a step.
    #[error("cannot {step}")]
    Kvm {
        /// What was attempted.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// KVM refused a model-specific register, and has another value in it.
    #[error("cannot set model-specific register {index:#x} to {value:#x}")]
    Msr {
        /// Its number.
        index: u32,
        /// The value that it should have.
        value: u64,
    },
    /// KVM does not move the counter of the vCPU.
    #[error("cannot move the time stamp counter by {offset} ticks: this KVM moves it by {taken}")]
    Counter {
        /// What is to be added to the host's counter.
        offset: u64,
        /// What KVM adds.
        taken: u64,
    },
    /// The state does not fit this host, or is of another machine.
    #[error("the state does not fit")]
    Invalid(#[from] Invalid),
    /// KVM says something that no vCPU of ours can be in.
    #[error("its MP state is {state}, which has no saved form")]
    UnknownRunning {
        /// KVM's number.
        state: u32,
    },
    /// The vCPU has shut down. Nothing is left to be saved.
    #[error("it has shut down after a triple fault")]
    ShutDown,
    /// Other vCPUs did not leave the guest, or the machine stops: what is pending cannot be taken out.
    #[error("the other vCPUs did not leave the guest")]
    Others,
    /// An INIT was sent to another vCPU from here, and maybe no start-up yet: only here it would be taken for one.
    #[error("a start-up of {0} from here is under way")]
    StartsAnother(VcpuId),
    /// Interrupts that had arrived could not be taken in, or the rest of an exit could not be finished.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
}
