//! States below an image that no checkpoint needs any more are merged while the VM runs, on a thread of their own.
//!
//! ```text
//!   idle --a checkpoint's cut is over--> merging --done, or it failed--> idle
//!                                          \--the disk moves, or the VM is over: stop--> idle
//! ```
//! What one does not come to the next one does. Guests are not told: they see the same disk.

use super::super::lock;
use crate::slice::one_line;
use devices::back_end::image::ImageOptions;
use devices::back_end::image::snapshot::{self, SnapshotError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// The thread of one image, if there is one.
#[derive(Debug, Default)]
pub(super) struct Tidying(Mutex<Option<Thread>>);

#[derive(Debug)]
struct Thread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Tidying {
    /// These states of the image are not needed any more. Merges what it can, unless it does so already.
    pub(super) fn start(&self, options: ImageOptions, released: &[String]) {
        let mut running = lock(&self.0);
        let busy = running.as_ref().is_some_and(|it| !it.thread.is_finished());
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, released) = (Arc::clone(&stop), released.to_owned());
        let run = move || {
            mark(&options, &released);
            if !busy {
                tidy(&options, &stopped);
            }
        };
        // Of one that only marks nobody has to know.
        match Builder::new().name("tidy".into()).spawn(run) {
            Ok(thread) if !busy => *running = Some(Thread { stop, thread }),
            Ok(_) => {}
            Err(error) => tracing::warn!("no thread to merge states of disks: {error}"),
        }
    }

    /// Waits until no file is written any more: for a piece of one at most.
    pub(super) fn stop(&self) {
        let Some(Thread { stop, thread }) = lock(&self.0).take() else { return };
        stop.store(true, Ordering::Release);
        // A panic ends the process.
        let _ = thread.join();
    }
}

impl Drop for Tidying {
    fn drop(&mut self) {
        self.stop();
    }
}

/// These states of the image are not needed any more.
pub(super) fn mark(options: &ImageOptions, released: &[String]) {
    for name in released {
        if let Err(error) = snapshot::release(&options.path, name) {
            tracing::warn!("a state of a disk stays: {}", one_line(&error));
        }
    }
}

fn tidy(options: &ImageOptions, stop: &AtomicBool) {
    let path = options.path.display();
    match snapshot::tidy(options, &|| !stop.load(Ordering::Acquire)) {
        Ok(done) if (done.merged, done.removed) == (0, 0) => {}
        Ok(done) => {
            let (merged, removed, unread) = (done.merged, done.removed, done.unread);
            tracing::info!("disk {path}: {merged} states merged, {removed} files removed");
            if unread > 0 {
                tracing::info!("disk {path}: {unread} files of others beside it may not be read");
            }
        }
        // Another process does it, and perhaps for this one.
        Err(error @ SnapshotError::Untidy(_)) => {
            tracing::info!("disk {path}: {}", one_line(&error));
        }
        Err(error) => tracing::warn!("states of disk {path} stay for now: {}", one_line(&error)),
    }
}
