//! Hosts that keep the contract of agent.proto, without processes.
#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]

use orchestrator::decide::{
    Call, Failure, Phase, Place, Reply, Report, Restore, Role, SharePart, SliceReport, Target,
    VmSight, Written,
};
use state::{
    CheckpointPolicy, Guest, Name, NumaNode, RunStrategy, Secret, SharingClass, Term, Uid,
    VmDesired,
};
use std::collections::{BTreeMap, BTreeSet};

/// The folder that all hosts see.
pub(crate) const CHECKPOINTS: &str = "/srv/checkpoints";

/// A slice of a [`Host`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Running {
    pub(crate) is_bootstrap: bool,
    pub(crate) ended: Option<Option<u32>>,
    pub(crate) cores: u16,
    /// Of a bootstrap: its VM.
    pub(crate) guest: Option<Guests>,
    /// What its VM has gone on from.
    pub(crate) restore: Option<Restore>,
}

/// A VM, as its coordinating slice knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Guests {
    pub(crate) places: Vec<Place>,
    /// What came of requests, by their ids.
    brought: BTreeMap<Uid, Reply>,
    /// Slices that have left.
    left: Vec<u16>,
}

/// What VMs do that are to bring a slice elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Mood {
    /// They do.
    #[default]
    Willing,
    /// They never do.
    Refuses,
    /// They take no other slice.
    RefusesToJoin,
    /// At first they bring a vCPU, and fail then.
    Partly,
    /// They have no room for checkpoints.
    CannotWrite,
    /// Their host cannot delete any.
    CannotDelete,
}

/// A host with its agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    /// Which agent it is, and how it calls its host.
    pub(crate) agent: String,
    pub(crate) called: String,
    pub(crate) cores: u16,
    pub(crate) memory_mib: u64,
    pub(crate) boot: u32,
    pub(crate) term: Term,
    /// Room that is kept, by operation: for which slice, and how much.
    pub(crate) kept: BTreeMap<Uid, (Target, u16)>,
    pub(crate) slices: BTreeMap<Target, Running>,
    /// Slices that run, and that its agent knows nothing of.
    pub(crate) unknown: BTreeMap<Target, Running>,
    /// The lowest life that may run.
    pub(crate) lowest: BTreeMap<Uid, u64>,
    /// It refuses room and slices.
    pub(crate) is_sick: bool,
    /// What no slice runs without.
    pub(crate) lacks: Option<&'static str>,
    /// Of VMs that began here.
    pub(crate) mood: Mood,
    /// Checkpoints, which all hosts see ([`share_files`]).
    pub(crate) files: BTreeSet<String>,
    /// Those that no VM can go on from.
    pub(crate) spoiled: BTreeSet<String>,
    /// What VMs were told of that was deleted.
    pub(crate) released: Vec<u64>,
}

/// How a guest answers.
type Answer<'a> = Box<dyn Fn(&mut Guests) -> Reply + 'a>;

impl Host {
    pub(crate) fn new(cores: u16, memory_mib: u64) -> Self {
        Self {
            agent: String::new(),
            called: String::new(),
            cores,
            memory_mib,
            boot: 1,
            term: Term(0),
            kept: BTreeMap::new(),
            slices: BTreeMap::new(),
            unknown: BTreeMap::new(),
            lowest: BTreeMap::new(),
            is_sick: false,
            lacks: None,
            mood: Mood::Willing,
            files: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            released: Vec::new(),
        }
    }

    /// With an agent that says who it is.
    pub(crate) fn named(host: &str, cores: u16, memory_mib: u64) -> Self {
        let (agent, called) = (format!("agent-of-{host}"), host.to_owned());
        Self { agent, called, ..Self::new(cores, memory_mib) }
    }

    /// Its agent has lost its journal. What runs goes on.
    pub(crate) fn lose_journal(&mut self) {
        self.agent.push('+');
        self.kept.clear();
        self.lowest.clear();
        let slices = std::mem::take(&mut self.slices);
        self.unknown.extend(slices.into_iter().filter(|(_, slice)| slice.ended.is_none()));
    }

    /// All of it has ended, and it is another start.
    pub(crate) fn reboot(&mut self) {
        self.boot += 1;
        self.unknown.clear();
        self.kept.clear();
        self.slices.values_mut().filter(|slice| slice.ended.is_none()).for_each(|slice| {
            slice.ended = Some(None);
        });
    }

