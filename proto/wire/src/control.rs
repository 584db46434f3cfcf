//! Frames between slices that are not about coherence: interrupts, hand-overs, device calls, the end of the VM.
//!
//! A frame is a 32-byte little-endian head. Only a report, the state of a vCPU or of a queue, what a slice counts for a cut
//! or writes for a checkpoint, and the text of a failure are behind it.
//!
//! ```text
//! 0 kind | 1 event | 2 vector | 3 length | 4 epoch u32 | 8 id u64 | 16 address u64 | 24 data u64
//! ```

mod change;
mod checkpoint;
mod codec;
mod cut;
mod event;
mod frames;
mod handover;

pub use change::{OrderedChange, RelocatedPart};
pub use checkpoint::{CHECKPOINT_BYTES_MAX, CheckpointMessage};
pub use codec::{ControlError, REPORT_BYTES_MAX};
pub use cut::{CAUSE_BYTES_MAX, CutMessage, CutStep, DeviceMove, PeerCounts};
pub use event::InterruptEvent;
pub use frames::{
    CLOSED_DEVICE_BYTES_MAX, COORDINATOR_STATE_BYTES_MAX, Control, DeviceCall, EndCause,
    QUEUE_STATE_BYTES_MAX, SUMMONS_BYTES_MAX, SliceLoad, Space, Way,
};
pub use handover::{Move, VCPU_STATE_BYTES_MAX, VcpuMessage};
