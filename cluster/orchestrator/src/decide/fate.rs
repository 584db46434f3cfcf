//! What has become of a VM that is to run, by what hosts say of its slices.
//!
//! ```text
//!   hosts that answer say         hosts of it that are silent     fate
//!   a slice has ended, or is gone      any                        over, boots, or lost
//!   a slice runs                       any                        runs: the others would have missed a slice that is dead
//!   nothing                            some                       unheard: nothing is done, and the silent hosts are waited for
//!   (nobody has answered yet)          none                       runs, as far as is known
//! ```
//! **Silence of a host is no loss.** Its agent may be down, or the way to it, while the slices run. Slices of one VM watch each other: if
//! the host itself is dead those on other hosts end within their lease, and their hosts say so. A VM all of whose slices are on silent
//! hosts has nobody who could say; it runs on if they answer again, and begins anew when they say that it has ended, or when an
//! operator says that they are gone.

use super::call::{Phase, SliceReport, Target};
use super::machine::Orchestrator;
use super::planted::PlantedBug;
use state::{Assignment, Name, Part, Vm};

/// Statuses of the first slice (docs/operations.md): the guest has reset itself, or its kernel has panicked.
const BOOTS: [u32; 2] = [3, 4];
/// Its time is over, somebody has stopped it at its socket, or it goes on elsewhere as another life.
const ENDED: [u32; 3] = [7, 8, 9];

/// What has become of a VM.
pub(crate) enum Fate {
    /// Nobody says anything else.
    Runs {
        /// A host that answers says so.
        is_seen: bool,
    },
    /// No host that answers has a slice of it that runs, and others do not answer.
    Unheard(String),
    /// Its guest wants to boot, or has panicked: nothing of it was lost.
    Boots(String),
    /// Its guest has ended it.
    Over(String),
    /// It has ended otherwise, or a part of it is gone.
    Lost(String),
}

impl Orchestrator {
    /// Why it runs no more, if so. One slice is not looked at: it is about to join, and if it is lost then, the others say so.
    pub(crate) fn why_ended(
        &self,
        vm: &Vm,
        assignment: &Assignment,
        but: Option<u16>,
    ) -> Option<String> {
        match self.fate(vm, assignment, but) {
            Fate::Runs { .. } | Fate::Unheard(_) => None,
            Fate::Over(why) | Fate::Boots(why) | Fate::Lost(why) => Some(why),
        }
    }

    pub(crate) fn fate(&self, vm: &Vm, assignment: &Assignment, but: Option<u16>) -> Fate {
        let (mut silent, mut is_seen) = (Vec::new(), false);
        for (slice, part) in assignment.numbered().filter(|(number, _)| Some(*number) != but) {
            let host = &part.host;
            if !self.objects.hosts.contains_key(host) {
                return Fate::Lost(format!("host {host}, which had a part of it, was removed"));
            }
            if self.is_lost(host) {
                if self.planted.has(PlantedBug::SilenceIsLoss) {
                    return Fate::Lost(format!("host {host} does not answer"));
                }
                silent.push(host.as_str());
                continue;
            }
            match self.fate_of_slice(vm, assignment, slice, part) {
                Some(Fate::Runs { is_seen: this }) => is_seen |= this,
                Some(fate) => return fate,
                None => {}
            }
        }
        if silent.is_empty() || is_seen {
            return Fate::Runs { is_seen };
        }
        let hosts = silent.join(", ");
        Fate::Unheard(format!(
            "nothing is heard of {hosts}, where it ran: it is waited for, or, if it never comes back, `tessera host remove NAME --gone` of each"
        ))
    }

    /// What a host that answers says of a slice; none if it has not answered yet.
    fn fate_of_slice(
        &self,
        vm: &Vm,
        assignment: &Assignment,
        slice: u16,
        part: &Part,
    ) -> Option<Fate> {
        let target = Target { uid: vm.uid.clone(), slice, life: vm.life };
        let (call, report) = self.heard.get(&part.host)?.report.as_ref()?;
        let Some(found) = report.slice(&target) else {
            let since = self.running_since.get(&vm.name)?;
            // What was asked before it ran does not know of it.
            let lost = || Fate::Lost(format!("slice {slice} is not on {} any more", part.host));
            return (call >= since).then(lost);
        };
        let status = match found.phase {
            Phase::Runs => return Some(Fate::Runs { is_seen: true }),
            Phase::Ended(status) => status,
        };
        match status {
            // It was told that the VM is over. Why, the first slice says, whose host is asked as well.
            Some(0) if slice > 0 && self.may_first_run(vm, assignment) => None,
            Some(status) if slice == 0 => Some(fate_of_first(status, found, &part.host)),
            _ => Some(lost(slice, found, &part.host)),
        }
    }

    /// As far as its host has said, which will say more. If it has said nothing since the VM runs, it may.
    fn may_first_run(&self, vm: &Vm, assignment: &Assignment) -> bool {
        let target = Target { uid: vm.uid.clone(), slice: 0, life: vm.life };
        let Some(host) = assignment.slices.first().map(|part| &part.host) else { return false };
        let report = self.heard.get(host).and_then(|heard| heard.report.as_ref());
        let Some((call, report)) = report.filter(|_| !self.is_lost(host)) else { return true };
        match report.slice(&target) {
            Some(found) => found.phase == Phase::Runs,
            None => self.running_since.get(&vm.name).is_some_and(|since| call < since),
        }
    }
}

/// What the status of the slice that a VM began with says.
fn fate_of_first(status: u32, found: &SliceReport, host: &Name) -> Fate {
    match status {
        0 => Fate::Over("its guest has ended it".to_owned()),
        status if BOOTS.contains(&status) => Fate::Boots(found.cause.clone()),
        status if ENDED.contains(&status) => Fate::Over(found.cause.clone()),
        _ => lost(0, found, host),
    }
}

fn lost(slice: u16, found: &SliceReport, host: &Name) -> Fate {
    Fate::Lost(format!("slice {slice} on {host} has ended: {}", found.cause))
}
