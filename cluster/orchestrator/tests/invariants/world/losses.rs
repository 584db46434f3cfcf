//! Slices that end by themselves, and slices of a VM that runs which are no part of it.

use super::super::support::{Host, Running};
use super::{Assignment, Input, Name, State};
use orchestrator::decide::Target;
use std::collections::{BTreeMap, BTreeSet};

impl State {
    /// A slice of the life that runs ends by itself.
    pub(super) fn lose(&mut self) {
        let has_one = self.checkpoints().next().is_some();
        let slices = self.hosts.values_mut().flat_map(|host| &mut host.slices);
        for (target, slice) in slices.filter(|(_, slice)| slice.ended.is_none()) {
            slice.ended = Some(Some(6));
            self.lost = Some(target.life).filter(|_| has_one);
        }
    }

    /// What runs on a host dies. Its agent sees how, if it is there.
    pub(super) fn die(&mut self, host: &Name) {
        self.has_died = true;
        let status = (self.silent.as_ref() != Some(host)).then_some(6);
        let slices = self.hosts.get_mut(host).map(|host| &mut host.slices);
        for slice in slices.into_iter().flat_map(BTreeMap::values_mut) {
            slice.ended.get_or_insert(status);
        }
    }

    /// An agent loses its journal. Whoever asks it for anything has heard of it before.
    pub(super) fn lose_journal(&mut self, host: &Name) {
        self.hosts.get_mut(host).into_iter().for_each(Host::lose_journal);
        self.tell_of_an_end();
        self.hear(Input::Tick);
    }

    /// An end that was wanted is told to all slices, whatever their agents know.
    fn tell_of_an_end(&mut self) {
        let led = self.running().filter(|(_, is_bootstrap)| *is_bootstrap);
        let led: BTreeSet<u64> = led.map(|(life, _)| life).collect();
        for (target, slice) in self.hosts.values_mut().flat_map(|host| &mut host.unknown) {
            if !led.contains(&target.life) {
                slice.ended.get_or_insert(Some(0));
            }
        }
    }

    /// The companion of the life that runs leaves, and its VM goes on without it.
    pub(super) fn leave(&mut self) {
        self.has_left = true;
        let slices = self.hosts.values_mut().flat_map(|host| host.slices.values_mut());
        for slice in slices.filter(|slice| slice.ended.is_none() && !slice.is_bootstrap) {
            slice.ended = Some(Some(0));
        }
    }

    /// Another one leads, and a host has heard so.
    pub(super) fn depose(&mut self) {
        self.faults += 1;
        self.term.0 += 1;
        self.hosts.values_mut().take(1).for_each(|host| host.term = self.term);
    }

    /// Somebody goes back to the copy of the store.
    pub(super) fn go_back(&mut self) {
        let Some(copy) = self.copy.take() else { return };
        self.drop_machine();
        self.store = copy;
        self.is_old = true;
        // What is kept for what the copy does not know expires.
        self.is_room_in_doubt = true;
    }

    /// Time passes.
    pub(super) fn pass(&mut self, is_missed: bool) {
        self.ticks += 1;
        if is_missed {
            self.end_who_is_alone();
        }
        self.tell_of_an_end();
        self.note_strays();
    }

    /// Slices that have heard nothing of another one for a while stop.
    fn end_who_is_alone(&mut self) {
        let now = self.ticks;
        // Who has left is missed by nobody.
        let has_left = |slice: &Running| slice.ended == Some(Some(0));
        let of = |life: u64, runs: bool| {
            let hosts = self.hosts.values();
            let slices = hosts.flat_map(|host| host.slices.iter().chain(&host.unknown));
            let here = move |(target, slice): &(&Target, &Running)| {
                target.life == life && slice.ended.is_none() == runs && !has_left(slice)
            };
            slices.filter(here).count()
        };
        let lives: BTreeSet<u64> = self.running().map(|(life, _)| life).collect();
        let alone: Vec<u64> =
            lives.into_iter().filter(|life| of(*life, false) > 0 && of(*life, true) > 0).collect();
        for life in alone {
            let since = *self.alone.entry(life).or_insert(now);
            if now > since {
                let hosts = self.hosts.values_mut();
                let slices = hosts.flat_map(|host| host.slices.iter_mut().chain(&mut host.unknown));
                let here = slices.filter(|(target, _)| target.life == life);
                for (_, slice) in here {
                    slice.ended.get_or_insert(Some(6));
                }
            }
        }
    }

    /// What runs of the life that runs, on hosts that answer, and is none of its slices while nothing goes on.
    fn note_strays(&mut self) {
        self.strays.clear();
        let placements: Vec<&Assignment> = self.placements().collect();
        let (Some(vm), [one], None) = (self.vm(), &placements[..], self.operations().next()) else {
            return;
        };
        let hosts = self.hosts.iter().filter(|(host, _)| self.silent.as_ref() != Some(*host));
        let slices = hosts.flat_map(|(_, host)| &host.slices);
        let strays = slices.filter(|(target, slice)| {
            let is_part = one.part(target.slice).is_some();
            target.life == vm.life && slice.ended.is_none() && !is_part
        });
        self.strays = strays.map(|(target, _)| target.clone()).collect();
    }

    pub(super) fn has_strays(&self) -> bool {
        let slices = self.hosts.values().flat_map(|host| &host.slices);
        let mut running = slices.filter(|(_, slice)| slice.ended.is_none());
        running.any(|(target, _)| self.strays.contains(target))
    }
}
