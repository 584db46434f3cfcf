//! What is left on a host that is to be no more is ended.
//!
//! **Of lives that are over**: a host that was lost may not have been asked for it, and what has ended in a start that was undone is in
//! its journal still. The agent is asked to forget a slice, and fences that life before it does ([`Call::Remove`]): so what runs is ended
//! too.
//!
//! **Of the life that runs**: a companion that was to join its VM, and has not. Its host may have been lost when that was undone, or have
//! done what it was asked only after it had said that nothing is there. By its number it is known as one that is no part of the VM
//! (`former` of the placement). Its life cannot be fenced, which goes on: it is ended, and forgotten with that life.
//!
//! **Each slice is asked for once at a time.** How a host is is heard each second, and a host that answers that may do nothing else: what
//! it was asked already it is not asked again before that call has come to its end, which each does.
//!
//! VMs that nobody knows are left alone: this may be the wrong store.

use super::call::{Call, Phase, Report, SliceReport, Target};
use super::ids::CallId;
use super::machine::{Orchestrator, Purpose};
use super::planted::PlantedBug;
use state::{Former, Name};
use std::collections::BTreeMap;

/// Slices of a host that are ended or forgotten at a time. Its VMs wait for the same agent.
const SWEPT_MAX: usize = 8;

impl Orchestrator {
    pub(crate) fn sweep(&mut self, host: &Name, report: &Report) {
        if self.is_left_alone(host) {
            return;
        }
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
            let Some((vm, what)) = self.what_ends(host, slice) else { continue };
            if self.is_still_asked(vm, host) {
                continue;
            }
            let (host, target) = (host.clone(), target.clone());
            if let Some(heard) = self.heard.get_mut(&host) {
                heard.sweeping.insert(target.clone());
            }
            self.call(&host.clone(), what, Purpose::Sweep { host, target });
        }
    }

    /// What is asked of a slice that is to be no more.
    fn what_ends(&self, host: &Name, slice: &SliceReport) -> Option<(&Name, Call)> {
        let target = &slice.target;
        let vm = self.objects.vms.values().find(|vm| vm.uid == target.uid)?;
        if target.life < vm.life {
            return Some((&vm.name, Call::Remove { targets: vec![target.clone()] }));
        }
        let runs = target.life == vm.life && slice.phase == Phase::Runs;
        let placement = self.objects.assignments.get(&vm.name).filter(|_| runs)?;
        let is_former = |it: &Former| it.ended && it.slice == target.slice && it.host == *host;
        let ends = placement.former.iter().any(is_former);
        let ends = ends && !self.planted.has(PlantedBug::StrayLeft);
        ends.then(|| (&vm.name, Call::End { target: target.clone() }))
    }

    /// Whether a host is still asked by an operation that is over, perhaps for the same: an operation does not wait for a host that is lost.
    fn is_still_asked(&self, vm: &Name, host: &Name) -> bool {
        let work = self.works.get(vm);
        let goes_on = |id: &CallId| {
            let asks = |calls: &BTreeMap<Name, CallId>| calls.get(host) == Some(id);
            work.is_some_and(|it| asks(&it.asking) || asks(&it.former))
        };
        let of_it = Purpose::Work { vm: vm.clone(), host: host.clone() };
        self.calls.iter().any(|(id, purpose)| *purpose == of_it && !goes_on(id))
    }

    /// The host has done it, or not: then the next report says so.
    pub(crate) fn swept(&mut self, host: &Name, target: &Target) {
        if let Some(heard) = self.heard.get_mut(host) {
            heard.sweeping.remove(target);
        }
    }
}
