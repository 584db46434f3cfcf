//! The saved form of a vCPU: all that KVM and this process know of it, by names.
//!
//! ```text
//!   Machine::rest --> Rest::save --> VcpuState --encode--> bytes --decode, check--> Machine::restore_vcpu --> start
//! ```
//! The vCPU is at rest: nothing of its last exit is left to do. Its memory, the devices and what other slices have sent
//! and it has not taken are not part of it. Nor is the spacing of its timer, which the host learns anew, nor anything of
//! nested virtualisation, which its CPUID hides.
//!
//! A state with one kind of APIC becomes one with the other kind by `conversion`.
//!
//! Order matters when KVM is asked and told (Linux, Documentation/virt/kvm/api.rst, and what its code does):
//!
//! | asked | why there |
//! |---|---|
//! | MP state | KVM takes a pending INIT or start-up first, which changes everything else |
//! | general and system registers, XSAVE, XCRs, debug registers, TSC offset | |
//! | model-specific registers, local APIC, deadline once more | a timer that fires in between is seen in one of them |
//! | events | they hold what the calls before have moved |
//!
//! | told | why there |
//! |---|---|
//! | TSC offset | the timer goes by it |
//! | system registers | the base of the APIC and EFER come before what depends on their modes |
//! | general registers | KVM forgets exceptions with them |
//! | XSAVE, XCRs, debug registers | |
//! | local APIC | needs the mode that its base says |
//! | model-specific registers, the deadline last | it needs the timer's mode |
//! | events, then MP state | |

mod conversion;
mod events;
mod msrs;
mod registers;
mod transfer;
mod xsave;

pub use events::{Debug, Events, Exception, Interrupt, Running, Stage};
pub use msrs::{Msr, MsrSet};
pub use registers::{General, Segment, System, Table};
pub(crate) use transfer::{HostKvm, get, put};
pub use xsave::{XSAVE_BYTES_MAX, XSAVE_BYTES_MIN, Xcr, Xcrs, XsaveArea};

use crate::interrupts::saved::ApicState;
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};

/// The state of one vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuState {
    /// Its id, which is that of its APIC as well.
    pub vcpu: u32,
    /// Whether it runs, as KVM sees it. With the APIC in user space KVM believes that it always does.
    pub running: Running,
    /// General registers.
    pub general: General,
    /// System registers.
    pub system: System,
    /// Floating point and vector registers.
    pub xsave: XsaveArea,
    /// Extended control registers.
    pub xcrs: Xcrs,
    /// Debug registers.
    pub debug: Debug,
    /// What is about to happen to it.
    pub events: Events,
    /// Model-specific registers.
    pub msrs: MsrSet,
    /// Its local APIC.
    pub apic: ApicState,
    /// Guest ticks by which its time stamp counter is ahead of the machine's clock, which all vCPUs of a VM share. Zero
    /// until the guest writes the counter.
    pub tsc_ahead: i64,
}

impl SavedState for VcpuState {
    const NAME: &'static str = "vcpu";
    const VERSION: u16 = 2;
    const MAX_BYTES: usize = 64 << 10;

    fn check(&self) -> Result<(), Invalid> {
        self.system.check()?;
        self.xsave.check()?;
        self.xcrs.check()?;
        self.debug.check()?;
        self.events.check()?;
        self.msrs.check()?;
        self.apic.check(self.vcpu, self.system.is_x2apic())?;
        let in_user_space = matches!(self.apic, ApicState::Userspace(_));
        let fits = !in_user_space || self.running == Running::Runnable;
        Invalid::unless(fits, "running", "KVM lets a vCPU without an APIC wait for nothing")
    }
}

#[cfg(test)]
mod kvm_tests;
#[cfg(test)]
pub(crate) mod tests;
