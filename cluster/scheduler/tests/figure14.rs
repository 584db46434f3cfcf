//! Figure 14 of the paper on FragVisor, step for step: four servers of 12 CPUs, and a VM of 4 vCPUs that is split over node0
//! and node1 at 155 and is on node0 alone at 623. Times are those of the figure.

use scheduler::cluster::{Cluster, HostSpec};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Consolidation, FragBff, Spread};
use scheduler::{
    Class, Effect, HostId, Input, ReservationId, Resources, Rule, Scheduler, Settings, Spec, VmId,
};
use std::sync::Arc;

const NODE0: HostId = HostId(0);
const NODE1: HostId = HostId(1);
/// The Aggregate VM.
const VM: VmId = VmId(100);
const GIB_4: u32 = 2048;

fn cores(cores: u32) -> Resources {
    Resources::new(cores, cores * GIB_4)
}

/// VMs of the figure's sizes, as often as in Azure, and Azure's own.
fn mixes() -> [Mix; 3] {
    let figure = [(1, 29), (2, 29), (4, 23), (8, 12), (12, 7)];
    let even = [(1, 1), (2, 1), (4, 1), (8, 1), (12, 1)];
    let mix = |shapes: [(u32, u32); 5]| {
        Mix::new(shapes.map(|(count, share)| (cores(count), share)).to_vec())
    };
    [mix(figure), mix(even), Mix::azure()]
}

struct Cluster14 {
    scheduler: Scheduler<FragBff>,
    effects: Vec<Effect>,
}

impl Cluster14 {
    /// As it is before 155: two CPUs are free on node0 and node1 each, none elsewhere.
    fn new(spread: Spread, consolidation: Consolidation, mix: Mix) -> Self {
        let mut cluster = Cluster::new();
        for _ in 0..4 {
            cluster.add_host(&HostSpec::new(vec![cores(12)])).expect("a host");
        }
        let policy = FragBff { spread, consolidation, mix };
        let scheduler = Scheduler::new(cluster, policy, Settings::default());
        let mut it = Self { scheduler, effects: Vec::new() };
        for (vm, count, host) in [
            (0, 8, 0),
            (1, 1, 0),
            (2, 1, 0),
            (3, 4, 1),
            (4, 3, 1),
            (5, 3, 1),
            (6, 12, 2),
            (7, 12, 3),
        ] {
            assert_eq!(it.start(0, VmId(vm), count), [(HostId(host), count)]);
        }
        it
    }

    fn step(&mut self, now: u64, input: Input) {
        self.effects.clear();
        self.scheduler.step(now, input, &mut self.effects).expect("an input that is right");
        assert_eq!(self.scheduler.cluster().check(), Ok(()));
    }

    /// A VM comes and runs at once. Returns where.
    fn start(&mut self, now: u64, vm: VmId, count: u32) -> Vec<(HostId, u32)> {
        let spec = Arc::new(Spec::new(cores(count), Class::Default));
        self.step(now, Input::Arrive { vm, spec });
        let [Effect::Start { reservation, decision, .. }] = &self.effects[..] else {
            panic!("{:?}", self.effects);
        };
        let is_split = decision.shares.len() > 1;
        assert_eq!(decision.rule, if is_split { Rule::FewestHosts } else { Rule::BestFit });
        let reservation = *reservation;
        self.step(now, Input::Ready { reservation });
        assert_eq!(self.effects, [Effect::Run { vm }]);
        self.vcpus(vm)
    }

    fn vcpus(&self, vm: VmId) -> Vec<(HostId, u32)> {
        let slices = self.scheduler.cluster().vm(vm).expect("it runs").slices();
        let mut vcpus: Vec<_> =
            slices.iter().map(|slice| (slice.host, slice.resources.cores)).collect();
        vcpus.sort();
        vcpus
    }

    fn free(&self) -> [u32; 4] {
        [0, 1, 2, 3].map(|host| self.scheduler.cluster().hosts()[host].free().cores)
    }

