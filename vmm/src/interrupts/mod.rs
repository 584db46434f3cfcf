//! Interrupts between vCPUs, wherever these run.
//!
//! Two back ends do the same job behind one seam. `userspace` has no interrupt controller in the
//! kernel: every APIC access is an exit, and the APIC is our own code. `ghost` leaves the local
//! APICs in the kernel, where local interrupts never exit, and puts a parked stand-in, a ghost, in
//! the place of every vCPU that runs elsewhere. The first is the reference and the fallback of the
//! second.
//!
//! ```text
//!   device -> Machine::deliver --+-- local vCPU:  Interrupts::deliver_local -> its VcpuApic
//!   other slice -> deliver_local-+
//!   guest ICR write -> back end -+-- elsewhere:   RemoteInterrupts::forward
//! ```

mod conversion;
pub(crate) mod ghost;
pub mod lapic;
mod mailbox;
pub mod routing;
pub mod saved;
pub mod timer;
pub(crate) mod userspace;
pub mod vectors;

pub use conversion::Moment;
pub use routing::VcpuEvent;

use crate::vcpu::{StateError, VcpuCore, VcpuError};
use ghost::{Before, Ghost, Pending};
use kvm_ioctls::VcpuFd;
use saved::ApicState;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use wire::VcpuId;

/// What of a machine's interrupts may concern other slices.
pub trait RemoteInterrupts: Send + Sync {
    /// Sends the event to the slice of `target`. Called on vCPU threads, so it must be cheap and
    /// must not block on the peer.
    fn forward(&self, target: VcpuId, event: VcpuEvent);

    /// Whether what is sent by [`Self::forward`] to a vCPU that is here comes to it, in the order in which it was sent, also while the
    /// vCPU moves.
    fn keeps_order(&self) -> bool {
        false
    }

    /// A level-triggered interrupt was ended: the IOAPIC must hear of it, wherever it is. Called on vCPU threads.
    fn end_of_interrupt(&self, vector: u8) {
        let _ = vector;
    }
}

/// For a machine with all of its vCPUs here.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRemote;

impl RemoteInterrupts for NoRemote {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        tracing::error!(%target, ?event, "interrupt for a vCPU of no slice is dropped");
    }
}

/// Which implementation of interrupts a machine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptBackEnd {
    /// Local APICs in the kernel, parked ghosts for the vCPUs elsewhere.
    Ghost,
    /// Local APICs in user space.
    Userspace,
}

/// A name that is no back end.
#[derive(Debug, thiserror::Error)]
#[error("interrupt back end {name:?} is neither ghost nor userspace")]
pub struct UnknownBackEndError {
    name: String,
}

impl FromStr for InterruptBackEnd {
    type Err = UnknownBackEndError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "ghost" => Ok(Self::Ghost),
            "userspace" => Ok(Self::Userspace),
            _ => Err(UnknownBackEndError { name: name.to_owned() }),
        }
    }
}

impl fmt::Display for InterruptBackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ghost => "ghost",
            Self::Userspace => "userspace",
        })
    }
}

