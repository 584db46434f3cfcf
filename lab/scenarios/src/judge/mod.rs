//! What is left on disks after a guest was killed: old or new, never torn, never lost.

pub mod disks;
pub(crate) mod fio_verify;
pub(crate) mod last;
