//! Random histories of larger clusters, and of VMs with all that they may want.

use crate::world::{World, names};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use scheduler::cluster::{Cluster, HostSpec, HostState};
use scheduler::cost::{FaultCounter, Prices, Stall};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Bff, Consolidation, FragBff, Lifetime, Policy, Room, Spread, When};
use scheduler::{
    Class, DeviceCount, DeviceKind, Discipline, Fabric, FailureDomain, Features, Group, HostId,
    Input, Limits, Resources, Scheduler, Settings, Spec, Tenant, VmId,
};
use std::fmt::Debug;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Event {
    Come(Spec),
    End(Index),
    Ready(Index),
    Late(Index),
    Fail(Index),
    Flipped(Index),
    Pass(u64),
    Host(Index, HostState),
    Measure(Index, u64),
}

fn devices() -> impl Strategy<Value = Vec<DeviceCount>> {
    let counts = vec(0u32..4, 2);
    counts.prop_map(|counts| {
        let kinds = counts.into_iter().zip(0u8..).filter(|(count, _)| *count > 0);
        kinds.map(|(count, kind)| DeviceCount { kind: DeviceKind(kind), count }).collect()
    })
}

fn host() -> impl Strategy<Value = HostSpec> {
    let nodes = vec((0u32..9, 0u32..40).prop_map(|(c, m)| Resources::new(c, m)), 1..4);
    let numbers = (0u32..2, 0u32..3, 0u16..4, 0u64..4, any::<bool>());
    (nodes, devices(), numbers).prop_map(|(nodes, devices, numbers)| {
        let (fabric, domain, slices_max, features, dedicated) = numbers;
        HostSpec {
            devices,
            features: Features(features | 1),
            fabric: Fabric(fabric),
            domain: FailureDomain(domain),
            dedicated: (dedicated && features == 0).then_some(Tenant(0)),
            slices_max,
            ..HostSpec::new(nodes)
        }
    })
}

