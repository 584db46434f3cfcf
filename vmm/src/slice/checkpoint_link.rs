//! The ways to the threads that write checkpoints. The threads themselves are in `checkpoint`.
//!
//! ```text
//!   frames of the coordinator --take--> member: makes files, removes them. While it makes one it is asked for no other
//!   frames of other slices ----take--> whoever writes a checkpoint on the coordinator
//!   member --put--> the part that is ready --take_ready--> the cut
//! ```

use super::cut_link::TooMany;
use super::page_hashes::PageHashes;
use checkpoint::PartWriter;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use devices::back_end::image::Writer;
use dsm::saved::Here;
use dsm::{Handle, SnapshotError, SnapshotReader};
use migrate::checkpoint::Message;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::{SLICES_MAX, SliceId};

/// What may wait: of each slice a few.
const INPUTS_MAX: usize = 4 * SLICES_MAX as usize;

/// For the member to take away what nobody needs, when the VM is over.
const MEMBER_LIMIT: Duration = Duration::from_secs(1);

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

impl DiskPolicy {
    /// Whether disks are told at the cut which states nobody needs any more.
    pub(crate) fn tidies(self) -> bool {
        self == Self::Keep
    }
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

/// Name under which states of disks are kept for a checkpoint.
pub(super) fn disk_name(number: u64) -> String {
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
    /// Tells that the member's thread has ended.
    member_ended: Option<Receiver<Infallible>>,
    /// The VM is about to be over: no checkpoint begins.
    ends: bool,
    /// The last checkpoint that the coordinator has asked a part of, for this or for another slice.
    last: u64,
    /// The one whose part is being made.
    preparing: Option<u64>,
    /// The one whose part was asked for, and of which it was not said what becomes of it.
    open: Option<u64>,
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
pub(crate) struct CheckpointLinks {
    links: Mutex<Links>,
    /// None is written any more.
    idle: Condvar,
}

impl fmt::Debug for CheckpointLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckpointLinks")
    }
}

impl CheckpointLinks {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This slice can write its part.
    pub(super) fn set_member(&self, member: Sender<(SliceId, Message)>) {
        self.lock().member = Some(member);
    }

    /// Its thread has ended when this says so.
    pub(super) fn set_member_ended(&self, ended: Receiver<Infallible>) {
        self.lock().member_ended = Some(ended);
    }

    /// A checkpoint is written, into a folder in this one. Tells what slices say, until [`Self::end_one`] or the VM is over.
    pub(super) fn begin_one(&self, folder: PathBuf) -> Receiver<Input> {
        let (sender, inputs) = bounded(INPUTS_MAX);
        let mut links = self.lock();
        links.coordinator = (!links.ends).then_some(sender);
        links.folder = Some(folder);
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
        drop(links);
        self.idle.notify_all();
    }

    /// The VM is about to be over. One that is being written is given up, unless it is just becoming one, and slices are told what
    /// becomes of their parts. Waits so long for that: a file system may hang.
    pub(crate) fn end_writer(&self, within: Duration) {
        let mut links = self.lock();
        links.ends = true;
        links.coordinator = None;
        // What it has come to is seen by what is left.
        drop(self.idle.wait_timeout_while(links, within, |links| links.folder.is_some()));
    }

    /// Takes a message to where it belongs. While nobody here can make a part the coordinator is not left waiting: gives the
    /// answer that it is to have. A folder that does not answer holds the member up; what is asked meanwhile does not pile up.
    pub(super) fn take(&self, from: SliceId, message: Message) -> Result<Option<Message>, TooMany> {
        let mut links = self.lock();
        match &message {
            Message::Prepare(number, _) => {
                links.last = links.last.max(*number);
                let why = match (&links.member, links.preparing) {
                    (None, _) => Some("its guest does not run".to_owned()),
                    (_, Some(former)) => Some(format!(
                        "its part of checkpoint {former} is still being made, though that one is over: \
                         ask again; if it stays so, its folder does not answer"
                    )),
                    (Some(_), None) => None,
                };
                if let Some(why) = why {
                    return Ok(Some(Message::Failed(*number, why)));
                }
                (links.preparing, links.open) = (Some(*number), Some(*number));
            }
            Message::Committed(number) | Message::Discard(number) => {
                if links.open.take_if(|open| open == number).is_none() {
                    return Ok(None);
                }
            }
            Message::Prepared(_) | Message::Written(..) | Message::Failed(..) => {
                // What is of one that was given up means nothing.
                let told = links.coordinator.as_ref();
                let sent = told.map(|told| told.try_send(Input::Message(from, message)));
                let is_full = matches!(sent, Some(Err(TrySendError::Full(_))));
                return if is_full { Err(TooMany) } else { Ok(None) };
            }
        }
        let sent = links.member.as_ref().map(|member| member.try_send((from, message)));
        if sent.is_none_or(|sent| sent.is_ok()) { Ok(None) } else { Err(TooMany) }
    }

