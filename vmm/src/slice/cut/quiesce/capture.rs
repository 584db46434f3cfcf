//! A slice at rest takes its form for a checkpoint, and keeps the states of its disks.

use super::{Quiesce, QuiesceError, Restable};
use crate::slice::checkpoint::{DiskStates, Memory, PartError, Writing};
use crate::slice::checkpoint_link::DiskPolicy;
use dsm::saved::NodeState;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// For the state of this slice and those of its disks. Whoever coordinates waits for longer (its `REST_LIMIT`), so that it
/// hears the cause.
const LIMIT: Duration = Duration::from_secs(50);

impl Quiesce {
    /// Takes the form for this checkpoint, and begins to write the part of it. This slice is at rest. Unless its memory was
    /// protected before, or it has none, it ends the writing before it goes on.
    ///
    /// # Errors
    /// It is not at rest, no file was made for the part, or it cannot be begun.
    pub(crate) fn capture(&mut self, number: u64, within: Duration) -> Result<(), QuiesceError> {
        let part = self.slice.channels.checkpoints.take_ready(number);
        let mut part = part.ok_or(QuiesceError::Checkpoint(PartError::NotReady))?;
        let deadline = Instant::now() + LIMIT;
        let state = self.save(within)?;
        let Restable { channels, ram, devices, .. } = &self.slice;
        let mut disks = DiskStates::default();
        if let (Some(devices), false) = (devices, part.disks == DiskPolicy::Leave) {
            let leaves = part.disks == DiskPolicy::KeepOrEnd;
            let limits = (within, deadline.saturating_duration_since(Instant::now()));
            let frozen =
                devices.freeze((channels, part.vm), (&part.disk_name(), leaves), limits)?;
            disks.disks.extend(frozen);
            if part.disks.tidies() {
                devices.tidy(channels, &part.released_names());
            }
        }
        let here = state.memory.as_ref().map(NodeState::here);
        match (part.protected.take(), here) {
            (Some(protected), Some(here)) => {
                let (frames, number) = (here.frames.clone(), part.number);
                let snapshot = protected.freeze(here, within).map_err(PartError::from)?;
                let (goes_on, begins) = channel();
                self.goes_on = Some(goes_on);
                let memory = Memory::Snapshot(frames, snapshot, begins);
                let writing = Writing::start(part, (state, disks), (channels, memory))?;
                channels.checkpoints.begin_writing(number, Box::new(writing));
            }
            (_, here) => {
                let placement = channels.placement.load();
                let frames = here.map(|here| here.frames);
                let frames = frames.unwrap_or_else(|| placement.frames_of(state.slice));
                let has_memory = !frames.is_empty();
                let memory = Memory::AtRest(frames, Arc::clone(ram));
                let writing = Writing::start(part, (state, disks), (channels, memory))?;
                if has_memory {
                    self.writing = Some(writing);
                } else {
                    // What is left to write does not change when it goes on, and no slice waits for it in a live checkpoint.
                    channels.checkpoints.begin_writing(number, Box::new(writing));
                }
            }
        }
        Ok(())
    }
}
