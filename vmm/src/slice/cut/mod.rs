//! All slices come to rest at one moment, and go on. [`migrate::cut`] decides; this does it.
//!
//! ```text
//!   control socket --CutHandle--> [driver, bootstrap slice] --Take, GoOn--> [member, every slice] --> Quiesce
//!                                        ^----------Taken, Counted, GoesOn-----------|
//! ```
//! A step may take seconds, so neither the engine's thread nor the main thread waits for it: each slice has a thread for its
//! part, and the bootstrap slice another one that decides.

mod driver;
mod member;
mod quiesce;

pub(super) use quiesce::Restable;

use super::channels::Channels;
use super::cut_link::CutHandle;
use super::events::SliceEvent;
use super::{BOOTSTRAP, SliceError};
use migrate::cut::Message;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use wire::{Control, SliceId};

/// From now on this slice can be brought to rest; on the bootstrap slice the VM can, by what is returned. The folder
/// `forms` gets the saved form of this slice each time.
pub(super) fn start(
    slice: Restable,
    forms: Option<PathBuf>,
) -> Result<Option<CutHandle>, SliceError> {
    let failed =
        |source: io::Error| SliceError::Io { what: "start the threads for pauses", source };
    let channels = Arc::clone(&slice.channels);
    let send = sender(&channels);
    let answer = move |message| send(BOOTSTRAP, message);
    let member = member::start_member((slice, forms), answer).map_err(failed)?;
    channels.cut.set_member(member);
    if channels.local() != BOOTSTRAP {
        return Ok(None);
    }
    let members = channels.placement.load().members().to_vec();
    let operations = channels.operations.clone();
    let events = channels.events.clone();
    let fail = move |why| events.send(SliceEvent::Fatal(why));
    let driver = driver::start_driver(members, operations, sender(&channels), fail);
    let driver = driver.map_err(failed)?;
    channels.cut.set_driver(driver.clone());
    Ok(Some(CutHandle::new(driver)))
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
