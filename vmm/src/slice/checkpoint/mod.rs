//! A checkpoint of the whole VM, written by all of its slices at once. [`migrate::checkpoint`] decides; this does it.
//!
//! ```text
//!   control socket --> Checkpoints (coordinator) --Prepare--> member, every slice: makes the file of its part
//!                           | --Capture, in a cut-----------> every slice at rest: form, snapshot of memory
//!                           |   the guest goes on, unless the VM is to end, or --stop
//!                           | <-Written----------------------| pages
//!                           +-- manifest, then Committed; the guest goes on if it has not, or the VM ends
//! ```
//! Each slice writes its part into a folder of its own host: the coordinator where whoever asks has said, the others into
//! the folder that their operators have named. All must be the same in the end, by a file system that hosts share: the
//! manifest names parts that are beside it.

mod description;
mod disks;
mod driver;
mod error;
mod member;
mod part;
mod request;

pub(super) use description::{Description, Identity};
pub(super) use disks::{DiskStates, home_in};
pub(super) use driver::Checkpoints;
pub(super) use error::PartError;
pub(super) use member::start_member;
pub(super) use part::{Memory, Writing};
pub(super) use request::check_name;

/// Section of a part with the slice's saved form.
pub(super) const FORM: &str = "slice";
/// Section of a part with the states of the slice's disks.
pub(super) const DISKS: &str = "disks";
