//! A slice's part in cuts: takes the steps that it is asked for, one after the other, on a thread of its own.
//!
//! ```text
//!   runs --Take(first step)--> comes to rest --Take...--> at rest: it counts --GoOn--> runs
//!                                                            |  \--Take(Part)--> at rest, without the slice that leaves
//!                                                            |  \--Take(Coordinate)--> at rest, another slice coordinates
//!                                                            |  \--Take(Join)--> at rest, with one slice more
//!                                                            |  \--Take(DeviceMoved)--> at rest, a device is elsewhere
//!                                                            |  \--Take(Capture)--> at rest, its part of a checkpoint is begun
//!                                                            \--Dismiss--> it ends, at rest
//! ```

use super::quiesce::{Quiesce, QuiesceError, Restable, peer_counts};
use crate::slice::events::SliceEvent;
use crate::slice::one_line;
use crossbeam_channel::{Receiver, Sender, bounded};
use dsm::schedule;
use migrate::cut::{FIRST_CUT, Message, PeerCounts, Step};
use migrate::saved::{SavedError, encode};
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use thiserror::Error;
use wire::SliceId;

/// What may wait. The coordinator asks for one step at a time, and may tell the slice to go on meanwhile.
const MESSAGES_MAX: usize = 16;
/// A slice's time for a step.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// To do without another slice: one that is left alone ends the watch over all of its memory.
const PART_LIMIT: Duration = Duration::from_secs(50);

/// To close an image or to open one, which may be on another machine's disks.
const DEVICE_LIMIT: Duration = Duration::from_secs(20);

/// Starts the thread. A slice of a VM that is restored is at rest already, in the first cut. It ends when nobody is left who
/// could ask.
///
/// # Errors
/// There is no thread for it.
pub(super) fn start_member(
    (slice, forms): (Restable, Option<PathBuf>),
    at_rest: Option<Quiesce>,
    send: impl Fn(SliceId, Message) + Send + 'static,
) -> io::Result<Sender<(SliceId, Message)>> {
    let (sender, messages) = bounded(MESSAGES_MAX);
    let part = Part { slice, forms };
    let run = move || {
        // The guest stands still for what waits here. Who writes a part, on a thread that this one starts, has time.
        schedule::prefer_this_thread_only();
        part.serve(at_rest, &messages, send);
    };
    thread::Builder::new().name("cut".into()).spawn(run)?;
    Ok(sender)
}

/// What the thread knows.
struct Part {
    slice: Restable,
    /// Where the form goes each time, if anybody wants it.
    forms: Option<PathBuf>,
}

impl Part {
    fn serve(
        &self,
        at_rest: Option<Quiesce>,
        messages: &Receiver<(SliceId, Message)>,
        send: impl Fn(SliceId, Message),
    ) {
        // The cut, and who has asked for it.
        let coordinator = self.slice.channels.coordinator();
        let mut resting: Option<((u64, SliceId), Quiesce)> =
            at_rest.map(|quiesce| ((FIRST_CUT, coordinator), quiesce));
        for (from, message) in messages {
            match message {
                Message::Take(number, step) => {
                    if resting.as_ref().is_none_or(|(of, _)| *of != (number, from)) {
                        // The one before may only bring its own cut to an end.
                        if from != self.slice.channels.coordinator() {
                            let why = "another slice coordinates".to_owned();
                            send(from, Message::Failed(number, why));
                            continue;
                        }
                        // That of another cut goes on first.
                        drop(resting.take());
                        resting = Some(((number, from), Quiesce::new(self.slice.clone())));
                    }
                    if let Some((_, quiesce)) = &mut resting {
                        send(from, self.take(quiesce, number, step));
                    }
                }
                Message::GoOn(number) => {
                    if resting.as_ref().is_some_and(|(of, _)| *of == (number, from)) {
                        drop(resting.take());
                    }
                    send(from, Message::GoesOn(number));
                }
                // It stays at rest until its process ends.
                Message::Dismiss(number) => {
                    if resting.as_ref().is_none_or(|(of, _)| *of != (number, from)) {
                        continue;
                    }
                    tracing::info!("this slice has left the VM: its process ends");
                    self.slice.channels.succession.told(Ok(()));
                    self.slice.channels.event(SliceEvent::Dismissed);
                }
                // For the coordinator.
                Message::Taken(..)
                | Message::Counted(..)
                | Message::Failed(..)
                | Message::GoesOn(_)
                | Message::HandedOver(_) => {}
            }
        }
    }

    fn take(&self, quiesce: &mut Quiesce, number: u64, step: Step) -> Message {
        let failed = |error: &dyn Error| Message::Failed(number, one_line(error));
        let taken = |()| Message::Taken(number, step);
        if let Step::MayJoin(slice) = step {
            let may = quiesce.may_join((slice, number), STEP_LIMIT);
            return may.map_or_else(|error| failed(&error), taken);
        }
        if let Step::Join(slice) = step {
            return quiesce.join(slice, PART_LIMIT).map_or_else(|error| failed(&error), taken);
        }
        if let Step::MayPart(slice) | Step::Part(slice) = step {
            let parts = matches!(step, Step::Part(_));
            let within = if parts { PART_LIMIT } else { STEP_LIMIT };
            let parted = quiesce.part_with(slice, parts, within);
            return parted.map_or_else(|error| failed(&error), taken);
        }
        if let Step::MayMove(_)
        | Step::CloseDevice(_)
        | Step::OpenDevice(_)
        | Step::DeviceMoved(_) = step
        {
            let done = quiesce.move_device(step, number, DEVICE_LIMIT);
            return done.map_or_else(|error| failed(&error), |()| Message::Taken(number, step));
        }
        if let Step::Capture(checkpoint) = step {
            let captured = quiesce.capture(checkpoint, DEVICE_LIMIT);
            return captured.map_or_else(|error| failed(&error), taken);
        }
        let handed_over = match step {
            Step::MayCoordinate(to) => Some(quiesce.may_coordinate(to)),
            Step::Coordinate(to) => Some(quiesce.coordinate(to, number)),
            _ => None,
        };
        if let Some(handed_over) = handed_over {
            return handed_over.map_or_else(|error| failed(&error), taken);
        }
        if step != Step::Count {
            let taken = quiesce.take(step, STEP_LIMIT);
            return taken.map_or_else(|error| failed(&error), |()| Message::Taken(number, step));
        }
        let counts = match &self.forms {
            Some(folder) => save(quiesce, folder),
            None => quiesce.count(STEP_LIMIT).map_err(PartError::from),
        };
        match counts {
            Ok(counts) => Message::Counted(number, Some(counts)),
            Err(PartError::Quiesce(error)) if error.is_news() => {
                tracing::debug!("this slice must rest once more: {}", one_line(&error));
                Message::Counted(number, None)
            }
            Err(error) => failed(&error),
        }
    }
}

/// Why a slice at rest has no counts.
#[derive(Debug, Error)]
enum PartError {
    #[error(transparent)]
    Quiesce(#[from] QuiesceError),
    #[error("encode the saved form")]
    Encode(#[from] SavedError),
    #[error("write the saved form")]
    Write(#[from] io::Error),
}

/// Writes the form, and gives the counts that are in it.
fn save(quiesce: &Quiesce, folder: &Path) -> Result<Vec<PeerCounts>, PartError> {
    let state = quiesce.save(STEP_LIMIT)?;
    fs::write(folder.join(format!("slice-{}", state.slice.0)), encode(&state)?)?;
    let messages = state.memory.as_ref().map_or(&[][..], |memory| &memory.channels);
    Ok(peer_counts(&state.frames, messages))
}
