//! A slice joins a VM that runs. [`migrate::cut`] decides when, transport and memory engine take it in; this brings them
//! together.
//!
//! ```text
//!   coordinator (`inviting`)            every other slice (`meeting`)          newcomer (`companion`)
//!     invite, answer, clock, commit ------------------------------------------> agrees, builds its machine, listens
//!     Summons ---------------------------> calls it --------------------------> |
//!     calls it ---------------------------------------------------------------> ready
//!       <------------------------------ Met
//!     cut, MayJoin: its link is added      its link is added
//!     JoinState, Go ----------------------------------------------------------> begins, at rest: devices as they stand, no page
//!       <---------------------------------------------------------------------- Taken(MayJoin)
//!     cut, Join:    a member is more       a member is more
//!     GoOn -----------------------------> runs                                   runs
//! ```
//! Until `Join` nothing has changed: whatever fails before, the VM goes on as it was, and the newcomer's process says why it
//! ends. It has no vCPU, no queue and no page then; parts go to it as to any slice (`relocation`).

mod error;
mod inviting;
mod meeting;

pub(super) use error::JoinFailure;
pub(super) use inviting::{Invited, Inviter};
pub(super) use meeting::summoned;

use std::time::Duration;

/// From the commit of a newcomer until it is told to go: all others call it, and come to rest.
pub(super) const JOIN_LIMIT: Duration = Duration::from_secs(180);
/// For all slices to have called it. It answers once it has its memory, which may take it a minute.
const MEET_LIMIT: Duration = Duration::from_secs(90);
