//! The VM file: what a user wants of a VM, as one struct, in TOML or YAML.
//!
//! ```text
//!   vm.toml --\                /--> options of `tessera bootstrap` (one VM, `slices`)
//!              decode --> VmFile
//!   vm.yaml --/    |           \--> the orchestrator (`tessera vm apply`)
//!                  v
//!            file:line:column: what is wrong
//! ```
//! - A field that is not known is refused, at its line.
//! - What a field may be is checked where it is read, so that the error has a line. What fields say together is checked after
//!   that ([`VmFile::check`]), and the error has the path of the field.
//! - A file is at most [`BYTES_MAX`] bytes. Nesting and YAML's aliases are bounded, so that a small file never becomes a large one.
//! - JSON is YAML, so what programs write is read as well.
//!
//! This crate is a leaf: it neither opens files nor knows what starts VMs.

#![forbid(unsafe_code)]

mod check;
mod format;
mod spec;
mod values;

pub use check::{CheckError, LABELS_MAX, SLICES_MAX, VCPUS_MAX};
pub use format::{BYTES_MAX, DecodeError, EncodeError, Format, Place};
pub use spec::{
    API_VERSION, ApiVersion, Checkpoint, Class, Disk, DiskFormat, Guest, Kind, Metadata, Nic,
    Preset, Run, Slice, Spec, Standby, VmFile,
};
pub use values::{Address, Borrow, Mac, Name, Path, Period, Size, ValueError};

/// The JSON schema of a VM file, for editors and for programs that write one.
///
/// # Panics
/// Never: all keys of a schema are text.
#[must_use]
pub fn schema() -> String {
    let schema = schemars::schema_for!(VmFile);
    let mut text = serde_json::to_string_pretty(&schema).expect("all keys are text");
    text.push('\n');
    text
}
