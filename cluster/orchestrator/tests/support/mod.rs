//! Hosts that keep the contract of agent.proto, without processes.
#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]

use orchestrator::decide::{
    Call, Failure, Phase, Reply, Report, Role, SliceReport, Target, VmSight,
};
use state::{Guest, Name, NumaNode, RunStrategy, Secret, SharingClass, Term, Uid, VmDesired};
use std::collections::BTreeMap;

/// A slice of a [`Host`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Running {
    pub(crate) is_bootstrap: bool,
    pub(crate) ended: Option<Option<u32>>,
    pub(crate) cores: u16,
}

/// A host with its agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    pub(crate) cores: u16,
    pub(crate) memory_mib: u64,
    pub(crate) boot: u32,
    pub(crate) term: Term,
    /// Room that is kept, by operation.
    pub(crate) kept: BTreeMap<Uid, u16>,
    pub(crate) slices: BTreeMap<Target, Running>,
    /// The lowest life that may run.
    pub(crate) lowest: BTreeMap<Uid, u64>,
    /// It refuses room and slices.
    pub(crate) is_sick: bool,
}

impl Host {
    pub(crate) fn new(cores: u16, memory_mib: u64) -> Self {
        Self {
            cores,
            memory_mib,
            boot: 1,
            term: Term(0),
            kept: BTreeMap::new(),
            slices: BTreeMap::new(),
            lowest: BTreeMap::new(),
            is_sick: false,
        }
    }

    /// All of it has ended, and it is another start.
    pub(crate) fn reboot(&mut self) {
        self.boot += 1;
        self.kept.clear();
        self.slices.values_mut().filter(|slice| slice.ended.is_none()).for_each(|slice| {
            slice.ended = Some(None);
        });
    }

    pub(crate) fn free(&self) -> u16 {
        let slices = self.slices.values().filter(|slice| slice.ended.is_none());
        let used: u16 = slices.map(|slice| slice.cores).sum();
        self.cores.saturating_sub(used + self.kept.values().sum::<u16>())
    }

    pub(crate) fn report(&self) -> Report {
        let slice = |(target, slice): (&Target, &Running)| SliceReport {
            target: target.clone(),
            phase: slice.ended.map_or(Phase::Runs, Phase::Ended),
            cause: "it has ended".to_owned(),
        };
        Report {
            boot_id: format!("boot-{}", self.boot),
            nodes: vec![NumaNode { cores: self.cores, memory_mib: self.memory_mib }],
            version: "0.1.0".to_owned(),
            slices: self.slices.iter().map(slice).collect(),
        }
    }

    /// What its agent does and answers.
    pub(crate) fn call(&mut self, term: Term, call: &Call) -> Result<Reply, Failure> {
        if !matches!(call, Call::Look | Call::Ask { .. }) {
            if term < self.term {
                return Err(Failure::Deposed);
            }
            self.term = term;
        }
        let refused = |why: &str| Err(Failure::Refused(why.to_owned()));
        match call {
            Call::Look => return Ok(Reply::Report(self.report())),
            Call::Reserve { operation, target, cores, .. } => {
                if self.is_stale(target) {
                    return refused("STALE_GENERATION");
                }
                if self.kept.contains_key(operation) || self.slices.contains_key(target) {
                    return Ok(Reply::Done);
                }
                if self.is_sick || self.free() < *cores {
                    return refused("NO_CAPACITY");
                }
                self.kept.insert(operation.clone(), *cores);
            }
            Call::Release { operation } => drop(self.kept.remove(operation)),
            Call::Ensure { target, cores, role, .. } => return self.ensure(target, *cores, role),
            Call::Ask { target } => {
                let running = self.slices.get(target).filter(|slice| slice.ended.is_none());
                return match running {
                    Some(_) => Ok(Reply::Vm(VmSight::Runs)),
                    None => Err(Failure::Unreachable("no slice".to_owned())),
                };
            }
            Call::Stop { target } => {
                if let Some(slice) = self.slices.get_mut(target) {
                    slice.ended.get_or_insert(Some(0));
                }
            }
            Call::Fence { uid, life } => {
                let lowest = self.lowest.entry(uid.clone()).or_default();
                *lowest = (*lowest).max(life + 1);
                for (target, slice) in &mut self.slices {
                    if target.uid == *uid && target.life <= *life {
                        slice.ended.get_or_insert(None);
                    }
                }
            }
            Call::Remove { target } => {
                let runs = self.slices.get(target).is_some_and(|slice| slice.ended.is_none());
                if runs {
                    return refused("SLICE_RUNNING");
                }
                self.slices.remove(target);
            }
        }
        Ok(Reply::Done)
    }

    fn is_stale(&self, target: &Target) -> bool {
        self.lowest.get(&target.uid).is_some_and(|lowest| target.life < *lowest)
    }

    fn ensure(&mut self, target: &Target, cores: u16, role: &Role) -> Result<Reply, Failure> {
        let refused = |why: &str| Err(Failure::Refused(why.to_owned()));
        if self.is_stale(target) {
            return refused("STALE_GENERATION");
        }
        let is_bootstrap = matches!(role, Role::Bootstrap { .. });
        if let Some(slice) = self.slices.get(target) {
            if slice.is_bootstrap != is_bootstrap {
                return refused("GENERATION_CONFLICT");
            }
        } else {
            if self.is_sick {
                return refused("HOST_UNFIT");
            }
            // What was kept is used up, whichever operation it was for: there is one for each slice.
            let kept = self.kept.iter().find(|(_, kept)| **kept == cores);
            if let Some(operation) = kept.map(|(operation, _)| operation.clone()) {
                self.kept.remove(&operation);
            } else if self.free() < cores {
                return refused("NO_CAPACITY");
            }
            self.slices.insert(target.clone(), Running { is_bootstrap, ended: None, cores });
        }
        Ok(Reply::Ensured(if is_bootstrap { String::new() } else { "192.0.2.1:7000".to_owned() }))
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub(crate) fn secret(uid: &Uid) -> Secret {
    Secret { vm: uid.clone(), digits: "0a".repeat(32) }
}

/// A VM that may be split.
pub(crate) fn desired(vcpus: u16, memory_mib: u64, run: RunStrategy) -> VmDesired {
    VmDesired {
        vcpus,
        memory_mib,
        class: SharingClass::Default,
        run,
        slices_max: Some(2),
        guest: Guest { kernel: "vmlinuz".to_owned(), ..Guest::default() },
        checkpoint: None,
        deleted: false,
    }
}
