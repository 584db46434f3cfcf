//! Why a VM is where it is, or waits, in words. Nothing here changes anything.

use super::care::spec;
use super::machine::Orchestrator;
use scheduler::cluster::Cluster;
use scheduler::{Rule, Spec, explain};
use state::{Assignment, Name, OperationResult, Verb, Vm, VmState};

/// Why a VM is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmWhy {
    /// In words.
    pub why: String,
    /// Hosts that all of it would fit on.
    pub fit: u32,
    /// Hosts that all of it would not fit on, and why.
    pub rejected: Vec<(Name, String)>,
}

/// By which rule hosts were chosen.
pub(crate) fn rule(rule: Rule) -> &'static str {
    match rule {
        Rule::BestFit => "best fit: the host that has least left",
        Rule::FewestHosts => "no host has room for all of it: as few hosts as possible",
        Rule::MostHosts => "no host has room for all of it: as many hosts as allowed",
    }
}

impl Orchestrator {
    /// Why a VM is where it is, or waits.
    #[must_use]
    pub fn why(&self, name: &Name) -> Option<VmWhy> {
        let vm = self.objects.vms.get(name)?;
        let told = self.failed.get(name).map(|failed| failed.told.clone());
        let spec = Spec { avoid: told.unwrap_or_default(), ..spec(&vm.desired) };
        let cluster: &Cluster = self.scheduler.cluster();
        let explained = explain(cluster, &spec, false);
        let more = [self.why_it_stays(name), self.silence_of(vm), self.checkpoint_of(vm)];
        let mut why = vm.observed.why.clone();
        for more in more.into_iter().flatten() {
            why = format!("{why}; {more}");
        }
        let mut rejected = self.in_words(explained.hosts);
        let own = self.assignment(name).map(Assignment::hosts).unwrap_or_default();
        for (_, why) in rejected.iter_mut().filter(|(host, _)| own.contains(&host)) {
            why.push_str(", beside what it has there");
        }
        Some(VmWhy { why, fit: explained.fit, rejected })
    }

    /// Hosts of a VM that runs of which nothing is heard.
    fn silence_of(&self, vm: &Vm) -> Option<String> {
        if vm.observed.state != VmState::Running {
            return None;
        }
        let hosts = self.assignment(&vm.name)?.hosts();
        let silent = hosts.into_iter().filter(|host| self.is_lost(host)).map(Name::as_str);
        let silent: Vec<&str> = silent.collect();
        let is_seen = silent.len() < self.assignment(&vm.name)?.hosts().len();
        let said = "nothing is heard of the agent of";
        let runs = "its slices elsewhere would have ended if the slice there had";
        let runs = if is_seen { format!("; {runs}") } else { String::new() };
        (!silent.is_empty()).then(|| format!("{said} {}{runs}", silent.join(", ")))
    }

    /// How old the newest checkpoint is of a VM that is written down, and why there is no newer one.
    fn checkpoint_of(&self, vm: &Vm) -> Option<String> {
        vm.desired.checkpoint?;
        let newest = self.of_this_line(vm).next_back();
        let age = newest.map(|it| self.now.unix.saturating_sub(it.at));
        let mut said = match age {
            Some(age) => format!("its newest checkpoint is {age} s old"),
            None => "it has no checkpoint yet".to_owned(),
        };
        let failed = self.objects.operations.values().rev().find(|it| {
            let is_newer = newest.is_none_or(|newest| it.id > newest.id);
            it.verb == Verb::Checkpoint && it.vm == vm.name && is_newer
        });
        if let Some(OperationResult::Failed { why }) = failed.and_then(|it| it.result.as_ref()) {
            said = format!("{said}, and the last try has failed: {why}");
        }
        Some(said)
    }

    /// For each VM that is to run and to be written down: seconds since the newest checkpoint that it would go on from, or since it
    /// runs.
    pub(crate) fn checkpoint_age(&self, vm: &Vm) -> Option<u64> {
        vm.desired.checkpoint.filter(|_| vm.observed.state != VmState::Stopped)?;
        if let Some(newest) = self.of_this_line(vm).next_back() {
            return Some(self.now.unix.saturating_sub(newest.at));
        }
        if vm.observed.state != VmState::Running {
            return None;
        }
        let since = self.runs.get(&vm.name).map_or(self.since, |runs| runs.since);
        Some(self.now.ms.saturating_sub(since) / 1000)
    }
}
