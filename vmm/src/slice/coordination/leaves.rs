//! A slice that has coordinated and is empty asks the coordinator to let it leave.
//!
//! ```text
//!   the one before --WantLeave--> [thread of the coordinator] --cut--> the one before is dismissed
//!         ^------------LeaveRefused, and why------|
//! ```

use crate::slice::channels::Channels;
use crate::slice::one_line;
use crate::slice::relocation::Relocations;
use crossbeam_channel::bounded;
use std::io;
use std::sync::Arc;
use std::thread;
use wire::{Control, SliceId};

/// One slice at a time has coordinated before.
const WISHES_MAX: usize = 1;

/// Starts the thread. It ends when another slice coordinates, or the VM is over.
pub(super) fn start(channels: &Arc<Channels>, relocations: &Arc<Relocations>) -> io::Result<()> {
    let (sender, wishes) = bounded::<SliceId>(WISHES_MAX);
    let (weak, relocations) = (Arc::downgrade(channels), Arc::clone(relocations));
    let run = move || {
        for slice in wishes {
            let Err(error) = relocations.let_leave(slice) else { continue };
            let Some(channels) = weak.upgrade() else { return };
            channels.send(slice, &Control::LeaveRefused(one_line(&error)));
        }
    };
    thread::Builder::new().name("leaves".into()).spawn(run)?;
    channels.succession.set_thread(Some(sender));
    Ok(())
}