    /// A VM ends. Returns what moves then: from, to, vCPUs.
    fn end(&mut self, now: u64, vm: u32) -> Vec<(ReservationId, HostId, HostId, u32)> {
        self.step(now, Input::Depart { vm: VmId(vm) });
        let moves = self.effects.iter().map(|effect| match effect {
            Effect::Move { reservation, step, .. } => {
                assert_eq!(step.vm, VM);
                (*reservation, step.from, step.to, step.resources.cores)
            }
            other => panic!("{other:?}"),
        });
        moves.collect()
    }

    /// A move is made.
    fn flip(&mut self, now: u64, reservation: ReservationId) {
        self.step(now, Input::Ready { reservation });
        assert_eq!(self.effects, [Effect::Flip { reservation }]);
        self.step(now, Input::Flipped { reservation });
    }
}

#[test]
fn least_fragmentation_is_figure_14() {
    for mix in mixes() {
        let mut it = Cluster14::new(Spread::MinNodes, Consolidation::MinFragmentation, mix);
        assert_eq!(it.free(), [2, 2, 0, 0]);

        // 155: the VM is split over as few nodes as possible.
        assert_eq!(it.start(155, VM, 4), [(NODE0, 2), (NODE1, 2)]);
        assert_eq!(it.free(), [0, 0, 0, 0]);

        // 222: four CPUs are free on node1. All of the VM would fit there; it stays.
        assert_eq!(it.end(222, 3), []);
        assert_eq!(it.free(), [0, 4, 0, 0]);

        // 360: more of the same.
        assert_eq!(it.end(360, 4), []);
        assert_eq!(it.free(), [0, 7, 0, 0]);

        // 470: one CPU is free on node0, and one vCPU moves there. Eight are free on node1 then.
        let moves = it.end(470, 1);
        let [(reservation, NODE1, NODE0, 1)] = moves[..] else { panic!("{moves:?}") };
        it.flip(470, reservation);
        assert_eq!(it.effects, []);
        assert_eq!(it.vcpus(VM), [(NODE0, 3), (NODE1, 1)]);
        assert_eq!(it.free(), [0, 8, 0, 0]);

        // The rest of node1 is free before 623.
        assert_eq!(it.end(550, 5), []);
        assert_eq!(it.free(), [0, 11, 0, 0]);

        // 623: one more on node0. The last vCPU moves, the VM is an ordinary one, and node1 is free for a VM of 12 vCPUs.
        let moves = it.end(623, 2);
        let [(reservation, NODE1, NODE0, 1)] = moves[..] else { panic!("{moves:?}") };
        it.flip(623, reservation);
        assert_eq!(it.effects, [Effect::HandBack { vm: VM }]);
        assert_eq!(it.vcpus(VM), [(NODE0, 4)]);
        assert_eq!(it.free(), [0, 12, 0, 0]);
        assert_eq!(it.start(624, VmId(101), 12), [(NODE1, 12)]);
    }
}

#[test]
fn fewest_nodes_move_the_vm_at_222() {
    for mix in mixes() {
        let mut it = Cluster14::new(Spread::MinNodes, Consolidation::MinNodes, mix);
        it.start(155, VM, 4);

        let moves = it.end(222, 3);

        let [(reservation, NODE0, NODE1, 2)] = moves[..] else { panic!("{moves:?}") };
        it.flip(222, reservation);
        assert_eq!(it.effects, [Effect::HandBack { vm: VM }]);
        assert_eq!(it.vcpus(VM), [(NODE1, 4)]);
        assert_eq!(it.free(), [2, 2, 0, 0]);
    }
}

#[test]
fn without_consolidation_nothing_moves() {
    let [mix, ..] = mixes();
    let mut it = Cluster14::new(Spread::MinNodes, Consolidation::None, mix);
    it.start(155, VM, 4);

    for (now, vm) in [(222, 3), (360, 4), (470, 1), (550, 5), (623, 2)] {
        assert_eq!(it.end(now, vm), []);
    }

    assert_eq!(it.vcpus(VM), [(NODE0, 2), (NODE1, 2)]);
    assert_eq!(it.free(), [2, 10, 0, 0]);
}
