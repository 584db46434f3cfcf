//! A store that is older than what its hosts have done: somebody went back to a copy of it.
//!
//! ```text
//!   a VM has no place in the store
//!     └─ not all hosts have said what they have ──> it waits; one that is lost is not waited for
//!     └─ a host runs this life of it, or a later one ──> it is left as it is, and who asks is told
//!     └─ a host knows of a later life, which is over ──> its next life comes after that
//!   a life is over in the store ── another host runs it too ──> that host is fenced with the others, once all have said what they have
//! ```
//! A copy from before a VM began, began anew or moved does not name the hosts that run it now. Who believes it would start the VM a second
//! time, on the same disks. Hosts know better: their agents keep the lives of all VMs that they run. A host that does not answer says
//! nothing, so this protects only as far as hosts are up (docs/cluster.md).

use super::call::{Phase, SliceReport};
use super::machine::{Heard, Orchestrator};
use super::planted::PlantedBug;
use super::start::LIFE_MAX;
use state::{Assignment, Name, Operation, Uid, Vm};

impl Orchestrator {
    /// Whether a VM that has no place in the store may begin a life; else it says why not. Its next life may become a later one.
    pub(crate) fn may_begin(&mut self, vm: &mut Vm) -> bool {
        let why = self.why_not_begin(vm);
        let may_begin = why.is_none();
        if let Some(why) = why {
            vm.observed.why = why;
        } else {
            // Further than any VM has come a host is not believed: the VM's own lives would soon not be, either.
            let known = self.slices_of(&vm.uid).map(|(_, slice)| slice.target.life);
            let known = known.filter(|life| *life < LIFE_MAX / 2).max();
            vm.life = known.map_or(vm.life, |known| vm.life.max(known.saturating_add(1)));
        }
        self.put_vm(vm.clone());
        may_begin
    }

    fn why_not_begin(&self, vm: &Vm) -> Option<String> {
        if let Some(host) = self.unheard() {
            return Some(format!("host {host} has not said yet what runs there"));
        }
        let runs =
            |it: &(&Name, &SliceReport)| it.1.phase == Phase::Runs && it.1.target.life >= vm.life;
        let (host, slice) = self.slices_of(&vm.uid).find(runs)?;
        let life = slice.target.life;
        Some(format!(
            "host {host} runs it, in life {life}, and the store does not know: it is an older copy. End it there, or bring the newer store back"
        ))
    }

    /// A host that has not said what runs there since this leader began, and may. One that was registered since is new: nobody waits
    /// until its agent is there.
    fn unheard(&self) -> Option<&Name> {
        let is_unheard = |name: &&Name| {
            // What an agent of two hosts has to say is heard of the other one.
            let is_heard =
                |heard: &Heard| heard.at.is_some() || heard.double_of.is_some() || heard.since > 0;
            !self.heard.get(*name).is_some_and(is_heard) && !self.is_lost(name)
        };
        let hears = !self.planted.has(PlantedBug::OlderStoreBelieved);
        self.objects.hosts.keys().filter(|_| hears).find(is_unheard)
    }

    /// Whether it is known which hosts are to be fenced. Within a second of the leader's beginning, if all are up.
    pub(crate) fn knows_who_runs_it(&self) -> bool {
        self.unheard().is_none()
    }

    /// Hosts that run a life that is over, and that the store does not name.
    pub(crate) fn run_it_too<'a>(
        &'a self,
        operation: &'a Operation,
        assignment: &'a Assignment,
    ) -> impl Iterator<Item = &'a Name> {
        let named = assignment.hosts();
        let vm = self.objects.vms.get(&operation.vm);
        let slices = vm.into_iter().flat_map(|vm| self.slices_of(&vm.uid));
        let is_over =
            |slice: &SliceReport| slice.phase == Phase::Runs && slice.target.life <= operation.life;
        let hosts = slices.filter(move |(_, slice)| is_over(slice)).map(|(host, _)| host);
        hosts.filter(move |host| !named.contains(host) && !self.is_out(host))
    }

    /// What hosts have said last of a VM.
    fn slices_of<'a>(&'a self, uid: &'a Uid) -> impl Iterator<Item = (&'a Name, &'a SliceReport)> {
        let of = move |(host, heard): (&'a Name, &'a Heard)| {
            let slices = heard.report.iter().flat_map(|(_, report)| &report.slices);
            slices.filter(move |slice| slice.target.uid == *uid).map(move |slice| (host, slice))
        };
        let hears = !self.planted.has(PlantedBug::OlderStoreBelieved);
        self.heard.iter().filter(move |_| hears).flat_map(of)
    }
}
