//! An agent that begins, again or for the first time.

use super::agent::{Agent, Effect, Settings};
use super::entry::{Entry, Journal};
use super::ids::Token;
use super::planted::{Planted, PlantedBug};
use super::slice::{End, Manner, Phase, Process, Slice};
use std::collections::BTreeMap;

/// What there is on the host when an agent begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Found {
    /// The host has restarted since the journal was written: no process of before is there, and its clock began anew.
    pub host_restarted: bool,
    /// Processes that carry tokens of this journal.
    pub processes: BTreeMap<Token, Process>,
    /// How starts have ended of which nothing was recorded yet.
    pub ended: BTreeMap<Token, End>,
}

impl Agent {
    /// Goes on from a journal. Slices that run are taken over as they are; those that are fenced are killed.
    #[must_use]
    pub fn recover(
        settings: Settings,
        journal: Journal,
        now: u64,
        found: &Found,
    ) -> (Self, Vec<Effect>) {
        Self::recover_with(settings, journal, now, found, Planted::default())
    }

    /// The same with a bug.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn with_bug(
        settings: Settings,
        journal: Journal,
        now: u64,
        found: &Found,
        bug: PlantedBug,
    ) -> (Self, Vec<Effect>) {
        Self::recover_with(settings, journal, now, found, Planted::some(bug))
    }

    fn recover_with(
        settings: Settings,
        journal: Journal,
        now: u64,
        found: &Found,
        planted: Planted,
    ) -> (Self, Vec<Effect>) {
        let mut agent = Self::new(settings, journal, planted);
        let (mut effects, mut entries) = (Vec::new(), Vec::new());
        if found.host_restarted {
            // Their times are of another clock. Whoever reserved asks again.
            let reserved = agent.journal.reserved.keys();
            entries.extend(reserved.map(|operation| Entry::Reserved(*operation, None)));
            let lowest = agent.journal.lowest.iter();
            entries.extend(lowest.map(|(vm, it)| Entry::Lowest(*vm, it.counted_from(now))));
        }
        let forgets = planted.has(PlantedBug::StartForgotten);
        for (name, slice) in agent.journal.slices.iter().filter(|(_, slice)| slice.may_run()) {
            let process = found.processes.get(&slice.token).copied();
            let process = process.filter(|_| !found.host_restarted);
            let process = process.filter(|_| !(forgets && slice.phase == Phase::Starting));
            let phase = match process {
                Some(process) => Phase::Running(process),
                None if found.host_restarted => Phase::Ended(End::HostRestarted),
                None => Phase::Ended(found.ended.get(&slice.token).cloned().unwrap_or(End::Unseen)),
            };
            if phase != slice.phase {
                let slice = Slice { phase, ..slice.clone() };
                entries.push(Entry::Slice(*name, Some(slice)));
            }
        }
        if !entries.is_empty() {
            agent.record(entries, &mut effects);
        }
        if !planted.has(PlantedBug::FenceNotResumed) {
            agent.end_fenced(&mut effects);
        }
        agent.end_stopped(&mut effects);
        agent.end_unknown(found, &mut effects);
        (agent, effects)
    }

    /// Has those end whose end was asked for: the agent may have been killed before it did.
    fn end_stopped(&self, effects: &mut Vec<Effect>) {
        for slice in self.journal.slices.values() {
            if let (Phase::Running(process), Some(manner)) = (&slice.phase, slice.stop) {
                let (token, process) = (slice.token, *process);
                effects.push(Effect::End { token, process, manner });
            }
        }
    }

    /// Kills processes that no slice has.
    fn end_unknown(&self, found: &Found, effects: &mut Vec<Effect>) {
        for (token, process) in &found.processes {
            let is_known = self
                .journal
                .slices
                .values()
                .any(|slice| slice.token == *token && slice.phase == Phase::Running(*process));
            if !is_known {
                let (token, process) = (*token, *process);
                effects.push(Effect::End { token, process, manner: Manner::AtOnce });
            }
        }
    }
}