    pub(crate) fn free(&self) -> u16 {
        let slices = self.slices.values().filter(|slice| slice.ended.is_none());
        let used: u16 = slices.map(|slice| slice.cores).sum();
        self.cores.saturating_sub(used + self.kept.values().map(|(_, cores)| *cores).sum::<u16>())
    }

    pub(crate) fn report(&self) -> Report {
        let slice = |(target, slice): (&Target, &Running)| SliceReport {
            target: target.clone(),
            phase: slice.ended.map_or(Phase::Runs, Phase::Ended),
            cause: "it has ended".to_owned(),
        };
        Report {
            agent: self.agent.clone(),
            name: self.called.clone(),
            boot_id: format!("boot-{}", self.boot),
            nodes: vec![NumaNode { cores: self.cores, memory_mib: self.memory_mib }],
            version: "0.1.0".to_owned(),
            lacks: self.lacks.iter().map(|it| (*it).to_owned()).collect(),
            checkpoints: CHECKPOINTS.to_owned(),
            slices: self.slices.iter().map(slice).collect(),
            foreign: None,
        }
    }

    /// Of a later term than the orchestrator that asks.
    fn foreign(&self, term: Term) -> Option<Term> {
        Some(self.term).filter(|heard| *heard > term)
    }

    /// What its agent does and answers.
    pub(crate) fn call(&mut self, term: Term, call: &Call) -> Result<Reply, Failure> {
        // A VM knows of no terms.
        let is_asked = matches!(
            call,
            Call::Ask { .. }
                | Call::Where { .. }
                | Call::Bring { .. }
                | Call::Join { .. }
                | Call::WriteDown { .. }
        );
        if !is_asked && *call != Call::Look {
            if term < self.term {
                return Err(Failure::Deposed);
            }
            self.term = term;
        }
        let refused = |why: &str| Err(Failure::Refused(why.to_owned()));
        match call {
            Call::Look => {
                let foreign = self.foreign(term);
                return Ok(Reply::Report(Report { foreign, ..self.report() }));
            }
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
                self.kept.insert(operation.clone(), (target.clone(), *cores));
            }
            Call::Release { operation } => drop(self.kept.remove(operation)),
            Call::Ensure { target, cores, role, .. } => return self.ensure(target, *cores, role),
            Call::Resize { target, cores, .. } => {
                let own = self.slices.get(target).filter(|slice| slice.ended.is_none());
                let Some(own) = own.map(|slice| slice.cores) else { return Ok(Reply::Done) };
                if *cores > own && (self.is_sick || self.free() + own < *cores) {
                    return refused("NO_CAPACITY");
                }
                self.slices.entry(target.clone()).and_modify(|slice| slice.cores = *cores);
            }
            _ if is_asked => return self.ask(call),
            Call::Discard { .. } if self.mood == Mood::CannotDelete => {
                return refused("CHECKPOINT_STAYS");
            }
            Call::Discard { folders } => {
                self.files.retain(|file| !folders.contains(file));
                return Ok(Reply::Discarded(folders.clone()));
            }
            Call::End { target } => self.end(target, None),
            Call::Stop { target } => self.end(target, Some(0)),
            Call::Fence { uid, life } => self.fence(uid, *life),
            Call::Remove { targets } => {
                targets.iter().for_each(|target| self.fence(&target.uid, target.life));
                for target in targets {
                    let runs = self.slices.get(target).is_some_and(|it| it.ended.is_none());
                    if runs || !self.is_stale(target) {
                        return refused("SLICE_RUNNING");
                    }
                    self.slices.remove(target);
                }
            }
            _ => unreachable!("a VM was asked"),
        }
        Ok(Reply::Done)
    }

    fn end(&mut self, target: &Target, status: Option<u32>) {
        if let Some(slice) = self.slices.get_mut(target) {
            slice.ended.get_or_insert(status);
        }
    }

    fn fence(&mut self, uid: &Uid, life: u64) {
        let lowest = self.lowest.entry(uid.clone()).or_default();
        *lowest = (*lowest).max(life + 1);
        self.kept.retain(|_, (target, _)| target.uid != *uid || target.life > life);
        for (target, slice) in &mut self.slices {
            if target.uid == *uid && target.life <= life {
                slice.ended.get_or_insert(None);
            }
        }
    }

    fn write_down(
        &mut self,
        target: &Target,
        path: &str,
        released: &[u64],
        request: &Uid,
    ) -> Result<Reply, Failure> {
        let mood = self.mood;
        let gone = || Failure::Unreachable("no slice".to_owned());
        let guest = self.guest(target).ok_or_else(gone)?;
        if let Some(known) = guest.brought.get(request) {
            return Ok(known.clone());
        }
        let cut = u64::try_from(guest.brought.len()).unwrap_or(u64::MAX) + 1;
        let answer = if mood == Mood::CannotWrite {
            Reply::Failed("no space is left".to_owned())
        } else {
            Reply::Written(Written { digest: "0a".repeat(32), bytes: 1 << 20, cut })
        };
        guest.brought.insert(request.clone(), answer.clone());
        self.released.extend(released);
        // What could not be written has left something.
        let folder = path.rsplit('/').next().unwrap_or_default().to_owned();
        assert!(self.files.insert(folder), "{path} is there already");
        Ok(answer)
    }

    /// What a VM answers.
    fn ask(&mut self, call: &Call) -> Result<Reply, Failure> {
        let mood = self.mood;
        let (target, answer): (_, Answer<'_>) = match call {
            Call::WriteDown { target, path, released, request } => {
                return self.write_down(target, path, released, request);
            }
            Call::Ask { target } => {
                let running = self.slices.get(target).filter(|slice| slice.ended.is_none());
                let gone = || Failure::Unreachable("no slice".to_owned());
                return running.map(|_| Reply::Vm(VmSight::Runs)).ok_or_else(gone);
            }
            Call::Where { target } => (target, Box::new(|it| Reply::Places(it.places.clone()))),
            Call::Bring { target, slice, to, request } => {
                (target, Box::new(move |it| it.bring(*slice, *to, request, mood)))
            }
            Call::Join { target, number, request, .. } => {
                (target, Box::new(move |it| it.join(*number, request, mood)))
            }
            other => return Err(Failure::Refused(format!("{other:?} is none of a VM"))),
        };
        let answered = self.guest(target).map(answer);
        answered.ok_or_else(|| Failure::Unreachable("no slice".to_owned()))
    }

    fn guest(&mut self, target: &Target) -> Option<&mut Guests> {
        let running = self.slices.get_mut(target).filter(|slice| slice.ended.is_none());
        running.and_then(|slice| slice.guest.as_mut())
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
            let kept = self.kept.iter().find(|(_, (kept, _))| kept == target);
            if let Some(operation) = kept.map(|(operation, _)| operation.clone()) {
                self.kept.remove(&operation);
            } else if self.free() < cores {
                return refused("NO_CAPACITY");
            }
            let (guest, restore) = match role {
                Role::Bootstrap { parts, restore, .. } => {
                    (Some(Guests::new(parts)), restore.clone())
                }
                Role::Companion => (None, None),
            };
            let is_whole = |it: &Restore| {
                self.files.contains(&it.folder) && !self.spoiled.contains(&it.folder)
            };
            let ended = (!restore.as_ref().is_none_or(is_whole)).then_some(Some(2));
            let running = Running { is_bootstrap, ended, cores, guest, restore };
            self.slices.insert(target.clone(), running);
        }
        Ok(Reply::Ensured(if is_bootstrap { String::new() } else { "192.0.2.1:7000".to_owned() }))
    }
}

