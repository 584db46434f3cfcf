//! The vocabulary that slices share: identifiers and fixed frame layouts.
//!
//! This crate is a leaf. It never allocates while decoding a head, and it does not know what a
//! frame makes its receiver do.

pub mod coherence;
pub mod control;
pub mod device;
pub mod ids;

pub use coherence::batch::{BATCH_MAX, Batch};
pub use coherence::{
    Access, Asked, DecodeError, DirectoryEntry, Entry, HOME_MOVE_MAX, Half, Held, HolderKind,
    Level, Message, PAGE_SIZE, PageBody, RUN_MAX, Table,
};
pub use control::Control;
pub use device::DeviceFrame;
pub use ids::{DeviceId, Epoch, Gfn, SLICES_MAX, SliceId, VcpuId};
