//! Hosts of a scenario that others may look into meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use lab::{Lab, daemon};

use crate::interrupt::Interrupted;

/// The thread that lets `./x lab` use a scenario's hosts while they are there.
#[derive(Debug)]
pub(crate) struct Attendant {
    thread: JoinHandle<()>,
    interrupted: Interrupted,
}

impl Attendant {
    /// Begins; `./x lab down` ends the scenario like ctrl-c.
    pub(crate) fn of(lab: &Arc<Lab>, interrupted: &Interrupted) -> Self {
        let (lab, flag) = (Arc::clone(lab), interrupted.flag());
        let thread = thread::spawn(move || {
            if let Err(error) = daemon::serve(lab, flag) {
                eprintln!("x: the hosts cannot be looked into: {error:#}");
            }
        });
        Self { thread, interrupted: interrupted.clone() }
    }

    /// Ends it; the scenario counts as interrupted from now on.
    pub(crate) fn end(self) {
        self.interrupted.flag().store(true, Ordering::SeqCst);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}
