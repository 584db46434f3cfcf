//! Which slice goes where: what the scheduler proposes becomes an operation, and the operation ends.
//!
//! ```text
//!   the scheduler's move ──planned──> a place among so many, the VM runs and nothing is done to it ──> an operation
//!                            └── refused: the room is given back in the ledger
//! ```
//! **Two placements.** The one that is to be is committed with the operation, and the one before is kept until it is over: what
//! they differ in is what moves, so another leader reads it from there. Whatever ends the VM meanwhile ends it on the hosts of both.
//!
//! **The first slice stays.** It coordinates the VM and has its devices, and calls are made there.

use super::machine::Orchestrator;
use super::objects::Stored;
use scheduler::cluster::{Host, HostState, Move};
use scheduler::{Input, ReservationId, Resources};
use state::rules::may_follow;
use state::{
    Assignment, Former, Generation, Name, Object, Operation, OperationResult, Part, Verb, Vm,
    VmState,
};

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Room,
    Start,
    Join,
    Bring,
    See,
    End,
}

const TO_A_SLICE: [Stage; 4] = [Stage::Room, Stage::Bring, Stage::See, Stage::End];
pub(crate) const TO_A_NEWCOMER: [Stage; 6] =
    [Stage::Room, Stage::Start, Stage::Join, Stage::Bring, Stage::See, Stage::End];
/// Steps of a move.
pub(crate) fn stages(course: &Course) -> &'static [Stage] {
    if course.before.is_some() { &TO_A_SLICE } else { &TO_A_NEWCOMER }
}

/// What moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    /// The slice that is given up.
    pub(crate) slice: u16,
    /// What it has.
    pub(crate) from: Part,
    /// The slice that has it then.
    pub(crate) to: u16,
    /// What that has before; none if it joins the VM.
    pub(crate) before: Option<Part>,
    /// What it has then.
    pub(crate) after: Part,
}

impl Course {
    /// What two placements of a VM differ in.
    pub(crate) fn between(before: &Assignment, after: &Assignment) -> Option<Self> {
        let (slice, from) = before.numbered().find(|(number, _)| after.part(*number).is_none())?;
        let differs = |(number, part): &(u16, &Part)| {
            before.part(*number).is_none_or(|other| {
                other.vcpus != part.vcpus || other.memory_mib != part.memory_mib
            })
        };
        let (to, grown) = after.numbered().find(differs)?;
        let before = before.part(to).cloned();
        Some(Self { slice, from: from.clone(), to, before, after: grown.clone() })
    }

    /// How much.
    pub(crate) fn resources(&self) -> Resources {
        resources(&self.from)
    }
}

/// In the words of the scheduler.
pub(crate) fn resources(part: &Part) -> Resources {
    let units = u32::try_from(part.memory_mib / 2).unwrap_or(u32::MAX);
    Resources::new(u32::try_from(part.vcpus.len()).unwrap_or(u32::MAX), units)
}

/// The placement after a slice has come to another host, where the VM has a slice, or gets the next one.
fn moved(now: &Assignment, from: u16, to: &Name) -> Option<Assignment> {
    let gone = now.part(from)?.clone();
    let there = now.numbered().find(|(_, part)| part.host == *to).map(|(number, _)| number);
    let former = now.former.iter().map(|it| it.slice);
    let last = now.numbered().map(|(number, _)| number).chain(former).max()?;
    let to_host = to;
    let to = there.unwrap_or(last + 1);
    let mut next = now.clone();
    next.slices = now
        .numbered()
        .filter(|(number, _)| *number != from)
        .map(|(number, part)| {
            let mut part = Part { number: Some(number), ..part.clone() };
            if number == to {
                part.vcpus.extend(&gone.vcpus);
                part.vcpus.sort_unstable();
                part.memory_mib += gone.memory_mib;
                part.devices.extend(gone.devices.iter().cloned());
            }
            part
        })
        .collect();
    if there.is_none() {
        let number = Some(to);
        next.slices.push(Part { host: to_host.clone(), number, ..gone.clone() });
    }
    next.former.push(Former { host: gone.host, slice: from, ended: false });
    next.generation = Generation(now.generation.0 + 1);
    next.parent = Some(now.generation);
    Some(next)
}

