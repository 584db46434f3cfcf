//! Which slice of which VM this process is: for each line that it says.
//!
//! ```text
//!   nothing is known --the VM is agreed on--> its VM --its parts are made--> its slice too; both stay until the process ends
//! ```

use crate::control::VmName;
use std::fmt::Write;
use std::sync::OnceLock;
use wire::SliceId;

static VM: OnceLock<VmName> = OnceLock::new();
static SLICE: OnceLock<SliceId> = OnceLock::new();

/// This process is of that VM. There is one for a process: only the first counts.
pub(crate) fn name_vm(name: VmName) {
    let _ = VM.set(name);
}

/// This process is that slice. Only the first counts.
pub(crate) fn name_slice(slice: SliceId) {
    let _ = SLICE.set(slice);
}

/// The VM's id, in 32 hexadecimal digits, once it is known.
#[must_use]
pub fn vm() -> Option<String> {
    let name = VM.get()?;
    let mut text = String::new();
    for byte in name.vm {
        // Text takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

/// The slice, once it is known.
#[must_use]
pub fn slice() -> Option<SliceId> {
    SLICE.get().copied()
}
