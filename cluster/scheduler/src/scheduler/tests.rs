//! The queue, reservations that come to nothing, inputs that are refused, hosts that are drained.

use super::*;
use crate::budget::Limits;
use crate::cluster::{ClusterError, HostSpec};
use crate::cost::FaultCounter;
use crate::fragmentation::Mix;
use crate::policy::{Consolidation, FragBff, Lifetime, Refusal, Spread};
use crate::queue::Discipline;
use crate::resources::Resources;
use crate::spec::{Class, SpecError};

struct Setup<P> {
    scheduler: Scheduler<P>,
    now: u64,
    effects: Vec<Effect>,
}

fn fragbff() -> FragBff {
    let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinNodes);
    FragBff { spread, consolidation, mix: Mix::azure() }
}

impl<P: Policy> Setup<P> {
    fn new(policy: P, settings: Settings, cores: &[u32]) -> Self {
        let mut cluster = Cluster::new();
        for &cores in cores {
            cluster.add_host(&HostSpec::new(vec![Resources::new(cores, cores)])).unwrap();
        }
        let scheduler = Scheduler::new(cluster, policy, settings);
        Self { scheduler, now: 0, effects: Vec::new() }
    }

    fn input(&mut self, input: Input) -> Result<(), InputError> {
        self.effects.clear();
        let result = self.scheduler.step(self.now, input, &mut self.effects);
        self.scheduler.cluster().check().unwrap();
        result
    }

    fn come(&mut self, vm: u32, cores: u32, class: Class) {
        let spec = Arc::new(Spec::new(Resources::new(cores, cores), class));
        self.input(Input::Arrive { vm: VmId(vm), spec }).unwrap();
    }

    fn depart(&mut self, vm: u32) {
        self.input(Input::Depart { vm: VmId(vm) }).unwrap();
    }

    /// Everything that was asked for is prepared, and moves flip.
    fn settle(&mut self) {
        while let Some(id) = self.next_reservation() {
            self.input(Input::Ready { reservation: id }).unwrap();
            if self.effects.contains(&Effect::Flip { reservation: id }) {
                self.input(Input::Flipped { reservation: id }).unwrap();
            }
        }
    }

    fn next_reservation(&self) -> Option<ReservationId> {
        self.scheduler.cluster().reservations().next().map(|(id, _)| id)
    }

    /// VMs that are started by the last input.
    fn started(&self) -> Vec<u32> {
        let started = self.effects.iter().filter_map(|effect| match effect {
            Effect::Start { vm, .. } => Some(vm.0),
            _ => None,
        });
        started.collect()
    }

    /// Whose moves the last input has begun.
    fn moving(&self) -> Vec<u32> {
        let moving = self.effects.iter().filter_map(|effect| match effect {
            Effect::Move { step, .. } => Some(step.vm.0),
            _ => None,
        });
        moving.collect()
    }

    fn waiting(&self) -> Vec<u32> {
        self.scheduler.queue().iter().map(|it| it.vm.0).collect()
    }
}

#[test]
fn who_fits_passes_until_the_first_has_waited_too_long() {
    let discipline = Discipline::Backfill { age_max: 100 };
    let settings = Settings { discipline, ..Settings::default() };
    let mut it = Setup::new(fragbff(), settings, &[4]);
    it.come(1, 2, Class::Shared);
    it.settle();
    it.come(2, 4, Class::Shared);
    it.come(3, 1, Class::Shared);
    assert_eq!(it.started(), [3]);
    it.settle();
    it.depart(3);

    it.now = 100;
    it.come(4, 1, Class::Shared);

    let refusal = Refusal::Behind(VmId(2));
    assert_eq!(it.effects, [Effect::Waits { vm: VmId(4), refusal }]);
    it.depart(1);
    assert_eq!(it.started(), [2]);
    assert_eq!(it.waiting(), [4]);
    it.settle();
    it.depart(2);
    assert_eq!(it.started(), [4]);
}

#[test]
fn nobody_passes_in_a_strict_queue() {
    let settings = Settings { discipline: Discipline::Strict, ..Settings::default() };
    let mut it = Setup::new(fragbff(), settings, &[4]);
    it.come(1, 2, Class::Shared);
    it.settle();
    it.come(2, 4, Class::Shared);
    let refusal = Refusal::NoCapacity { needs: Resources::new(4, 4), cores: 2, memory: 2 };
    assert_eq!(it.effects, [Effect::Waits { vm: VmId(2), refusal }]);

    it.come(3, 1, Class::Shared);

    assert_eq!(it.effects, [Effect::Waits { vm: VmId(3), refusal: Refusal::Behind(VmId(2)) }]);
    it.depart(2);
    assert_eq!(it.started(), [3], "the first one is gone");
}

