//! What a run has found, gathered from all slices, and whether all is well so far.

use super::report::Report;
use super::world::{Failure, STUCK_NS, World};

impl World {
    /// What was found so far.
    pub(super) fn report(&self) -> Report {
        let guests = self.guests();
        let mut report = Report {
            slices: u16::try_from(self.slices.len()).expect("few"),
            touches: guests.touches,
            longest_ns: guests.longest_ns,
            saves: self.saves,
            snapshots: self.snapshots.as_ref().map_or(0, |snapshots| snapshots.done),
            upkeep: self.snapshots.as_ref().map_or(0, |snapshots| snapshots.upkeep),
            moves: self.moves.as_ref().map_or(0, |moves| moves.count),
            left: self.left,
            joined: self.joined,
            ..Report::default()
        };
        for slice in &self.slices {
            let of = slice.stepped.report();
            let loaded = slice.stepped.loaded();
            report.loaded += loaded.pieces - loaded.left;
            report.on_demand += loaded.on_demand;
            report.memory = slice.stepped.memory();
            report.faults += of.faults.read + of.faults.write + of.faults.upgrade;
            report.pages_in += of.pages_in;
            report.shared += of.chunks.shared;
            report.exclusive_grants += of.chunks.exclusive_grants;
            report.private_again += of.chunks.private_again;
            report.collapsed += of.chunks.collapsed;
            report.probed += of.worker_faults_probed;
            report.moved_pages += of.homes.pages_in;
            report.pulled += of.homes.pages_pulled;
        }
        report
    }

    /// Whether all is well so far.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let guests = self.guests();
        if let Some(what) = guests.failure.clone() {
            drop(guests);
            return self.fail(&what);
        }
        let is_stuck = |since: Option<u64>| since.is_some_and(|at| guests.now - at > STUCK_NS);
        if guests.vcpus.iter().any(|vcpu| is_stuck(vcpu.since)) {
            drop(guests);
            return self.fail(&format!("stuck: {}", self.waiting()));
        }
        Ok(())
    }

    /// Who has not ended, and what the slices know of the page that is wanted.
    pub(super) fn waiting(&self) -> String {
        let guests = self.guests();
        let lines = (0..guests.vcpus.len()).filter_map(|vcpu| {
            let (mut line, gfn) = guests.waiting(vcpu)?;
            for (at, slice) in self.slices.iter().enumerate().filter(|_| gfn.is_some()) {
                line += &format!("\n  slice{at}: {}", slice.stepped.state_of(gfn?));
            }
            Some(line)
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