    /// The member has made the part that it was asked for, or has not: it can be asked for the next one.
    pub(super) fn is_prepared(&self) {
        self.lock().preparing = None;
    }

    /// The last checkpoint of this VM, as far as this slice knows.
    pub(super) fn last(&self) -> u64 {
        self.lock().last
    }

    /// The last checkpoint had this number at least.
    pub(super) fn count_from(&self, last: u64) {
        let mut links = self.lock();
        links.last = links.last.max(last);
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

    /// The VM is over. The member has so long to remove a part that was given up.
    pub(crate) fn end(&self) {
        let mut links = std::mem::take(&mut *self.lock());
        let ended = links.member_ended.take();
        drop(links);
        if let Some(ended) = ended {
            // Nothing is ever sent.
            let _ = ended.recv_timeout(MEMBER_LIMIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COORDINATOR: SliceId = SliceId(0);

    fn take(links: &CheckpointLinks, message: Message) -> Option<Message> {
        links.take(COORDINATOR, message).unwrap()
    }

    #[test]
    fn folder_that_does_not_answer_never_makes_a_bad_peer_of_the_coordinator() {
        let links = CheckpointLinks::default();
        let (sender, messages) = bounded(4);
        links.set_member(sender);
        assert_eq!(take(&links, Message::Prepare(1, vec![])), None);
        for number in 1..100 {
            assert_eq!(take(&links, Message::Discard(number)), None);
            let answer = take(&links, Message::Prepare(number + 1, vec![]));
            assert!(matches!(answer, Some(Message::Failed(of, _)) if of == number + 1));
        }
        let asked: Vec<Message> = messages.try_iter().map(|(_, message)| message).collect();
        assert_eq!(asked, [Message::Prepare(1, vec![]), Message::Discard(1)]);
        links.is_prepared();
        assert_eq!(take(&links, Message::Prepare(101, vec![])), None);
        assert_eq!(take(&links, Message::Committed(101)), None);
        assert_eq!(messages.try_iter().count(), 2);
        assert_eq!(links.last(), 101);
    }

    #[test]
    fn checkpoint_that_is_written_is_given_up_before_nobody_hears_of_it() {
        let links = Arc::new(CheckpointLinks::default());
        let inputs = links.begin_one("/".into());
        let (told, hears) = bounded(1);
        let (sender, messages) = bounded(4);
        links.set_member(sender);
        assert_eq!(take(&links, Message::Prepare(1, vec![])), None);
        let writer = Arc::clone(&links);
        let writes = std::thread::spawn(move || {
            assert!(inputs.recv().is_err(), "the VM is over");
            take(&writer, Message::Discard(1));
            told.send(()).unwrap();
            writer.end_one();
        });
        links.end_writer(Duration::from_secs(60));
        assert_eq!(hears.try_recv(), Ok(()), "it was waited for");
        writes.join().unwrap();
        links.end();
        let asked: Vec<_> = messages.iter().map(|(_, message)| message).collect();
        assert_eq!(asked, [Message::Prepare(1, vec![]), Message::Discard(1)]);
    }

    #[test]
    fn no_checkpoint_begins_when_the_vm_is_about_to_be_over() {
        let links = CheckpointLinks::default();
        links.end_writer(Duration::ZERO);
        assert!(links.begin_one("/".into()).try_recv().is_err_and(|it| it.is_disconnected()));
    }

    #[test]
    fn late_answers_of_a_checkpoint_that_was_given_up_mean_nothing() {
        let links = CheckpointLinks::default();
        let late = || links.take(SliceId(1), Message::Prepared(1));
        let inputs = links.begin_one("/".into());
        assert_eq!(late(), Ok(None));
        assert_eq!(inputs.len(), 1);
        drop(inputs);
        assert_eq!(late(), Ok(None), "nobody waits any more");
        links.end_one();
        assert_eq!(late(), Ok(None));
        let inputs = links.begin_one("/".into());
        let asked_for = 3 * usize::from(SLICES_MAX);
        assert!((0..asked_for).all(|_| late() == Ok(None)));
        assert_eq!((0..INPUTS_MAX).find_map(|_| late().err()), Some(TooMany));
        assert_eq!(inputs.len(), INPUTS_MAX);
    }
}
