//! The part of this slice: its form and what it has of the guest's memory, at rest or as it was then.
//!
//! ```text
//!   file made (ReadyPart) --form, at rest--> Writing --pages--> written: tells the coordinator
//!                                              \--dropped before--> given up: tells it at once, and waits for nobody
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
use crate::slice::page_hashes::PageHashes;
use crate::slice::saved::SliceState;
use checkpoint::PartSummary;
use dsm::{GuestRam, SnapshotEnd, SnapshotReader};
use migrate::checkpoint::Message;
use migrate::saved::encode;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::thread::{Builder, sleep};
use std::time::Duration;
use wire::{Control, Gfn, SliceId};

/// From where the contents of memory come.
#[derive(Debug)]
pub(crate) enum Memory {
    /// These frames, of which this slice has the contents; nobody stores to them until all is written.
    AtRest(Vec<Range<u64>>, Arc<GuestRam>),
    /// What these frames were; the guest runs on, and goes on before it is written.
    Snapshot(Vec<Range<u64>>, SnapshotReader, Receiver<Infallible>),
}

/// A thread that writes would take the guest's processors while that is about to go on. It waits until the slice does. Somebody's
/// disk may take long to keep its state; a slice that goes on never again is one whose process ends.
const GOES_ON_LIMIT: Duration = Duration::from_secs(60);
/// And so long behind that: other slices go on a little later, and their vCPUs may want the same processors. One that comes
/// while this writes waits for a time slice of the scheduler, 2 ms and more.
const ALL_GO_ON: Duration = Duration::from_millis(5);

/// A part that is being written. Dropping this ends the writing. The thread of it may hang in a file system, and is not waited for:
/// what it has read later than that is in no part.
#[derive(Debug)]
pub(crate) struct Writing {
    number: u64,
    channels: Weak<Channels>,
    stage: Arc<Stage>,
    /// Protects memory until this is dropped.
    snapshot: Option<SnapshotEnd>,
}

/// Who says what becomes of a part: whoever comes first.
#[derive(Debug, Default)]
struct Stage(AtomicU8);

impl Stage {
    const WRITING: u8 = 0;
    const SAID: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// It is over so, if it was not before.
    fn end(&self, how: u8) -> bool {
        self.0.compare_exchange(Self::WRITING, how, SeqCst, SeqCst).is_ok()
    }

    fn goes_on(&self) -> Result<(), PartError> {
        if self.0.load(SeqCst) == Self::GIVEN_UP { Err(PartError::GoesOn) } else { Ok(()) }
    }
}

impl Writing {
    /// Writes the form of a slice at rest, with the states of its disks, and then its memory, on a thread of its own: the
    /// guest waits for none of it.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(
        mut part: ReadyPart,
        (state, disks): (SliceState, DiskStates),
        (channels, memory): (&Arc<Channels>, Memory),
    ) -> Result<Self, PartError> {
        let snapshot = match &memory {
            Memory::AtRest(..) => None,
            Memory::Snapshot(_, reader, _) => Some(reader.end()),
        };
        let number = part.number;
        let mut writing = Self::spawn((number, channels), move |stage| {
            if let Memory::Snapshot(.., goes_on) = &memory {
                // Nothing is sent: the slice goes on.
                let _ = goes_on.recv_timeout(GOES_ON_LIMIT);
                sleep(ALL_GO_ON);
                stage.goes_on()?;
            }
            part.writer.section(FORM, &encode(&state)?)?;
            part.writer.section(DISKS, &encode(&disks)?)?;
            write(part, memory, stage)
        })?;
        writing.snapshot = snapshot;
        Ok(writing)
    }

    fn spawn(
        (number, channels): (u64, &Arc<Channels>),
        write: impl FnOnce(&Stage) -> Result<PartSummary, PartError> + Send + 'static,
    ) -> Result<Self, PartError> {
        let (stage, snapshot) = (Arc::default(), None);
        let writing = Self { number, channels: Arc::downgrade(channels), stage, snapshot };
        let (stage, weak) = (Arc::clone(&writing.stage), Weak::clone(&writing.channels));
        let run = move || {
            let said = match write(&stage) {
                Ok(summary) => encode_summary(&summary)
                    .map(|it| Message::Written(number, it))
                    .map_err(PartError::from),
                Err(error) => Err(error),
            };
            let said = said.unwrap_or_else(|error| Message::Failed(number, one_line(&error)));
            if let Some(channels) = weak.upgrade().filter(|_| stage.end(Stage::SAID)) {
                tell(&channels, channels.coordinator(), said);
            }
        };
        let thread = Builder::new().name("checkpoint-part".into()).spawn(run);
        thread.map_err(PartError::Thread)?;
        Ok(writing)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let (true, Some(channels)) = (self.stage.end(Stage::GIVEN_UP), self.channels.upgrade()) {
            let why = Message::Failed(self.number, one_line(&PartError::GoesOn));
            tell(&channels, channels.coordinator(), why);
        }
    }
}