#[test]
fn vm_whose_start_comes_to_nothing_keeps_its_turn() {
    let mut it = Setup::new(fragbff(), Settings::default(), &[4]);
    it.come(1, 4, Class::Shared);
    let reservation = it.next_reservation().unwrap();
    it.now = 10;
    it.come(2, 4, Class::Shared);

    it.input(Input::Failed { reservation }).unwrap();
    assert_eq!(it.started(), [1]);
    let reservation = it.next_reservation().unwrap();
    it.now += Settings::default().reservation_ttl;
    let late = it.input(Input::Ready { reservation });

    assert_eq!(late, Err(InputError::Cluster(ClusterError::Stale(reservation))));
    assert_eq!(it.effects[0], Effect::Expired { reservation, vm: VmId(1) });
    assert_eq!(it.started(), [1]);
    assert_eq!(it.waiting(), [2]);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let settings = Settings { queue_max: 1, ..Settings::default() };
    let mut it = Setup::new(fragbff(), settings, &[4]);
    it.come(1, 4, Class::Shared);
    it.come(2, 4, Class::Shared);
    let before = it.scheduler.clone();
    let arrive = |vm, cores| {
        let spec = Arc::new(Spec::new(Resources::new(cores, 1), Class::Default));
        Input::Arrive { vm: VmId(vm), spec }
    };

    assert_eq!(it.input(arrive(3, 0)), Err(InputError::Spec(SpecError::Empty)));
    assert_eq!(it.input(arrive(1, 1)), Err(InputError::Known(VmId(1))));
    assert_eq!(it.input(arrive(2, 1)), Err(InputError::Known(VmId(2))));
    assert_eq!(it.input(arrive(3, 1)), Err(InputError::QueueFull(1)));
    assert_eq!(it.input(Input::Depart { vm: VmId(3) }), Err(InputError::Unknown(VmId(3))));
    let reservation = ReservationId(77);
    let stale = Err(InputError::Cluster(ClusterError::Stale(reservation)));
    assert_eq!(it.input(Input::Ready { reservation }), stale);
    assert_eq!(it.input(Input::Failed { reservation }), stale);
    assert_eq!(it.input(Input::Flipped { reservation }), stale);
    let stall = Stall::default();
    let unknown = Err(InputError::Unknown(VmId(1)));
    assert_eq!(it.input(Input::Measured { vm: VmId(1), stall }), unknown);
    let host = Input::Host { host: HostId(9), state: HostState::Open };
    assert_eq!(it.input(host), Err(InputError::Cluster(ClusterError::NoHost(HostId(9)))));
    assert_eq!(it.scheduler, before);
}