fn words(course: &Course) -> Vec<String> {
    let (slice, from, to) = (course.slice, &course.from.host, &course.after.host);
    let number = course.to;
    let word = |stage: &Stage| match stage {
        Stage::Room if course.before.is_some() => format!("have slice {number} use more of {to}"),
        Stage::Room => format!("keep room on {to}"),
        Stage::Start => format!("start a companion on {to}"),
        Stage::Join => format!("have it join as slice {number}"),
        Stage::Bring => format!("bring all of slice {slice} from {from} to {to}"),
        Stage::See => "see where its parts are".to_owned(),
        Stage::End => format!("see slice {slice} end on {from}"),
    };
    stages(course).iter().map(word).collect()
}

impl Orchestrator {
    /// What of a VM moves now.
    pub(crate) fn course(&self, name: &Name) -> Option<Course> {
        Course::between(self.objects.before.get(name)?, self.objects.assignments.get(name)?)
    }

    /// Begins what was planned, as far as so many may go on at a time.
    pub(crate) fn begin_moves(&mut self) {
        for _ in 0..self.planned.len() {
            if self.moves_in_flight() >= self.settings.moves_max || self.is_full() {
                return;
            }
            let Some((reservation, step)) = self.planned.pop_front() else { return };
            // Its VM may have departed since.
            if self.scheduler.cluster().reservation(reservation).is_none() {
                continue;
            }
            if self.vm_names.get(&step.vm).is_some_and(|name| self.is_written_down(name)) {
                // Soon.
                self.planned.push_back((reservation, step));
                continue;
            }
            if let Err(why) = self.begin_move(reservation, &step) {
                tracing::debug!(vm = %step.vm, why, "a move is not made");
                self.decide(Input::Failed { reservation });
            }
        }
    }

    /// Moves that wait for a host that does not answer take no place.
    fn moves_in_flight(&self) -> usize {
        let waits = |name: &Name| {
            let first = self.objects.assignments.get(name).and_then(|it| it.slices.first());
            let course = self.course(name);
            let hosts = course.iter().flat_map(|it| [&it.from.host, &it.after.host]);
            hosts.chain(first.map(|first| &first.host)).any(|host| self.is_out(host))
        };
        self.moving.keys().filter(|name| !waits(name)).count()
    }