/// Says something about a checkpoint to a slice, perhaps this one.
pub(super) fn tell(channels: &Channels, to: SliceId, message: Message) {
    if to == channels.local() {
        // Its own threads say no more than they are asked.
        if let Ok(Some(answer)) = channels.checkpoints.take(to, message) {
            let _ = channels.checkpoints.take(to, answer);
        }
    } else {
        channels.send(to, &Control::Checkpoint(message));
    }
}

fn write(part: ReadyPart, memory: Memory, stage: &Stage) -> Result<PartSummary, PartError> {
    let ReadyPart { before, now, mut writer, .. } = part;
    let mut hashes = PageHashes::default();
    let mut give = |first: Gfn, bytes: &[u8]| {
        stage.goes_on()?;
        for (frame, run) in hashes.changed(first.0, bytes, before.as_deref()) {
            writer.pages(frame, &bytes[run])?;
        }
        Ok::<(), PartError>(())
    };
    let frames = match memory {
        Memory::AtRest(frames, ram) => {
            ram.each_run(&frames, &mut give)?;
            // Memory that was to come from another checkpoint.
            ram.load_failure().map_or(Ok(()), |failure| Err(PartError::Load(failure)))?;
            frames
        }
        Memory::Snapshot(frames, mut snapshot, _) => {
            let mut bytes = Vec::new();
            while let Some(first) = snapshot.next(&mut bytes)? {
                give(first, &bytes)?;
            }
            frames
        }
    };
    if let Some(before) = before.as_deref() {
        // Else the base would say what they were.
        hashes.gone(&frames, before).try_for_each(|frame| writer.zeros(frame..frame + 1))?;
    }
    stage.goes_on()?;
    // What was read after that is none of this moment, but all was read before.
    let summary = writer.finish()?;
    // Nobody takes them if it was given up.
    let _ = now.try_send(hashes);
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::channels::tests::channels;
    use crate::slice::checkpoint_link::Input;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn slice_goes_on_while_a_write_hangs_and_says_so_at_once() {
        let (channels, _events) = channels(SliceId(0));
        let said = channels.checkpoints.begin_one("/nowhere".into());
        let (go, hang) = channel();
        let (told, ended) = channel();
        let writing = Writing::spawn((7, &channels), move |stage| {
            hang.recv().unwrap();
            let goes_on = stage.goes_on();
            told.send(goes_on.is_err()).unwrap();
            goes_on.and(Err(PartError::NotReady))
        });
        drop(writing.unwrap());
        let first = said.recv_timeout(LIMIT).unwrap();
        assert!(
            matches!(&first, Input::Message(_, Message::Failed(7, why)) if why.contains("goes on"))
        );
        go.send(()).unwrap();
        assert_eq!(ended.recv_timeout(LIMIT), Ok(true));
        drop(channels);
        assert!(said.iter().next().is_none(), "it is said once");
    }
}
