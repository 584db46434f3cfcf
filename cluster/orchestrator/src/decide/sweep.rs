//! What is left on a host of lives that are over: it is ended, and forgotten.
//!
//! A host that was lost may not have been asked for it, and what has ended in a start that was undone is in its journal still. The agent
//! is asked to forget a slice, and fences that life before it does ([`Call::Remove`]): so what runs is ended too.
//!
//! **Each slice is asked for once at a time.** How a host is is heard each second, and a host that answers that may do nothing else: what
//! it was asked already it is not asked again before that call has come to its end, which each does.
//!
//! VMs that nobody knows are left alone: this may be the wrong store.

use super::call::{Call, Report, SliceReport, Target};
use super::machine::{Orchestrator, Purpose};
use super::planted::PlantedBug;
use state::Name;

/// Slices of a host that are ended or forgotten at a time. Its VMs wait for the same agent.
const SWEPT_MAX: usize = 8;

impl Orchestrator {
    pub(crate) fn sweep(&mut self, host: &Name, report: &Report) {
        for slice in &report.slices {
            let Some(heard) = self.heard.get(host) else { return };
            if heard.sweeping.len() >= SWEPT_MAX {
                // The next report is about it too.
                return;
            }
            let target = &slice.target;
            let is_asked = heard.sweeping.contains(target);
            if is_asked && !self.planted.has(PlantedBug::SweptAgain) {
                continue;
            }
            let Some(what) = self.what_ends(slice) else { continue };
            let (host, target) = (host.clone(), target.clone());
            if let Some(heard) = self.heard.get_mut(&host) {
                heard.sweeping.insert(target.clone());
            }
            self.call(&host.clone(), what, Purpose::Sweep { host, target });
        }
    }

    /// What is asked of a slice that is to be no more.
    fn what_ends(&self, slice: &SliceReport) -> Option<Call> {
        let target = &slice.target;
        let vm = self.objects.vms.values().find(|vm| vm.uid == target.uid)?;
        (target.life < vm.life).then(|| Call::Remove { targets: vec![target.clone()] })
    }

    /// The host has done it, or not: then the next report says so.
    pub(crate) fn swept(&mut self, host: &Name, target: &Target) {
        if let Some(heard) = self.heard.get_mut(host) {
            heard.sweeping.remove(target);
        }
    }
}
