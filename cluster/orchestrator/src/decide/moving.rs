//! A slice of a VM that runs goes to another host, step by step.
//!
//! ```text
//!   the VM has a slice there:  ROOM: it may use more ────────────────────────────┐
//!   it has none:               ROOM: kept ─> START: a companion ─> JOIN: empty ──┤
//!                                                                                v
//!             BRING: the VM brings all of it there, and the slice leaves ─> SEE: its parts are there ─> END: its process has ended
//!                      │ refused, and a part has moved: once more
//!                      └ refused, and nothing has moved: undone, as what was refused before it
//!
//!   undone:   what has joined leaves ─> the companion ends ─> room is given back;    or: the slice there uses as much as before
//! ```
//! Room is taken where it goes before anything goes there, and what it had is free when its process has ended. The VM is asked by one
//! request id as long as nothing has moved: a copy of that call that comes late has no effect of its own. Once a part has moved there is
//! no way back.
//!
//! If the VM ends meanwhile, or is to end, the move is given up as it is, and the VM's fence takes all of it.

use super::call::{Call, Phase, Place, Target};
use super::machine::Orchestrator;
use super::moves::{Course, Stage, TO_A_NEWCOMER, stages};
use super::planted::PlantedBug;
use super::progress::Work;
use super::start::cores;
use super::work::{Turn, at};
use state::{Assignment, Name, Operation, Part, RunStrategy, Uid, Vm};

/// Parts of undoing.
const UNDONE_OF_A_SLICE: usize = 1;
const UNDONE_OF_A_NEWCOMER: usize = 3;
/// Tries of what is asked for beside bringing.
const JOINING: u32 = u32::MAX;
const LEAVING: u32 = 1 << 16;

/// Whether slices have what a placement says, and no other slice has anything.
fn has_parts(places: &[Place], assignment: &Assignment) -> bool {
    let is_empty = |it: &Place| it.vcpus.is_empty() && it.memory_mib == 0;
    let others = places.iter().filter(|place| assignment.part(place.slice).is_none());
    let has = |(number, part): (u16, &Part)| {
        let place = places.iter().find(|place| place.slice == number);
        place.is_some_and(|it| it.vcpus == part.vcpus && it.memory_mib == part.memory_mib)
    };
    { others }.all(is_empty) && assignment.numbered().all(has)
}

/// Whether its slices are those of a placement, with the vCPUs that it says. A slice that has left has brought its memory, too.
fn is_at(places: &[Place], assignment: &Assignment) -> bool {
    let has =
        |place: &Place| assignment.part(place.slice).is_some_and(|part| part.vcpus == place.vcpus);
    places.len() == assignment.slices.len() && places.iter().all(has)
}

/// The id of the request of a try: another one for each.
fn request(operation: &Operation, tried: u32) -> Uid {
    let hash = blake3::hash(format!("{}.{tried}", operation.request).as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    Uid::new(u128::from_be_bytes(bytes))
}

fn of(vm: &Vm, slice: u16) -> Target {
    Target { uid: vm.uid.clone(), slice, life: vm.life }
}

fn ask(host: &Name, what: Call) -> Turn {
    Turn::Ask(vec![(host.clone(), what)])
}

/// What a step looks at.
struct Scene<'a> {
    operation: &'a Operation,
    vm: &'a Vm,
    work: &'a Work,
    course: &'a Course,
    now: &'a Assignment,
    before: &'a Assignment,
    /// The host of the slice that coordinates.
    first: &'a Name,
}