    fn begin_move(&mut self, reservation: ReservationId, step: &Move) -> Result<(), &'static str> {
        let name = self.vm_names.get(&step.vm).ok_or("its VM is gone")?.clone();
        let mut vm = self.objects.vms.get(&name).ok_or("its VM is gone")?.clone();
        let runs = vm.observed.state == VmState::Running && !vm.desired.deleted;
        if !runs || self.works.contains_key(&name) || self.moving.contains_key(&name) {
            return Err("something else is done to its VM");
        }
        // It may have been drained or cordoned while this waited: its operator has been told that nothing comes any more.
        let goal = self.scheduler.cluster().host(step.to).map(Host::state);
        if goal != Some(HostState::Open) {
            return Err("its goal takes nothing any more");
        }
        let now = self.objects.assignments.get(&name).ok_or("its VM has no place")?.clone();
        let next = self.next_assignment(&now, step)?;
        next.gives(&vm.desired).map_err(|_| "it would lack something")?;
        next.check().map_err(|_| "it cannot be written down")?;
        may_follow(Some(&now), &next).map_err(|_| "its placement has changed")?;
        let course = Course::between(&now, &next).ok_or("nothing would move")?;
        // The VM is asked there.
        let first = now.slices.first().map(|first| &first.host);
        if first.is_none_or(|first| self.is_out(first)) || self.is_out(&course.from.host) {
            return Err("a host of its does not answer");
        }
        vm.observed.assignment = Some(next.generation);
        vm.observed.why = self.why_move(&course);
        self.put(Stored::Assignment(next.clone()));
        self.begin(&next, Verb::Move, vm.life, words(&course));
        self.put_vm(vm);
        self.moving.insert(name.clone(), Some(reservation));
        self.work(&name);
        Ok(())
    }

    fn next_assignment(&self, now: &Assignment, step: &Move) -> Result<Assignment, &'static str> {
        let (from, to) = (self.host_names.get(&step.from), self.host_names.get(&step.to));
        let slice_on =
            |host: Option<&Name>| now.numbered().find(|(_, part)| Some(&part.host) == host);
        let (number, part) = slice_on(from).ok_or("it has nothing there")?;
        let to = to.ok_or("its goal is gone")?;
        if number == 0 {
            return Err(FIRST_STAYS);
        }
        if resources(part) != step.resources {
            return Err("only whole slices move");
        }
        let mut next = moved(now, number, to).ok_or("it has nothing there")?;
        next.term = self.term;
        Ok(next)
    }

    fn why_move(&self, course: &Course) -> String {
        let Course { slice, from, after, .. } = course;
        let is_drained = self.objects.hosts.get(&from.host).is_some_and(|it| it.desired.draining);
        let rule = if is_drained {
            format!("{} is drained", from.host)
        } else {
            "there is room, and it is on fewer hosts then".to_owned()
        };
        format!("slice {slice} comes from {} to {}: {rule}", from.host, after.host)
    }

    /// A move is over. Its VM runs, at the new placement or at that of before.
    pub(crate) fn move_is_over(&mut self, vm: &mut Vm, operation: &Operation) {
        let name = vm.name.clone();
        let course = self.course(&name);
        let reservation = self.moving.remove(&name).flatten();
        let Some(before) = self.objects.before.remove(&name) else { return };
        self.deleted(before.key());
        match &operation.result {
            Some(OperationResult::Failed { why }) => {
                // A companion may have been started once room was kept for it.
                let was_started = operation.steps.first().is_some_and(|room| room.done);
                self.back_to(vm, &before, course.as_ref().filter(|_| was_started));
                vm.observed.why = format!("it has stayed where it was: {why}");
                if let Some(reservation) = reservation {
                    self.decide(Input::Failed { reservation });
                }
            }
            _ => {
                let fewer = course.as_ref().is_some_and(|it| it.before.is_some());
                let host = course.map_or_else(String::new, |it| it.after.host.to_string());
                let so = if fewer { ": it is on fewer hosts so" } else { "" };
                vm.observed.why = format!("a slice has come to {host}{so}");
                let after = self.last_call();
                self.running_since.insert(name, after);
                self.note_end(vm);
                if let Some(reservation) = reservation
                    && self.decide(Input::Ready { reservation })
                {
                    self.decide(Input::Flipped { reservation });
                }
            }
        }
    }

    /// The slices that have left were seen to end: the same placement, which says so.
    fn note_end(&mut self, vm: &mut Vm) {
        let Some(mut now) = self.objects.assignments.remove(&vm.name) else { return };
        self.deleted(now.key());
        now.former.iter_mut().for_each(|it| it.ended = true);
        now.parent = Some(now.generation);
        now.generation = Generation(now.generation.0 + 1);
        vm.observed.assignment = Some(now.generation);
        self.put(Stored::Assignment(now));
    }

    /// The placement of before, as one more that follows; with what was begun, if anything was.
    fn back_to(&mut self, vm: &mut Vm, before: &Assignment, begun: Option<&Course>) {
        let Some(tried) = self.objects.assignments.remove(&vm.name) else { return };
        self.deleted(tried.key());
        let generation = Generation(tried.generation.0 + 1);
        let parent = Some(tried.generation);
        let mut back = Assignment { generation, parent, term: self.term, ..before.clone() };
        // A companion that was to join may have run there, and is forgotten with this life. If it runs still, or only then, it is ended
        // when its host says so (`sweep.rs`). Nobody waits for that: it has nothing of the VM. Its number is not used again.
        let joins = begun.filter(|course| course.before.is_none());
        back.former.extend(joins.map(|course| Former {
            host: course.after.host.clone(),
            slice: course.to,
            ended: true,
        }));
        vm.observed.assignment = Some(generation);
        self.put(Stored::Assignment(back));
    }

    /// Its VM is over, or is to be: whatever was begun is fenced with it, on the hosts of both placements.
    pub(crate) fn abandon(&mut self, mut operation: Operation, why: String) {
        let name = operation.vm.clone();
        operation.steps.iter_mut().for_each(|step| step.undone = step.done);
        operation.undoing = None;
        operation.result = Some(OperationResult::Failed { why });
        self.works.remove(&name);
        self.put_operation(operation);
        // What is kept in the ledger is given back when the VM departs.
        self.moving.remove(&name);
        if let Some(before) = self.objects.before.remove(&name) {
            self.deleted(before.key());
        }
        self.care(&name);
    }

    /// What of a host that is drained does not move away, and why.
    #[must_use]
    pub fn what_stays(&self, host: &Name) -> Vec<(Name, String)> {
        let here = |(name, it): (&Name, &Assignment)| {
            let (number, part) = it.numbered().find(|(_, part)| part.host == *host)?;
            if self.moving.contains_key(name) {
                return None;
            }
            let why = if number == 0 {
                format!("its first slice stays: {FIRST_STAYS}")
            } else if let Some(seconds) = self.rests_for(name) {
                format!("a move of it has failed, and is tried again in {seconds} s")
            } else if let Some(other) = self.roomy(part) {
                format!("slice {number} is about to go to {other}")
            } else {
                format!("no other host has room for slice {number}")
            };
            Some((name.clone(), why))
        };
        let is_drained = self.objects.hosts.get(host).is_some_and(|it| it.desired.draining);
        self.objects.assignments.iter().filter(|_| is_drained).filter_map(here).collect()
    }

    /// Seconds for which nothing of a VM moves, after a move has failed.
    fn rests_for(&self, name: &Name) -> Option<u64> {
        let until = self.scheduler.rests_until(*self.vm_ids.get(name)?)?;
        Some(until.saturating_sub(self.now.ms).div_ceil(1000))
    }

    /// Another host that has room for a part of a VM.
    fn roomy(&self, part: &Part) -> Option<Name> {
        let has_room = |host: &&Name| {
            let id = self.heard.get(*host).and_then(|heard| heard.id);
            let known = id.and_then(|id| self.scheduler.cluster().host(id));
            let open = known.filter(|known| known.state() == HostState::Open);
            let fits = open.is_some_and(|known| resources(part).fits_in(known.free()));
            fits && **host != part.host
        };
        self.objects.hosts.keys().find(has_room).cloned()
    }

    /// Why a VM on several hosts does not come together by itself, where that is so whatever is free.
    pub(crate) fn why_it_stays(&self, name: &Name) -> Option<String> {
        let assignment = self.objects.assignments.get(name)?;
        let first = assignment.slices.first()?;
        let host = self.heard.get(&first.host).and_then(|heard| heard.id)?;
        let state = self.scheduler.cluster().host(host).map(Host::state);
        let leaves = state.is_some_and(|state| state == HostState::Draining);
        (assignment.slices.len() > 1 || leaves)
            .then(|| format!("slice 0 stays on {}: {FIRST_STAYS}", first.host))
    }
}

/// Of the slice that a VM began with.
pub(crate) const FIRST_STAYS: &str = "it coordinates the VM and has its devices";
