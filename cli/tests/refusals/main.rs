//! What `tessera` refuses, seen from outside: the real binary is run, and every refusal has to be
//! exit status 2, one line on standard error that names the cause, and nothing left behind. And, in `ends`, how
//! what has started is stopped; in `panics`, how a slice ends that has a defect; in `resets`, what a reset of the guest leads to; in `logs`, how lines look; in `kills`, what is left of a checkpoint; in `disk_states`, whose the states of disks are; in `supervise`, how a VM goes on that was lost.
//!
//! Each part needs less or more of the machine: `arguments`, `trace` and `vm` nothing, `devices` a mount namespace,
//! `peers` loopback, and everything named `kvm_` a KVM that works. What is missing is printed, and
//! the test skipped. Frames that are cut or too large come after the handshake; they are tested in
//! `transport/tests/garbage.rs`.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

mod arguments;
mod carriers;
mod clocks;
mod clones;
mod config;
mod devices;
mod disk_states;
mod ends;
mod files;
#[path = "../../../vmm/tests/kvm_two_slices/guest.rs"]
#[expect(dead_code, reason = "what other tests look at")]
mod guest;
mod hangs;
mod kills;
mod later;
mod logs;
mod panics;
mod peers;
mod resets;
mod supervise;
mod supervise_given;
mod supervise_kept;
mod support;
mod trace;
mod vm;
