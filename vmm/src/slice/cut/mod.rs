//! All slices come to rest at one moment, and go on. [`migrate::cut`] decides; this does it.
//!
//! ```text
//!   control socket --CutHandle--> [driver, coordinator] --Take, GoOn--> [member, every slice] --> Quiesce
//!                                        ^----------Taken, Counted, GoesOn-----------|
//! ```
//! A step may take seconds, so neither the engine's thread nor the main thread waits for it: each slice has a thread for its
//! part, and the coordinator another one that decides.

mod driver;
mod member;
mod quiesce;
mod succeeds;

pub(super) use quiesce::Restable;
pub(super) use succeeds::{Failure, Succeeds};

use quiesce::Quiesce;

use super::SliceError;
use super::channels::Channels;
use super::cut_link::CutHandle;
use super::events::SliceEvent;
use crossbeam_channel::bounded;
use migrate::cut::{Coordinator, FIRST_CUT, Message, Step};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use wire::{Control, SliceId};

/// From now on this slice can be brought to rest. The folder `forms` gets the saved form of this slice each time.
/// One of a VM that is restored is brought to rest at once (`begins`): its vCPUs are not started yet.
pub(super) fn start(
    slice: Restable,
    forms: Option<PathBuf>,
    begins: bool,
) -> Result<(), SliceError> {
    let failed =
        |source: io::Error| SliceError::Io { what: "start the threads for pauses", source };
    let channels = Arc::clone(&slice.channels);
    let at_rest = begins.then(|| Quiesce::at_the_start(slice.clone())).transpose();
    let at_rest = at_rest.map_err(|error| SliceError::Rest(Box::new(error)))?;
    let member = member::start_member((slice, forms), at_rest, sender(&channels));
    let member = member.map_err(failed)?;
    channels.cut.set_member(member);
    Ok(())
}

/// This slice of a VM that is restored has all that it had, and is at rest: tells the coordinator.
pub(super) fn begun(channels: &Arc<Channels>) {
    let say = sender(channels);
    say(channels.coordinator(), Message::Taken(FIRST_CUT, Step::Begin));
}

/// From now on the VM can be brought to rest, by what is returned. Of the slice that coordinates; `ready` says when all
/// others know it for that.
///
/// # Errors
/// There is no thread for it.
pub(super) fn start_driver(
    channels: &Arc<Channels>,
    coordinator: Coordinator,
    ready: impl FnOnce(CutHandle) + Send + 'static,
) -> io::Result<()> {
    let operations = channels.operations.clone();
    let weak = Arc::downgrade(channels);
    // A disk must not be opened again, or written, when the slices are not of one mind.
    let fail = move |why| {
        if let Some(channels) = weak.upgrade() {
            channels.event(SliceEvent::Fatal(why));
        }
    };
    let (weak, term) = (Arc::downgrade(channels), channels.cut.next_term());
    let end = move || {
        if let Some(channels) = weak.upgrade() {
            channels.cut.unset_driver(term);
        }
    };
    let (told, handle) = bounded(1);
    let ready = move || {
        if let Ok(driver) = handle.recv() {
            ready(CutHandle::new(driver));
        }
    };
    let send = sender(channels);
    let driver = driver::start_driver(coordinator, operations, send, fail, (ready, end))?;
    channels.cut.set_driver(driver.clone());
    let _ = told.send(driver);
    Ok(())
}

/// Takes messages to slices, this one among them. The threads do not keep the slice alive.
fn sender(channels: &Arc<Channels>) -> impl Fn(SliceId, Message) + Send + 'static {
    let channels = Arc::downgrade(channels);
    move |to, message| {
        let Some(channels) = channels.upgrade() else { return };
        if to == channels.local() {
            // Its own threads say no more than they are asked.
            let _ = channels.cut.take(to, message);
        } else {
            channels.send(to, &Control::Cut(message));
        }
    }
}
