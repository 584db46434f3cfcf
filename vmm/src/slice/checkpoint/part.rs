//! The part of this slice: its form and what it has of the guest's memory, at rest or as it was then.
//!
//! ```text
//!   file made (ReadyPart) --form, at rest--> Writing --pages--> written: tells the coordinator
//!                                              \--dropped before--> given up: tells it too
//! ```
//! At rest, [`Memory::AtRest`], it is dropped when the slice goes on. A snapshot, [`Memory::Snapshot`], is written on.
//!
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
use dsm::{GuestRam, SnapshotReader};
use migrate::checkpoint::Message;
use migrate::saved::encode;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use wire::{Control, SliceId};

/// From where the contents of memory come.
#[derive(Debug)]
pub(crate) enum Memory {
    /// These frames, of which this slice has the contents; nobody stores to them until all is written.
    AtRest(Vec<Range<u64>>, Arc<GuestRam>),
    /// The guest runs on.
    Snapshot(SnapshotReader),
}

/// A part that is being written. Dropping this ends the writing.
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
        (channels, memory): (&Arc<Channels>, Memory),
    ) -> Result<Self, PartError> {
        part.writer.section(FORM, &encode(state)?)?;
        part.writer.section(DISKS, &encode(&disks)?)?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let (own, weak) = (Arc::clone(&cancelled), Arc::downgrade(channels));
        let number = part.number;
        let run = move || {
            let said = match write(part.writer, memory, &own) {
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

fn write(
    mut writer: PartWriter,
    memory: Memory,
    cancelled: &AtomicBool,
) -> Result<PartSummary, PartError> {
    let goes_on =
        || if cancelled.load(Ordering::SeqCst) { Err(PartError::GoesOn) } else { Ok(()) };
    match memory {
        Memory::AtRest(frames, ram) => {
            for range in frames {
                ram.each_run(range, |first, bytes| {
                    goes_on()?;
                    writer.pages(first.0, bytes).map_err(PartError::from)
                })?;
            }
        }
        Memory::Snapshot(mut snapshot) => {
            let mut bytes = Vec::new();
            while let Some(first) = snapshot.next(&mut bytes)? {
                goes_on()?;
                writer.pages(first.0, &bytes)?;
            }
        }
    }
    goes_on()?;
    let summary = writer.finish()?;
    // What was written after that is none of this moment.
    goes_on()?;
    Ok(summary)
}
