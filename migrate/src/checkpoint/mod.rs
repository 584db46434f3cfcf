//! A checkpoint: all slices of a VM write down what they have at one moment. Decided here, done by the slices; nothing here
//! waits, reads a clock, sends or touches a file.
//!
//! ```text
//!   coordinator                        every slice
//!     |--Prepare---------------------->| makes the file of its part: what can fail early, fails while the guest runs
//!     |<-----------------------Prepared|
//!     | Effect::Cut                    | all come to rest (`cut`), and take their forms: Step::Capture
//!     | Effect::GoOn                   | live: the guest goes on here already
//!     |<------------------------Written| its part is written, and on the disk
//!     | Effect::Commit                 | the manifest is written: from here on the checkpoint exists
//!     |--Committed-------------------->|
//!     | Effect::GoOn                   | not live: the guest goes on, or the VM ends
//!
//!   Failed, a slice that is lost, a cut that is given up, or the user: at any point before Effect::Commit
//!     |--Discard---------------------->| its file goes; there is no manifest, so there is no checkpoint
//!     | Effect::GoOn                   | the guest goes on
//! ```
//! **The guest stands still until all parts are written**, or, if the checkpoint is live, until all have their forms. At rest a
//! slice writes what its memory is; one that goes on before its part is written has no part, and says so. Live, it keeps what
//! its memory was: each page is copied before it changes.
//!
//! **One moment, or none.** A part belongs to a checkpoint by its number, which is never used again. The manifest names all
//! parts by their digests, and is written when all slices of the cut have said what they have written. A slice that is
//! lost in between is not done without: its part is missing.
//!
//! **Once it is being committed, it is not given up.** Whether there is a manifest knows only the one that writes it, and parts
//! of a checkpoint stay. So nothing but its outcome counts then, neither a wish nor a loss.
//!
//! **It ends.** Whatever happens, the guest goes on, or the VM ends because it was to: `Effect::GoOn` comes once for each cut
//! that was asked for, and, unless it is live, never before the checkpoint exists or is given up. The cut may have ended before, and another one
//! have begun (a pause that somebody asked for): that one does not end by it.

mod coordinator;
mod planted;
#[cfg(test)]
mod tests;

pub use coordinator::{Coordinator, Effect, Refusal, Verdict};
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use wire::control::CheckpointMessage as Message;