impl Guests {
    fn new(parts: &[SharePart]) -> Self {
        let (mut places, mut next) = (Vec::new(), 0);
        for (slice, part) in (0..).zip(parts) {
            let vcpus = (next..next + part.vcpus).collect();
            next += part.vcpus;
            places.push(Place { slice, vcpus, memory_mib: part.memory_mib });
        }
        Self { places, ..Self::default() }
    }

    fn bring(&mut self, slice: u16, to: u16, request: &Uid, mood: Mood) -> Reply {
        if let Some(known) = self.brought.get(request) {
            return known.clone();
        }
        let is_first = self.brought.values().all(|reply| *reply == Reply::Done);
        let is_empty = self.places.iter().any(|it| it.slice == slice && it.vcpus.is_empty());
        let mood = if is_empty { Mood::Willing } else { mood };
        let (failed, done) = (Reply::Failed("1 of 3 steps".to_owned()), Reply::Done);
        let leaving = self.places.iter().position(|place| place.slice == slice);
        let answer = match (mood, leaving) {
            (Mood::Refuses, _) | (_, None) => Reply::Failed("no".to_owned()),
            (Mood::Partly, Some(at)) if is_first => {
                let vcpu = self.places[at].vcpus.pop();
                self.take(to, vcpu.into_iter().collect(), 0);
                failed
            }
            (_, Some(at)) => {
                let gone = self.places.remove(at);
                self.take(to, gone.vcpus, gone.memory_mib);
                self.left.push(slice);
                done
            }
        };
        self.brought.insert(request.clone(), answer.clone());
        answer
    }

