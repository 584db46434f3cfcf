//! Frames between slices that are not about coherence: interrupts, device calls, the end of the VM.
//!
//! A frame is a 32-byte little-endian head. Only a report, and what a slice counts for a cut, has bytes behind it.
//!
//! ```text
//! 0 kind | 1 event | 2 vector | 3 length | 4 epoch u32 | 8 id u64 | 16 address u64 | 24 data u64
//! ```

mod codec;
mod cut;
mod frames;

pub use codec::{ControlError, REPORT_BYTES_MAX};
pub use cut::{CAUSE_BYTES_MAX, CutMessage, CutStep, PeerCounts};
pub use frames::{Control, DeviceCall, DeviceChange, EndCause, InterruptEvent, Space, Way};