fn spec() -> impl Strategy<Value = Spec> {
    let class = prop_oneof![
        Just(Class::Independent),
        Just(Class::Requests),
        Just(Class::Default),
        Just(Class::Shared)
    ];
    let needs = (1u32..17, 1u32..40).prop_map(|(c, m)| Resources::new(c, m));
    let few = |strategy: BoxedStrategy<Vec<DeviceCount>>| prop_oneof![3 => Just(Vec::new()), 1 => strategy];
    (class, needs, few(devices().boxed()), 0u32..8, 0u64..8).prop_map(
        |(class, needs, devices, group, odd)| Spec {
            devices,
            anti_affinity: (group < 2).then_some(Group(group)),
            features: Features(u64::from(odd == 1)),
            dedicated: odd == 2,
            ..Spec::new(needs, class)
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<Index>;
    let state = prop_oneof![
        2 => Just(HostState::Open),
        1 => Just(HostState::Draining),
        1 => Just(HostState::Cordoned)
    ];
    prop_oneof![
        6 => spec().prop_map(Event::Come),
        3 => index().prop_map(Event::End),
        8 => index().prop_map(Event::Ready),
        1 => index().prop_map(Event::Late),
        1 => index().prop_map(Event::Fail),
        3 => index().prop_map(Event::Flipped),
        2 => (1u64..40).prop_map(Event::Pass),
        1 => (index(), state).prop_map(|(host, state)| Event::Host(host, state)),
        1 => (index(), 0u64..1000).prop_map(|(vm, waited)| Event::Measure(vm, waited)),
    ]
}

fn settings() -> Settings {
    Settings {
        discipline: Discipline::Backfill { age_max: 60 },
        queue_max: 20,
        reservation_ttl: 30,
        limits: Limits {
            window: 100,
            moves_per_host: 6,
            moves_per_vm: 4,
            no_way_back: 100,
            rest: 10,
            rest_max: 50,
        },
        stall_patience: 20,
        ..Settings::default()
    }
}

fn pick<T: Copy>(index: &Index, of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| *index.get(of))
}

fn apply<P: Policy>(world: &mut World<P>, event: Event, next: &mut u32) -> Option<()> {
    let input = match event {
        Event::Come(spec) => {
            *next += 1;
            Input::Arrive { vm: VmId(*next), spec: Arc::new(spec) }
        }
        Event::End(index) => Input::Depart { vm: pick(&index, &world.live().collect::<Vec<_>>())? },
        Event::Ready(index) => {
            let prepared: Vec<_> = world.prepared().collect();
            Input::Ready { reservation: pick(&index, &prepared)? }
        }
        Event::Late(index) => {
            let late: Vec<_> = world.late.keys().copied().collect();
            let reservation = pick(&index, &late)?;
            assert!(!world.input(&Input::Ready { reservation }), "{reservation} is over");
            world.late.remove(&reservation);
            return None;
        }
        Event::Fail(index) => {
            let kept: Vec<_> = world.kept.keys().copied().collect();
            Input::Failed { reservation: pick(&index, &kept)? }
        }
        Event::Flipped(index) => {
            let flipping: Vec<_> = world.flipping().collect();
            Input::Flipped { reservation: pick(&index, &flipping)? }
        }
        Event::Pass(time) => {
            world.pass(time);
            return None;
        }
        Event::Host(index, state) => {
            let hosts: Vec<HostId> =
                world.scheduler.cluster().hosts().iter().map(|host| host.id()).collect();
            Input::Host { host: pick(&index, &hosts)?, state }
        }
        Event::Measure(index, waited_us) => {
            let running: Vec<VmId> = world.running.keys().copied().collect();
            let vm = pick(&index, &running)?;
            let hosts: Vec<HostId> = world.running[&vm].keys().copied().collect();
            let (by, of) = (*hosts.first()?, *hosts.last()?);
            let counter = FaultCounter { by, of, waited_us };
            Input::Measured { vm, stall: Stall::measured(&[counter], 2, 1000, 100)? }
        }
    };
    world.input(&input);
    None
}

/// Applies the history, ends all VMs, and finds all hosts as they were.
fn holds<P: Policy + Clone + Debug>(
    policy: P,
    hosts: &[HostSpec],
    events: Vec<Event>,
) -> Result<(), TestCaseError> {
    let mut cluster = Cluster::new();
    for host in hosts {
        cluster.add_host(host).expect("a host");
    }
    let mut world = World::new(Scheduler::new(cluster, policy, settings()), settings());
    let mut next = 0;
    for event in events {
        let shown = format!("{event:?}");
        apply(&mut world, event, &mut next);
        prop_assert!(world.broken.is_empty(), "{shown}: {:?}", world.broken);
        prop_assert_eq!(world.scheduler.cluster().check(), Ok(()), "{}", shown);
    }
    for vm in world.live().collect::<Vec<_>>() {
        let is_taken = world.input(&Input::Depart { vm });
        prop_assert!(is_taken);
    }
    for host in world.scheduler.cluster().hosts() {
        prop_assert_eq!(host.free(), host.total());
        prop_assert_eq!(host.vms().count(), 0);
        let spec = &hosts[usize::try_from(host.id().0).expect("few hosts")];
        for device in &spec.devices {
            prop_assert_eq!(host.free_devices(device.kind), device.count);
        }
    }
    prop_assert_eq!(world.scheduler.cluster().reservations().count(), 0);
    prop_assert!(names::ALL.iter().all(|name| !world.broken.contains(name)));
    Ok(())
}

fn mix() -> Mix {
    Mix::new([1, 2, 4, 8].map(|cores| (Resources::new(cores, cores), 1)).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn best_fit_keeps_the_rules(hosts in vec(host(), 1..8), events in vec(event(), 1..120)) {
        holds(Bff, &hosts, events)?;
    }

    #[test]
    fn fewest_nodes_keep_the_rules(hosts in vec(host(), 1..8), events in vec(event(), 1..120)) {
        let consolidation = Consolidation::MinNodes;
        let policy = FragBff { spread: Spread::MinNodes, consolidation, mix: mix() };
        holds(policy, &hosts, events)?;
    }

    #[test]
    fn most_nodes_keep_the_rules(hosts in vec(host(), 1..8), events in vec(event(), 1..120)) {
        let consolidation = Consolidation::MinFragmentation;
        let policy = FragBff { spread: Spread::MaxNodes, consolidation, mix: mix() };
        holds(policy, &hosts, events)?;
    }

    #[test]
    fn our_policy_keeps_the_rules(hosts in vec(host(), 1..8), events in vec(event(), 1..120)) {
        let prices = Prices { risk_us: 0, disturbance_us: 0, ..Prices::default() };
        let room = Some(Room { when: When::Waited(10), ..Room::EAGER });
        let policy = Lifetime { prices, next_chance: 10, room, ..Lifetime::azure() };
        holds(policy, &hosts, events)?;
    }
}
