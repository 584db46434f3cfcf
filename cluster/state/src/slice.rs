//! A slice, as the agent of its host sees it.

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Name};
use crate::numbers::{Epoch, Generation};

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SliceState {
    /// Its process is being started.
    Starting,
    /// Its process runs.
    Running,
    /// It has ended.
    Ended,
    /// It has been stopped, and can write nothing any more.
    Fenced,
}

/// A slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Of which VM.
    pub vm: Name,
    /// Which of its slices.
    pub number: u16,
    /// Where.
    pub host: Name,
    /// Since which start of the host.
    pub boot_id: String,
    /// Of which assignment.
    pub generation: Generation,
    /// The newest Placement that it has.
    pub epoch: Epoch,
    /// Advanced by the agent with each change.
    pub revision: u64,
    /// What it does.
    pub state: SliceState,
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// Why it ended, in words.
    pub cause: Option<String>,
}

impl Object for Slice {
    const KIND: &'static str = "slice";

    fn key(&self) -> String {
        keys::slice(&self.vm, self.number)
    }

    fn check(&self) -> Result<(), String> {
        let ended = matches!(self.state, SliceState::Ended | SliceState::Fenced);
        if self.state == SliceState::Running && self.pid.is_none() {
            return Err("it runs without a process".to_owned());
        }
        if ended && self.pid.is_some() {
            return Err("it has ended, and has a process".to_owned());
        }
        Ok(())
    }
}