impl Orchestrator {
    pub(crate) fn turn_of_move(&self, operation: &Operation, now: &Assignment) -> Turn {
        let name = &operation.vm;
        let (Some(vm), Some(course), Some(work), Some(before), Some(first)) = (
            self.objects.vms.get(name),
            self.course(name),
            self.works.get(name),
            self.objects.before.get(name),
            now.slices.first().map(|part| &part.host),
        ) else {
            return Turn::Wait;
        };
        let scene = Scene { operation, vm, work, course: &course, now, before, first };
        if let Some(why) = self.why_over(&scene) {
            return Turn::Over(why);
        }
        if operation.undoing.is_some() {
            return self.turn_of_undo_of_move(&scene);
        }
        let Some(stage) = at(operation).and_then(|at| stages(&course).get(at)) else {
            return Turn::Wait;
        };
        match stage {
            Stage::Room | Stage::Start if self.is_too_long(&scene) => {
                Turn::fail(format!("{} does not answer", course.after.host))
            }
            Stage::Room => self.turn_of_room(&scene),
            Stage::Start => self.turn_of_companion(&scene),
            Stage::Join => self.turn_of_join(&scene),
            Stage::Bring => self.turn_of_bring(&scene),
            Stage::See => match &work.places {
                Some(places) if is_at(places, now) => Turn::Next,
                _ => ask(first, Call::Where { target: of(vm, 0) }),
            },
            Stage::End => self.turn_of_end(&scene),
        }
    }

    /// Whether it goes on at all: the VM may be over, or be to end.
    fn why_over(&self, scene: &Scene<'_>) -> Option<String> {
        let Scene { vm, course, now, .. } = scene;
        if vm.desired.deleted || vm.desired.run == RunStrategy::Halted {
            return Some("it is not wanted any more".to_owned());
        }
        self.why_ended(vm, now, course.before.is_none().then_some(course.to))
    }

    fn is_too_long(&self, scene: &Scene<'_>) -> bool {
        let is_late = self.now.ms.saturating_sub(scene.work.since) > self.settings.step_ms;
        is_late || self.is_out(&scene.course.after.host)
    }

    /// A slice uses so much.
    fn size(scene: &Scene<'_>, part: &Part) -> Turn {
        let target = of(scene.vm, scene.course.to);
        let (cores, memory_mib) = (cores(part), part.memory_mib);
        ask(&part.host, Call::Resize { target, cores, memory_mib })
    }

    fn turn_of_room(&self, scene: &Scene<'_>) -> Turn {
        let Course { to, before, after, .. } = scene.course;
        if scene.work.done.contains(&after.host) || self.planted.has(PlantedBug::MovedUnreserved) {
            return Turn::Next;
        }
        if before.is_some() {
            return Self::size(scene, after);
        }
        ask(&after.host, self.reserve(scene.operation, of(scene.vm, *to), after))
    }

    /// It is asked once more after a crash, for where it listens.
    fn turn_of_companion(&self, scene: &Scene<'_>) -> Turn {
        let Course { to, after, .. } = scene.course;
        if scene.work.addresses.contains_key(&after.host) {
            return Turn::Next;
        }
        let companion = self.companion(scene.vm, of(scene.vm, *to), after);
        companion.map_or(Turn::Wait, |what| ask(&after.host, what))
    }

    fn turn_of_join(&self, scene: &Scene<'_>) -> Turn {
        let Scene { operation, vm, work, course, first, .. } = scene;
        if work.done.contains(*first) {
            return Turn::Next;
        }
        if let Some(why) = &work.refusal {
            return Turn::fail(why.clone());
        }
        let Some(address) = work.addresses.get(&course.after.host).cloned() else {
            return if self.is_too_long(scene) {
                Turn::fail(format!("{} does not answer", course.after.host))
            } else {
                self.turn_of_companion(scene)
            };
        };
        let (number, request) = (course.to, request(operation, JOINING));
        ask(first, Call::Join { target: of(vm, 0), address, number, request })
    }

    fn turn_of_bring(&self, scene: &Scene<'_>) -> Turn {
        let Scene { operation, vm, work, course, now, before, first } = scene;
        if work.done.contains(*first) {
            return Turn::Next;
        }
        let target = of(vm, 0);
        let Some(why) = &work.refusal else {
            let (slice, to) = (course.slice, course.to);
            let request = request(operation, work.tried);
            return ask(first, Call::Bring { target, slice, to, request });
        };
        // It has failed: what of it has been done its parts say.
        match &work.places {
            None => ask(first, Call::Where { target }),
            Some(places) if is_at(places, now) => Turn::Next,
            Some(places)
                if has_parts(places, before) || self.planted.has(PlantedBug::PartlyUndone) =>
            {
                Turn::fail(why.clone())
            }
            Some(_) => Turn::Again,
        }
    }