#[test]
fn drained_host_is_empty_in_the_end() {
    let limits = Limits { moves_per_host: 2, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let mut it = Setup::new(fragbff(), settings, &[6, 4, 4]);
    for (vm, cores) in [(1, 2), (2, 1), (3, 1)] {
        it.come(vm, cores, Class::Default);
        it.settle();
    }
    let there =
        |it: &Setup<_>, host| it.scheduler.cluster().host(HostId(host)).unwrap().vms().count();
    assert_eq!([0, 1, 2].map(|host| there(&it, host)), [0, 3, 0]);

    it.input(Input::Host { host: HostId(1), state: HostState::Draining }).unwrap();
    it.settle();
    assert_eq!(there(&it, 1), 1, "two moves in an hour");
    it.now = limits.window;
    it.input(Input::Passed).unwrap();
    it.settle();

    assert_eq!(there(&it, 1), 0);
    it.come(4, 4, Class::Shared);
    it.settle();
    assert_eq!(there(&it, 1), 0, "nothing comes");
}

#[test]
fn vm_that_waits_more_than_its_class_allows_is_moved_young() {
    let settings = Settings { stall_patience: 60, ..Settings::default() };
    let mut it = Setup::new(Lifetime::azure(), settings, &[4, 4]);
    for vm in 1..=2 {
        it.come(vm, 3, Class::Shared);
        it.settle();
    }
    it.come(3, 2, Class::Default);
    it.settle();
    it.depart(1);
    assert_eq!(it.effects, [], "it is young");
    let counter = FaultCounter { by: HostId(0), of: HostId(1), waited_us: 700 };
    let measured = |it: &mut Setup<_>, now| {
        let stall = Stall::measured(&[counter], 2, 1000, 1).unwrap();
        it.now = now;
        it.input(Input::Measured { vm: VmId(3), stall }).unwrap();
        it.input(Input::Passed).unwrap();
        it.next_reservation().is_some()
    };

    assert!(!measured(&mut it, 100));
    assert!(!measured(&mut it, 159));
    assert!(measured(&mut it, 160));
    it.settle();
    assert!(it.effects.contains(&Effect::HandBack { vm: VmId(3) }), "{:?}", it.effects);
}

/// VM 3 is on host 0 with another one; of host 1 others have three cores, and VM 5 two. Nobody may pass whoever has waited for 100.
fn two_hosts_and(cores: &[u32]) -> Setup<Lifetime> {
    let discipline = Discipline::Backfill { age_max: 100 };
    let settings = Settings { discipline, stall_patience: 60, ..Settings::default() };
    let mut it = Setup::new(Lifetime::azure(), settings, cores);
    for (vm, cores) in [(1, 4), (2, 3), (3, 2), (5, 2)] {
        it.come(vm, cores, Class::Shared);
        it.settle();
    }
    it
}

fn passed(it: &mut Setup<Lifetime>, now: u64) -> Vec<u32> {
    it.now = now;
    it.input(Input::Passed).unwrap();
    it.moving()
}

#[test]
fn another_vm_moves_aside_for_the_first_once_nobody_may_pass_it() {
    let mut it = two_hosts_and(&[6, 6]);
    // Two more like host 1 and host 0, with somebody who could move aside too.
    it.scheduler.add_host(&HostSpec::new(vec![Resources::new(6, 6)])).unwrap();
    for (vm, cores) in [(11, 3), (12, 2)] {
        it.come(vm, cores, Class::Shared);
        it.settle();
    }
    it.scheduler.add_host(&HostSpec::new(vec![Resources::new(2, 2)])).unwrap();
    it.depart(3);
    it.come(4, 3, Class::Shared);

    assert_eq!(passed(&mut it, 99), [], "others may pass it still");
    assert_eq!(passed(&mut it, 100), [12], "of hosts alike the last one");
    assert_eq!(passed(&mut it, 101), [], "VM 5 stays");
    it.come(6, 1, Class::Shared);
    let reservation = it.next_reservation().unwrap();
    it.input(Input::Ready { reservation }).unwrap();
    assert_eq!(passed(&mut it, 10_000_000), [], "it takes long, and is on its way");
    it.input(Input::Flipped { reservation }).unwrap();

    assert_eq!(it.started(), [4, 6], "by turn");
}

#[test]
fn room_that_is_made_is_not_taken_to_bring_a_vm_together() {
    let mut it = two_hosts_and(&[6, 7, 1]);
    // VM 9 gets what VMs 7 and 8 have left of hosts 1 and 2, and may come together on host 1 when VM 7 is gone.
    for (vm, cores) in [(8, 1), (7, 1)] {
        it.come(vm, cores, Class::Shared);
        it.settle();
    }
    it.depart(8);
    it.come(9, 2, Class::Default);
    it.settle();
    assert!(it.scheduler.cluster().is_aggregate(VmId(9)));
    for vm in [7, 3] {
        it.depart(vm);
    }
    it.come(4, 3, Class::Shared);
    let counter = FaultCounter { by: HostId(1), of: HostId(2), waited_us: 700 };
    for now in [1, 40] {
        it.now = now;
        let stall = Stall::measured(&[counter], 2, 1000, 1).unwrap();
        it.input(Input::Measured { vm: VmId(9), stall }).unwrap();
    }
    let mut alone = it.scheduler.clone();
    alone.step(41, Input::Depart { vm: VmId(4) }, &mut it.effects).unwrap();

    assert_eq!(passed(&mut it, 100), [5], "VM 9 waits too much, and waits for another host");
    it.effects.clear();
    alone.step(100, Input::Passed, &mut it.effects).unwrap();
    assert_eq!(it.moving(), [9], "it would move if nobody had to start there");
}
