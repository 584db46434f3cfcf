//! The part of this slice: its form and what it has of the guest's memory, written while all slices are at rest.
//!
//! ```text
//!   file made (ReadyPart) --form, at rest--> Writing --pages--> written: tells the coordinator
//!                                              \--dropped before (the slice goes on)--> given up: tells it too
//! ```
//! What a slice has is written by it: pages that it alone has, copies to read, and replicas of its own home. Copies are the
//! same on all slices, so one that is in two parts does no harm.

use super::disks::DiskStates;
use super::error::PartError;
use super::request::encode_summary;
use crate::slice::channels::Channels;
use crate::slice::checkpoint::{DISKS, FORM};
use crate::slice::checkpoint_link::ReadyPart;
use crate::slice::one_line;
use crate::slice::saved::SliceState;
use checkpoint::{PartSummary, PartWriter};
use dsm::GuestRam;
use dsm::saved::NodeState;
use migrate::checkpoint::Message;
use migrate::saved::encode;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use wire::{Control, Gfn, SliceId};

/// A part that is being written. The slice stays at rest until this is dropped, which ends the writing.
#[derive(Debug)]
pub(crate) struct Writing {
    cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writing {
    /// Writes the form of a slice at rest, with the states of its disks, and then its memory, on a thread of its own.
    ///
    /// # Errors
    /// The form cannot be written, or there is no thread.
    pub(crate) fn start(
        mut part: ReadyPart,
        (state, disks): (&SliceState, DiskStates),
        (channels, ram): (&Arc<Channels>, &Arc<GuestRam>),
    ) -> Result<Self, PartError> {
        part.writer.section(FORM, &encode(state)?)?;
        part.writer.section(DISKS, &encode(&disks)?)?;
        let frames = match &state.memory {
            Some(memory) => of_node(memory),
            None => channels.placement.load().frames_of(state.slice),
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let (own, weak, ram) = (Arc::clone(&cancelled), Arc::downgrade(channels), Arc::clone(ram));
        let number = part.number;
        let run = move || {
            let said = match write(part.writer, &frames, &ram, &own) {
                Ok(summary) => encode_summary(&summary)
                    .map(|it| Message::Written(number, it))
                    .map_err(PartError::from),
                Err(error) => Err(error),
            };
            let said = said.unwrap_or_else(|error| Message::Failed(number, one_line(&error)));
            if let Some(channels) = weak.upgrade() {
                tell(&channels, channels.coordinator(), said);
            }
        };
        let thread = Builder::new().name("checkpoint-part".into()).spawn(run);
        Ok(Self { cancelled, thread: Some(thread.map_err(PartError::Thread)?) })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Says something about a checkpoint to a slice, perhaps this one.
pub(super) fn tell(channels: &Channels, to: SliceId, message: Message) {
    if to == channels.local() {
        // Its own threads say no more than they are asked.
        let _ = channels.checkpoints.take(to, message);
    } else {
        channels.send(to, &Control::Checkpoint(message));
    }
}

/// The frames that a slice is to write: those of which it has the contents. Replicas are at every slice, and are written by
/// their home.
fn of_node(memory: &NodeState) -> Vec<Range<u64>> {
    let homes = &memory.homes;
    let is_home = |gfn: Gfn| {
        let of = homes.iter().find(|home| (home.first..home.first + home.pages).contains(&gfn.0));
        of.is_some_and(|of| of.home == memory.slice)
    };
    let replicas = memory.replicas.iter().map(|replica| replica.page);
    let replicas = replicas.filter(|page| is_home(*page)).map(|page| page.0..page.0 + 1);
    let mut frames: Vec<_> =
        memory.shared.ranges().chain(memory.exclusive.ranges()).chain(replicas).collect();
    frames.sort_unstable_by_key(|range| range.start);
    frames
}

fn write(
    mut writer: PartWriter,
    frames: &[Range<u64>],
    ram: &GuestRam,
    cancelled: &AtomicBool,
) -> Result<PartSummary, PartError> {
    for range in frames {
        ram.each_run(range.clone(), |first, bytes| {
            if cancelled.load(Ordering::SeqCst) {
                return Err(PartError::GoesOn);
            }
            writer.pages(first.0, bytes).map_err(PartError::from)
        })?;
    }
    let summary = writer.finish()?;
    // What was written after that is none of this moment.
    if cancelled.load(Ordering::SeqCst) { Err(PartError::GoesOn) } else { Ok(summary) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsm::saved::{FrameRuns, HomeState, ReplicaState, TableHalf, TableScope};
    use wire::Epoch;

    #[test]
    fn slice_writes_what_it_has_and_replicas_of_its_home() {
        let replica = |page| ReplicaState {
            page: Gfn(page),
            level: 1,
            half: TableHalf::Kernel,
            of_process: false,
            hash: 0,
        };
        let home = |first, home| HomeState { first, pages: 100, home: SliceId(home) };
        let memory = NodeState {
            epoch: Epoch(1),
            slice: SliceId(1),
            slices: vec![SliceId(0), SliceId(1)],
            homes: vec![home(0, 0), home(100, 1)],
            vcpus: 1,
            tables: TableScope::All,
            shared: FrameRuns::of(vec![3..5, 120..121]),
            exclusive: FrameRuns::of(vec![7..8, 100..110]),
            replicas: vec![replica(50), replica(150)],
            directory: Vec::new(),
            never_replicas: FrameRuns::default(),
            roots: Vec::new(),
            newest_flush: 0,
            channels: Vec::new(),
        };
        assert_eq!(of_node(&memory), [3..5, 7..8, 100..110, 120..121, 150..151]);
    }
}
