//! Two engines in this process whose faults come from its own threads: no KVM, no fork. For figures
//! beside each other; what slices on hosts of their own pay, `Cluster` tells, for here both share
//! an address space, and with it the cost of taking pages away.

use crate::carrier::Carrier;
use crate::native::Native;
use crate::paging::GuestPages;
use crate::placement::Place;
use crate::plan::Plan;
use crate::slice::Slice;
use crate::worker_pool::{Done, WorkerPool};
use anyhow::{Context, Result, ensure};
use dsm::{HoldPolicy, Mechanisms, Memory};
use microguest::Job;
use std::path::Path;
use transport::Transport;

/// Two slices with a thread each in the role of a vCPU.
#[derive(Debug)]
pub struct Engines {
    /// The threads end before the engines that answer their faults.
    threads: [Native; 2],
    slices: [Slice; 2],
}

impl Engines {
    /// Engines with so many pages by home; each engine on the core of its thread.
    ///
    /// # Errors
    /// Userfaultfd or the transport refuse.
    pub fn new(carrier: Carrier, homes: &[u64; 2], places: &[Place; 2]) -> Result<Self> {
        let plan = Plan {
            image: Path::new(""),
            carrier,
            homes,
            places: &[&[], &[]],
            engines: places,
            hold: HoldPolicy::fixed(1),
            mechanisms: Mechanisms::ALL,
            page_by_page: &[0, 1],
            memory: Memory::default(),
            guest_pages: GuestPages::Small,
        };
        let [first, second] = carrier.pair()?;
        let slice = |local, end: Box<dyn Transport>| Slice::new(&plan, local, end);
        let slices = [slice(0, first)?, slice(1, second)?];
        let thread = |slice: &Slice, place: &Place| {
            Native::over(&slice.memory(), std::slice::from_ref(place))
        };
        let threads = [thread(&slices[0], &places[0])?, thread(&slices[1], &places[1])?];
        Ok(Self { threads, slices })
    }

    /// Runs a job of a slice to its end.
    ///
    /// # Errors
    /// No such slice, or the job does not end.
    pub fn run(&mut self, slice: usize, job: Job) -> Result<Done> {
        let thread = self.threads.get_mut(slice).context("no such slice")?;
        thread.start(0, job)?;
        thread.wait(0)
    }

    /// Runs a job and answers how many faults of its slice needed the other.
    ///
    /// # Errors
    /// As for [`Self::run`], or the engine does not answer.
    pub fn run_counted(&mut self, slice: usize, job: Job) -> Result<(Done, u64)> {
        let before = self.faults(slice)?;
        let done = self.run(slice, job)?;
        let faults = self.faults(slice)?;
        ensure!(faults >= before, "an engine counts backwards");
        Ok((done, faults - before))
    }

    fn faults(&self, slice: usize) -> Result<u64> {
        let faults = self.slices.get(slice).context("no such slice")?.report()?.faults;
        Ok(faults.read + faults.write + faults.upgrade)
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        // Each will see the other go.
        self.slices.iter().for_each(Slice::expect_end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use microguest::Kind;
    use microguest::layout::SHARED;

    #[test]
    fn uffd_every_page_of_the_other_slice_faults_once() {
        if !needs::has(needs::Need::Uffd, dsm::check_host()) {
            return;
        }
        let job = |kind: Kind| Job {
            kind: kind as u64,
            memory: SHARED + 512 * 4096,
            pages: 64,
            rounds: 64,
            ..Job::default()
        };
        for carrier in [Carrier::Shm, Carrier::Tcp] {
            let places = [Place::Anywhere; 2];
            let mut engines = Engines::new(carrier, &[512, 512], &places).unwrap();
            engines.run(1, job(Kind::Write)).unwrap();
            let (done, faults) = engines.run_counted(0, job(Kind::Read)).unwrap();
            assert_eq!((done.job.sum, done.samples.len(), faults), (7 * 64, 64, 64));
            assert_eq!(engines.run_counted(0, job(Kind::Write)).unwrap().1, 64);
            assert_eq!(engines.run_counted(0, job(Kind::Write)).unwrap().1, 0);
        }
    }
}
