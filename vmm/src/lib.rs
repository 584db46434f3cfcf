//! The machine on one host: KVM, vCPUs, interrupts, and the slice process.

pub mod boot;
mod clock;
pub mod cmdline;
pub mod control;
pub mod cpuid;
pub mod crash;
pub mod guest_memory;
pub mod interrupts;
mod local_socket;
pub mod machine;
pub mod named;
pub mod slice;
pub mod timer_spacing;
pub mod trace;
pub mod tsc;
pub mod vcpu;
pub mod walk_probe;
