//! What is fuzzed: everything that reads bytes of a peer, a guest or a file, each as a function of some bytes that panics if they find
//! something. `fuzz/README.md` has a table of them.
//!
//! ```text
//!   fuzz/corpus/TARGET.hex ──> tests/kept.rs: kept inputs, and changes of them, in each run of the tests
//!                         └──> fuzz (./x fuzz): libFuzzer looks for more, for as long as one likes
//! ```
//! They are no part of the fuzz program, which is built with flags of its own and takes minutes: so the tests have them too.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    clippy::too_many_lines,
    reason = "targets fail like tests: a panic is what they are looked at for"
)]

mod checkpoint_manifest;
mod checkpoint_part;
mod cluster_traces;
mod coherence_decode;
mod control_decode;
mod device_decode;
mod frame_decode;
mod front_ends;
mod handshake_decode;
mod saved_memory;
mod saved_state;
mod saved_vcpu;
mod vm_file;
mod wire_control_decode;

/// A target: the bytes may be anything.
pub type Target = fn(&[u8]);

/// All, by the names of their files.
pub const TARGETS: [(&str, Target); 14] = [
    ("checkpoint_manifest", checkpoint_manifest::run),
    ("checkpoint_part", checkpoint_part::run),
    ("cluster_traces", cluster_traces::run),
    ("coherence_decode", coherence_decode::run),
    ("control_decode", control_decode::run),
    ("device_decode", device_decode::run),
    ("frame_decode", frame_decode::run),
    ("front_ends", front_ends::run),
    ("handshake_decode", handshake_decode::run),
    ("saved_memory", saved_memory::run),
    ("saved_state", saved_state::run),
    ("saved_vcpu", saved_vcpu::run),
    ("vm_file", vm_file::run),
    ("wire_control_decode", wire_control_decode::run),
];
