//! The faults of a userfaultfd that its owner waits for by itself, without an engine.

use crate::kernel::{Fault, Uffd};
use std::io::Error;
use std::time::Duration;
use vmm_sys_util::poll::PollContext;

/// A userfaultfd and the faults read from it last.
#[derive(Debug)]
pub(crate) struct FaultQueue {
    pub(crate) uffd: Uffd,
    pub(crate) faults: Vec<Fault>,
    poll: PollContext<()>,
}

impl FaultQueue {
    pub(crate) fn new(uffd: Uffd) -> Result<Self, Error> {
        let poll = PollContext::new()?;
        poll.add(&uffd, ())?;
        Ok(Self { uffd, faults: Vec::new(), poll })
    }

    /// Waits for faults, `limit` at most, and reads them in place of the last ones.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        self.poll.wait_timeout(limit)?;
        self.faults.clear();
        self.uffd.read(&mut self.faults)
    }
}
