//! Small clusters, and what may happen in them.

use crate::world::{World, names};
use scheduler::cluster::{Cluster, HostSpec, HostState};
use scheduler::policy::Policy;
use scheduler::{Class, Discipline, Spec, VmId};
use scheduler::{HostId, Input, Limits, PlantedBug, ReservationId, Resources, Scheduler, Settings};
use stateright::{Model, Property};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

/// A cluster, VMs that may come, and how often what may happen.
#[derive(Clone, Debug)]
pub(crate) struct Scenario<P> {
    pub(crate) policy: P,
    pub(crate) settings: Settings,
    /// Cores of each host, with as much memory.
    pub(crate) hosts: Vec<Resources>,
    /// They come in this order.
    pub(crate) specs: Vec<Arc<Spec>>,
    pub(crate) ends: u8,
    pub(crate) failures: u8,
    pub(crate) ticks: u8,
    pub(crate) drains: u8,
    /// What some history must show, all of it.
    pub(crate) expected: &'static [&'static str],
    pub(crate) planted: Option<PlantedBug>,
    /// The rule that a planted bug is to break. Without one nothing that breaks any rule is looked at any further.
    pub(crate) sought: Option<&'static str>,
}

pub(crate) fn spec(cores: u32, class: Class) -> Arc<Spec> {
    Arc::new(Spec::new(Resources::new(cores, cores), class))
}

/// Short times: a reservation lives for two ticks, who has waited for two is not passed, what has failed rests for one at first.
pub(crate) fn settings() -> Settings {
    Settings {
        discipline: Discipline::Backfill { age_max: 2 },
        reservation_ttl: 2,
        limits: Limits {
            window: 3,
            moves_per_host: 4,
            moves_per_vm: 3,
            no_way_back: 3,
            rest: 1,
            rest_max: 2,
        },
        ..Settings::default()
    }
}

/// What is left to happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<P> {
    pub(crate) world: World<P>,
    come: usize,
    ends: u8,
    failures: u8,
    ticks: u8,
    drains: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Come,
    End(VmId),
    Ready(ReservationId),
    Fail(ReservationId),
    Flipped(ReservationId),
    Tick,
    Drain(HostId),
    Reopen(HostId),
}

impl<P> Scenario<P>
where
    P: Policy + Clone + Debug + Eq + Hash + Send + Sync + 'static,
{
    pub(crate) fn prove(self, label: &str) {
        model_check::prove(label, self);
    }

    #[track_caller]
    pub(crate) fn assert_caught(self, bug: PlantedBug, property: &'static str) {
        let model = Self { planted: Some(bug), sought: Some(property), ..self };
        let broken = model_check::refute(&format!("{bug:?}"), model, 2_000_000);
        assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
    }
}

impl<P> Model for Scenario<P>
where
    P: Policy + Clone + Debug + Eq + Hash + Send + Sync + 'static,
{
    type State = State<P>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<P>> {
        let mut cluster = Cluster::new();
        for total in &self.hosts {
            cluster.add_host(&HostSpec::new(vec![*total])).expect("a host");
        }
        let mut scheduler = Scheduler::new(cluster, self.policy.clone(), self.settings);
        if let Some(bug) = self.planted {
            scheduler = scheduler.plant(bug);
        }
        vec![State {
            world: World::new(scheduler, self.settings),
            come: 0,
            ends: self.ends,
            failures: self.failures,
            ticks: self.ticks,
            drains: self.drains,
        }]
    }

    fn actions(&self, state: &State<P>, actions: &mut Vec<Action>) {
        let world = &state.world;
        let is_over = match self.sought {
            Some(rule) => world.broken.contains(rule),
            None => !world.broken.is_empty(),
        };
        if is_over {
            return;
        }
        actions.extend((state.come < self.specs.len()).then_some(Action::Come));
        if state.ends > 0 {
            actions.extend(world.live().map(Action::End));
        }
        actions.extend(world.prepared().map(Action::Ready));
        actions.extend(world.late.keys().copied().map(Action::Ready));
        actions.extend(world.flipping().map(Action::Flipped));
        if state.failures > 0 {
            actions.extend(world.kept.keys().copied().map(Action::Fail));
        }
        actions.extend((state.ticks > 0).then_some(Action::Tick));
        for host in world.scheduler.cluster().hosts() {
            match host.state() {
                HostState::Open if state.drains > 0 => actions.push(Action::Drain(host.id())),
                HostState::Draining => actions.push(Action::Reopen(host.id())),
                _ => {}
            }
        }
    }

    fn next_state(&self, last: &State<P>, action: Action) -> Option<State<P>> {
        let mut state = last.clone();
        let world = &mut state.world;
        match action {
            Action::Come => {
                let vm = VmId(u32::try_from(state.come).ok()?);
                let spec = Arc::clone(self.specs.get(state.come)?);
                state.come += 1;
                world.input(&Input::Arrive { vm, spec });
            }
            Action::End(vm) => {
                state.ends -= 1;
                world.input(&Input::Depart { vm });
            }
            Action::Ready(reservation) => {
                let is_late = world.late.contains_key(&reservation);
                let taken = world.input(&Input::Ready { reservation });
                if is_late && !taken {
                    world.late.remove(&reservation);
                    world.seen.insert("too late");
                }
            }
            Action::Fail(reservation) => {
                state.failures -= 1;
                let taken = world.input(&Input::Failed { reservation });
                world.seen.insert(if taken { "given up" } else { "cannot be given up" });
            }
            Action::Flipped(reservation) => {
                world.input(&Input::Flipped { reservation });
                world.seen.insert("moved");
            }
            Action::Tick => {
                state.ticks -= 1;
                world.pass(1);
            }
            Action::Drain(host) => {
                state.drains -= 1;
                world.input(&Input::Host { host, state: HostState::Draining });
            }
            Action::Reopen(host) => {
                world.input(&Input::Host { host, state: HostState::Open });
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // A property is a plain function, so each has its name written into it.
        macro_rules! always {
            ($name:expr) => {
                Property::always($name, |_, it: &State<P>| !it.world.broken.contains($name))
            };
        }
        vec![
            always!(names::SUM),
            always!(names::KEEPS),
            always!(names::ROOM),
            always!(names::EXPIRES),
            always!(names::PAUSE),
            always!(names::BACK),
            always!(names::BUDGET),
            always!(names::RETURN),
            always!(names::RESTS),
            always!(names::KNOWN),
            always!(names::ORDER),
            always!(names::LEDGER),
            Property::sometimes("what is expected is seen", |model: &Self, it: &State<P>| {
                model.expected.iter().all(|name| it.world.seen.contains(name))
            }),
        ]
    }
}