    /// The process of the slice that has left: it ends by itself, and is ended.
    fn turn_of_end(&self, scene: &Scene<'_>) -> Turn {
        let Scene { vm, work, course, .. } = scene;
        let (host, target) = (&course.from.host, of(vm, course.slice));
        // What was removed has the operator's word that nothing runs there.
        if !self.objects.hosts.contains_key(host) {
            return Turn::Next;
        }
        // What is left alone ends by itself all the same, and says so.
        if !work.done.contains(host) && !self.is_left_alone(host) {
            return ask(host, Call::End { target });
        }
        let report = self.heard.get(host).and_then(|heard| heard.report.as_ref());
        let Some((_, report)) = report.filter(|(call, _)| *call >= work.after) else {
            return Turn::Wait;
        };
        match report.slice(&target).map(|slice| slice.phase) {
            Some(Phase::Runs) => Turn::Wait,
            Some(Phase::Ended(_)) | None => Turn::Next,
        }
    }

    fn turn_of_undo_of_move(&self, scene: &Scene<'_>) -> Turn {
        let Scene { operation, vm, work, course, .. } = scene;
        let host = &course.after.host;
        let done = work.done.contains(host) || self.planted.has(PlantedBug::MoveKeepsRoom);
        if let Some(before) = &course.before {
            return if done { Turn::Next } else { Self::size(scene, before) };
        }
        let was_begun = |stage: Stage| {
            let until = at(operation).unwrap_or(operation.steps.len());
            TO_A_NEWCOMER.iter().take(until + 1).any(|it| *it == stage)
        };
        // What a lost host keeps it gives back by itself; the slice is ended when it is back (`sweep.rs`).
        let is_there = self.objects.hosts.contains_key(host) && !self.is_out(host);
        match work.undone {
            0 if was_begun(Stage::Join) => Self::turn_of_leave(scene),
            1 if was_begun(Stage::Start) && is_there && !done => {
                ask(host, Call::End { target: of(vm, course.to) })
            }
            2 if is_there && !done => {
                let id = Uid::try_from(operation.request.clone());
                ask(host, Call::Release { operation: id.unwrap_or_else(|_| Uid::new(0)) })
            }
            _ => Turn::Next,
        }
    }

    /// What has joined and has nothing leaves, if it has joined.
    fn turn_of_leave(scene: &Scene<'_>) -> Turn {
        let Scene { operation, vm, work, course, first, .. } = scene;
        let (target, slice) = (of(vm, 0), course.to);
        let Some(places) = &work.places else { return ask(first, Call::Where { target }) };
        let is_member = places.iter().any(|place| place.slice == slice);
        if !is_member || work.done.contains(*first) {
            return Turn::Next;
        }
        if work.refusal.is_some() {
            return Turn::Again;
        }
        let request = request(operation, LEAVING.saturating_add(work.tried));
        ask(first, Call::Bring { target, slice, to: 0, request })
    }

    /// A part of a move is undone.
    pub(crate) fn undo_next_of_move(&mut self, operation: &Operation) {
        let (now, after) = (self.now, self.last_call());
        let joins = self.course(&operation.vm).is_some_and(|course| course.before.is_none());
        let parts = if joins { UNDONE_OF_A_NEWCOMER } else { UNDONE_OF_A_SLICE };
        let Some(work) = self.works.get_mut(&operation.vm) else { return };
        work.undone += 1;
        work.turn(now, after);
        if work.undone < parts {
            return;
        }
        let mut operation = operation.clone();
        operation.steps.iter_mut().for_each(|step| step.undone = step.done);
        self.finish(operation);
    }
}
