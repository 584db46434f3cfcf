//! The ways to the threads that write checkpoints. The threads themselves are in `checkpoint`.
//!
//! ```text
//!   frames of the coordinator --take--> member: makes files, removes them
//!   frames of other slices ----take--> whoever writes a checkpoint on the coordinator
//!   member --put--> the part that is ready --take_ready--> the cut
//! ```

use super::cut_link::TooMany;
use super::page_hashes::PageHashes;
use checkpoint::PartWriter;
use crossbeam_channel::{Receiver, Sender, bounded};
use devices::back_end::image::Writer;
use dsm::saved::Here;
use dsm::{Handle, SnapshotError, SnapshotReader};
use migrate::checkpoint::Message;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::{SLICES_MAX, SliceId};

/// What may wait: of each slice a few.
const INPUTS_MAX: usize = 4 * SLICES_MAX as usize;

/// What becomes of disks at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiskPolicy {
    /// Their states are kept, or there is no checkpoint.
    Keep,
    /// They are kept where they can be. The others are not written any more: the VM ends.
    KeepOrEnd,
    /// They go on, and are of another moment than the memory.
    Leave,
}

/// The file of a part, with nothing in it.
#[derive(Debug)]
pub(crate) struct ReadyPart {
    /// Number of the checkpoint.
    pub(crate) number: u64,
    /// What becomes of the slice's disks.
    pub(crate) disks: DiskPolicy,
    /// The VM and its generation, which is recorded beside them.
    pub(crate) vm: Writer,
    /// Numbers of checkpoints of which no states are needed any more.
    pub(super) released: Vec<u64>,
    /// What pages were at the checkpoint that it is an increment of.
    pub(super) before: Option<Arc<PageHashes>>,
    /// Takes what they are now, once all is written.
    pub(super) now: Sender<PageHashes>,
    /// Memory, if the guest is to run on while it is written.
    pub(super) protected: Option<Protected>,
    pub(super) writer: PartWriter,
}

/// Memory that is protected until a snapshot of it is taken, or this is dropped.
#[derive(Debug)]
pub(crate) struct Protected(Option<Handle>);

impl Protected {
    /// Protects the memory of a slice, while its guest runs.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn new(engine: &Handle, limit: Duration) -> Result<Self, SnapshotError> {
        engine.protect(limit)?;
        Ok(Self(Some(engine.clone())))
    }

    /// Takes a snapshot of what this slice has. It is at rest.
    ///
    /// # Errors
    /// Why not. Memory is no longer protected then.
    pub(crate) fn freeze(
        mut self,
        here: Here,
        limit: Duration,
    ) -> Result<SnapshotReader, SnapshotError> {
        let engine = self.0.as_ref().ok_or(SnapshotError::NotProtected)?;
        let reader = engine.freeze(here, limit)?;
        self.0 = None;
        Ok(reader)
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            engine.unprotect();
        }
    }
}

impl ReadyPart {
    /// Name under which states of disks are kept: of no other checkpoint.
    pub(crate) fn disk_name(&self) -> String {
        disk_name(self.number)
    }

    /// The same of checkpoints that are not there any more.
    pub(crate) fn released_names(&self) -> Vec<String> {
        self.released.iter().map(|number| disk_name(*number)).collect()
    }
}

fn disk_name(number: u64) -> String {
    format!("c{number}")
}

/// What whoever writes a checkpoint is told.
#[derive(Debug)]
pub(crate) enum Input {
    /// By a slice.
    Message(SliceId, Message),
    /// A slice is gone.
    Lost(SliceId),
}

#[derive(Default)]
struct Links {
    member: Option<Sender<(SliceId, Message)>>,
    /// On the coordinator, while it writes one.
    coordinator: Option<Sender<Input>>,
    /// On the coordinator, while it writes one: the folder in which the checkpoint's is.
    folder: Option<PathBuf>,
    /// Made and not begun.
    ready: Option<ReadyPart>,
    /// Being written, or written, while the guest runs. Dropping it ends the writing.
    writing: Option<Box<dyn Send>>,
    /// Of this checkpoint and those before it is said what becomes of them.
    over: u64,
}

/// The ways of one slice. Nobody is there before the guest starts and when it has ended.
#[derive(Default)]
pub(crate) struct CheckpointLinks(Mutex<Links>);

impl fmt::Debug for CheckpointLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckpointLinks")
    }
}

impl CheckpointLinks {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This slice can write its part.
    pub(super) fn set_member(&self, member: Sender<(SliceId, Message)>) {
        self.lock().member = Some(member);
    }

    /// A checkpoint is written, into a folder in this one. Tells what slices say, until [`Self::end_one`].
    pub(super) fn begin_one(&self, folder: PathBuf) -> Receiver<Input> {
        let (sender, inputs) = bounded(INPUTS_MAX);
        let mut links = self.lock();
        (links.coordinator, links.folder) = (Some(sender), Some(folder));
        inputs
    }

    /// Where the checkpoint goes that this slice has all others write too.
    pub(super) fn own_folder(&self) -> Option<PathBuf> {
        self.lock().folder.clone()
    }

    /// None is written any more.
    pub(super) fn end_one(&self) {
        let mut links = self.lock();
        (links.coordinator, links.folder) = (None, None);
    }

    /// Takes a message to where it belongs. While nobody here can write the coordinator is not left waiting: gives the
    /// answer that it is to have.
    pub(super) fn take(&self, from: SliceId, message: Message) -> Result<Option<Message>, TooMany> {
        let links = self.lock();
        let sent = match (message, &links.member, &links.coordinator) {
            (message, Some(member), _) if message.is_asking() => {
                member.try_send((from, message)).is_ok()
            }
            (Message::Prepare(number, _), None, _) => {
                return Ok(Some(Message::Failed(number, "its guest does not run".into())));
            }
            (Message::Committed(_) | Message::Discard(_), None, _) => true,
            (message, _, Some(told)) => told.try_send(Input::Message(from, message)).is_ok(),
            // Of one that was given up.
            (_, _, None) => true,
        };
        if sent { Ok(None) } else { Err(TooMany) }
    }

    /// The file of a part is there. One that was not begun goes.
    pub(super) fn put_ready(&self, part: Option<ReadyPart>) {
        let former = std::mem::replace(&mut self.lock().ready, part);
        // It may take long, and the engine's thread takes the lock.
        drop(former);
    }

    /// The part of this checkpoint, if its file is there.
    pub(crate) fn take_ready(&self, number: u64) -> Option<ReadyPart> {
        self.lock().ready.take_if(|part| part.number == number)
    }

    /// The part of this checkpoint is written while the guest runs, until it is said what becomes of it. That may have been said already.
    pub(crate) fn begin_writing(&self, number: u64, writing: Box<dyn Send>) {
        let mut links = self.lock();
        let is_over = links.over >= number;
        let former = if is_over { Some(writing) } else { links.writing.replace(writing) };
        drop(links);
        drop(former);
    }

    /// It is said what becomes of this checkpoint: nothing of it is written any more.
    pub(crate) fn end_writing(&self, number: u64) {
        let mut links = self.lock();
        links.over = links.over.max(number);
        let former = links.writing.take();
        drop(links);
        drop(former);
    }

    /// A slice is gone.
    pub(crate) fn lost(&self, slice: SliceId) {
        if let Some(told) = &self.lock().coordinator {
            // Whoever writes one is told of it by the silence of that slice too.
            let _ = told.try_send(Input::Lost(slice));
        }
    }

    /// The VM is over.
    pub(crate) fn end(&self) {
        let links = std::mem::take(&mut *self.lock());
        drop(links);
    }
}