    fn join(&mut self, slice: u16, request: &Uid, mood: Mood) -> Reply {
        if let Some(known) = self.brought.get(request) {
            return known.clone();
        }
        assert!(self.places.iter().all(|place| place.slice < slice), "a number is used again");
        let answer = if mood == Mood::RefusesToJoin {
            Reply::Failed("nobody is there".to_owned())
        } else {
            self.places.push(Place { slice, vcpus: Vec::new(), memory_mib: 0 });
            Reply::Done
        };
        self.brought.insert(request.clone(), answer.clone());
        answer
    }

    fn take(&mut self, to: u16, vcpus: Vec<u16>, memory_mib: u64) {
        let place = self.places.iter_mut().find(|place| place.slice == to).expect("a slice");
        place.vcpus.extend(vcpus);
        place.vcpus.sort_unstable();
        place.memory_mib += memory_mib;
    }
}

/// As whoever carries out: the store says whether the leader still leads.
pub(crate) fn judged(leads: bool, result: Result<Reply, Failure>) -> Result<Reply, Failure> {
    let knows_a_later_one = match &result {
        Ok(Reply::Report(report)) => report.foreign.is_some(),
        Err(failure) => *failure == Failure::Deposed,
        Ok(_) => false,
    };
    match result {
        _ if knows_a_later_one && !leads => Err(Failure::Deposed),
        Err(Failure::Deposed) => Err(Failure::Unreachable("it obeys another one".to_owned())),
        other => other,
    }
}

/// Processes of slices that have left their VMs end by themselves.
pub(crate) fn end_what_has_left(hosts: &mut BTreeMap<Name, Host>) {
    let slices = hosts.values().flat_map(|host| &host.slices);
    let left: Vec<Target> = slices
        .flat_map(|(target, slice)| {
            let left = slice.guest.iter().flat_map(|guest| &guest.left);
            left.map(|slice| Target { slice: *slice, ..target.clone() })
        })
        .collect();
    for host in hosts.values_mut() {
        for target in &left {
            if let Some(slice) = host.slices.get_mut(target) {
                slice.ended.get_or_insert(Some(0));
            }
        }
    }
}

/// Whether each part of each VM is where room is kept for it.
pub(crate) fn has_room(hosts: &BTreeMap<Name, Host>) -> bool {
    let slices = || hosts.values().flat_map(|host| &host.slices);
    let parts = slices().filter(|(_, slice)| slice.ended.is_none()).flat_map(|(target, slice)| {
        let places = slice.guest.iter().flat_map(|guest| &guest.places);
        places.map(|place| (Target { slice: place.slice, ..target.clone() }, place.vcpus.len()))
    });
    { parts }.all(|(target, vcpus)| {
        let part = slices().find(|(other, _)| **other == target).map(|(_, slice)| slice);
        part.is_none_or(|it| it.ended.is_some() || usize::from(it.cores) >= vcpus)
    })
}

/// What one host has made of the folder that all see.
pub(crate) fn share_files(hosts: &mut BTreeMap<Name, Host>, changed: &Name) {
    let Some(files) = hosts.get(changed).map(|host| host.files.clone()) else { return };
    hosts.values_mut().for_each(|host| host.files.clone_from(&files));
}

/// It is written down each ten seconds, and one of that is kept.
pub(crate) const POLICY: CheckpointPolicy = CheckpointPolicy { every_s: 10, keep: 1 };

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
