//! Whose turn it is, when something may be free.

use super::{Effect, Scheduler};
use crate::ids::VmId;
use crate::planted::PlantedBug;
use crate::policy::{Policy, Refusal};
use crate::queue::{Discipline, Waiting};
use crate::spec::Spec;
use std::sync::Arc;

/// Kinds of VMs that have found no room, which are not looked at again at once.
const REFUSED_MAX: usize = 64;

impl<P: Policy> Scheduler<P> {
    /// Starts all that find room, as far as others may be passed. Returns why `asks` was refused, if it still waits.
    ///
    /// What is free only becomes less meanwhile, so whoever wants the same as one that was refused is refused too.
    pub(super) fn serve(
        &mut self,
        effects: &mut Vec<Effect>,
        asks: Option<VmId>,
    ) -> Option<Refusal> {
        let mut refused: Vec<(Arc<Spec>, Refusal)> = Vec::new();
        let (mut at, mut answer, mut last) = (0, None, VmId::default());
        while at < self.settings.look_ahead {
            let Some(it) = self.queue.get(at) else { return answer };
            let (vm, since) = (it.vm, it.since);
            last = vm;
            let Err(refusal) = self.try_start(at, &mut refused, effects) else { continue };
            if asks == Some(vm) {
                answer = Some(refusal);
            }
            let is_passed = at > 0 || self.settings.discipline.may_pass(since, self.now);
            let is_strict = self.settings.discipline == Discipline::Strict;
            if (is_strict || !is_passed) && !self.planted.has(PlantedBug::AgeIgnored) {
                break;
            }
            at += 1;
        }
        let waits = |vm: &VmId| *vm != last && self.queue.contains(*vm);
        asks.filter(waits).map_or(answer, |_| answer.or(Some(Refusal::Behind(last))))
    }

    /// Starts the VM at this turn, or says why not.
    fn try_start(
        &mut self,
        at: usize,
        refused: &mut Vec<(Arc<Spec>, Refusal)>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let Some(Waiting { vm, spec, since }) = self.queue.get(at).cloned() else {
            return Ok(());
        };
        let same = |other: &Arc<Spec>| Arc::ptr_eq(other, &spec) || **other == *spec;
        if let Some((_, refusal)) = refused.iter().find(|(other, _)| same(other)) {
            return Err(*refusal);
        }
        let mut found = self.policy.place(&self.cluster, &spec);
        if found.is_err() && self.is_to_evict(at, since) {
            found = self.policy.place(&self.cluster, &spec);
        }
        let placed = found.and_then(|decision| {
            let expires = self.now.saturating_add(self.settings.reservation_ttl);
            // A policy that decides on what is not there is refused like one that finds nothing.
            let kept = self.cluster.reserve_start(vm, &spec, &decision, expires);
            let reservation = kept.map_err(|_| Refusal::Scattered)?;
            Ok(Effect::Start { reservation, vm, decision, expires })
        });
        match placed {
            Ok(effect) => {
                self.queue.take(at);
                self.starting.insert(vm, since);
                effects.push(effect);
                Ok(())
            }
            Err(refusal) => {
                if refused.len() < REFUSED_MAX {
                    refused.push((spec, refusal));
                }
                Err(refusal)
            }
        }
    }

    /// Only with a planted bug: the youngest VM makes room.
    fn is_to_evict(&mut self, at: usize, since: u64) -> bool {
        let is_old = at == 0 && !self.settings.discipline.may_pass(since, self.now);
        if !is_old || !self.planted.has(PlantedBug::YoungestEvicted) {
            return false;
        }
        let youngest = self.cluster.vms().max_by_key(|(_, vm)| vm.started()).map(|(vm, _)| vm);
        youngest.is_some_and(|vm| !self.cluster.release(vm).is_empty())
    }
}