/// The interrupts of a machine, as all threads see them.
pub(crate) trait Interrupts: Send + Sync {
    /// Brings an event to a vCPU that is here, also to one that is stopped or does not run yet. Never blocks on the vCPU.
    fn deliver_local(&self, target: VcpuId, event: VcpuEvent);
    /// From now on the EOI of `vector` is told to the IOAPIC, or no longer.
    fn set_level_vector(&self, vector: u8, level: bool) -> Result<(), std::io::Error>;
    /// The APIC of a vCPU that runs here. Called on the vCPU's own thread.
    fn vcpu_apic(&self, id: VcpuId) -> Result<Box<dyn VcpuApic>, std::io::Error>;
    /// What stands here for a vCPU that runs elsewhere, in a back end that needs it.
    fn ghost(&self, core: &Arc<VcpuCore>, before: Before) -> Option<Ghost> {
        let _ = (core, before);
        None
    }
    /// Takes out what waits in the KVM vCPU of a ghost that has ended, while no vCPU here is in the guest. None while a
    /// start-up is under way.
    fn collect(&self, id: VcpuId, vcpu: &mut VcpuFd) -> Result<Option<Vec<VcpuEvent>>, StateError> {
        let _ = (id, vcpu);
        Ok(Some(Vec::new()))
    }
    /// Whether vCPUs send to each other without an exit.
    fn sends_without_exit(&self) -> bool {
        false
    }
    /// Takes out what is pending in a KVM vCPU whose state was saved, while no vCPU here is in the guest: from now on only
    /// the state has it.
    fn take_pending(&self, vcpu: &VcpuFd) -> Result<Pending, StateError> {
        let _ = vcpu;
        Ok(Pending::default())
    }
    /// The opposite, before the vCPU runs.
    fn put_pending(&self, id: VcpuId, vcpu: &VcpuFd, pending: &Pending) -> Result<(), StateError> {
        let _ = (id, vcpu, pending);
        Ok(())
    }
    /// Makes a KVM vCPU that may have taken a part of a state one in which nothing waits, while no vCPU here is in the
    /// guest.
    fn empty(&self, vcpu: &VcpuFd) -> Result<(), StateError> {
        let _ = vcpu;
        Ok(())
    }
    /// A vCPU in this MP state is out of the guest, and stays out until `let_go`. What arrives waits.
    fn hold(&self, vcpu: &VcpuFd, mp_state: u32) -> Result<(), StateError> {
        let _ = (vcpu, mp_state);
        Ok(())
    }
    /// The vCPU is about to go on in this MP state.
    fn let_go(&self, vcpu: &VcpuFd, mp_state: u32) -> Result<(), StateError> {
        let _ = (vcpu, mp_state);
        Ok(())
    }
    /// From now on a vCPU is here; or it is elsewhere, and what waits for it is forwarded, and what comes late.
    fn set_here(&self, id: VcpuId, is_here: bool) {
        let _ = (id, is_here);
    }
    /// Before a new vCPU is given saved registers: keeps those that INIT brings back, once.
    fn keep_reset_state(&self, id: VcpuId, vcpu: &mut VcpuFd) -> Result<(), StateError>;
    /// Gives a new vCPU, whose APIC base is set, the state that [`VcpuApic::save`] has saved. Its [`VcpuApic`] is made
    /// afterwards.
    fn restore(&self, id: VcpuId, vcpu: &mut VcpuFd, state: &ApicState) -> Result<(), StateError>;
}

/// What the vCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Enter the guest.
    Run,
    /// Sleep until a kick, no longer than this.
    Wait(Duration),
}

/// Answer to an access to a model-specific register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MsrAnswer {
    /// Done; the value of a read.
    Value(u64),
    /// A general-protection fault in the guest.
    Fault,
    /// Not a register of the interrupt controller.
    NotMine,
}

/// The APIC of one vCPU, owned by the vCPU's thread.
pub(crate) trait VcpuApic {
    /// Before each entry: takes in what has arrived and injects what can be.
    fn prepare(&mut self, vcpu: &mut VcpuFd) -> Result<Next, VcpuError>;
    /// After each exit.
    fn after_run(&mut self, vcpu: &mut VcpuFd);
    /// The guest read a register that the kernel does not know.
    fn read_msr(&mut self, index: u32) -> MsrAnswer;
    /// The guest wrote such a register.
    fn write_msr(&mut self, index: u32, value: u64) -> MsrAnswer;
    /// The guest halted.
    fn halted(&mut self);
    /// Before an entry that only finishes the last exit: nothing is injected, but what the kernel takes from the entry
    /// must be as it is now.
    fn settle(&mut self, vcpu: &mut VcpuFd);
    /// At rest, before the vCPU is saved: takes in what has arrived, as far as it changes what KVM knows of the vCPU.
    fn take_in(&mut self, vcpu: &mut VcpuFd) -> Result<(), VcpuError>;
    /// The state of the APIC at rest, after `take_in`. Nothing changes.
    fn save(&mut self, vcpu: &VcpuFd) -> Result<ApicState, VcpuError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_end_names_are_read_back() {
        for back_end in [InterruptBackEnd::Ghost, InterruptBackEnd::Userspace] {
            assert_eq!(back_end.to_string().parse::<InterruptBackEnd>().unwrap(), back_end);
        }
        assert!("apic".parse::<InterruptBackEnd>().is_err());
    }
}
