//! The ledger alone.

use super::*;
use crate::placement::{Decision, Rule, Share};
use crate::resources::Resources;
use crate::spec::{Class, DeviceCount, Spec};
use crate::{DeviceKind, Fabric, Group};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

const VM: VmId = VmId(7);

fn cluster(hosts: &[&[(u32, u32)]]) -> Cluster {
    let mut cluster = Cluster::new();
    for nodes in hosts {
        let nodes = nodes.iter().map(|(cores, memory)| Resources::new(*cores, *memory)).collect();
        cluster.add_host(&HostSpec::new(nodes)).unwrap();
    }
    cluster
}

fn share(host: u32, cores: u32, memory: u32) -> Share {
    Share::new(HostId(host), Resources::new(cores, memory))
}

fn decision(cluster: &Cluster, shares: Vec<Share>) -> Decision {
    let generation = |share: &Share| (share.host, cluster.host(share.host).unwrap().generation());
    let basis = shares.iter().map(generation).collect();
    Decision { shares, rule: Rule::BestFit, rejected: Vec::new(), rejected_count: 0, basis }
}

fn run(cluster: &mut Cluster, vm: VmId, spec: &Arc<Spec>, shares: Vec<Share>) {
    let decision = decision(cluster, shares);
    let id = cluster.reserve_start(vm, spec, &decision, 100).unwrap();
    assert_eq!(cluster.commit_start(id, 5), Ok(vm));
    cluster.check().unwrap();
}

fn spec(cores: u32, memory: u32) -> Arc<Spec> {
    Arc::new(Spec::new(Resources::new(cores, memory), Class::Independent))
}

fn step(from: u32, to: u32, cores: u32, memory: u32) -> Move {
    let resources = Resources::new(cores, memory);
    Move { vm: VM, from: HostId(from), to: HostId(to), resources, devices: Vec::new() }
}

fn parts(cluster: &Cluster) -> Vec<(u32, u8, u32, u32)> {
    let parts = cluster.vm(VM).unwrap().parts().iter();
    parts.map(|part| (part.host.0, part.node, part.cores, part.memory)).collect()
}

#[test]
fn vm_lies_on_the_node_that_has_least_left() {
    let mut cluster = cluster(&[&[(8, 8), (4, 8), (6, 8)]]);

    run(&mut cluster, VM, &spec(4, 4), vec![share(0, 4, 4)]);

    assert_eq!(parts(&cluster), [(0, 1, 4, 4)]);
}

#[test]
fn vm_that_no_node_holds_lies_on_those_with_most_cores_and_its_memory_beside_them() {
    let mut cluster = cluster(&[&[(4, 2), (6, 20), (5, 9)]]);

    run(&mut cluster, VM, &spec(9, 18), vec![share(0, 9, 18)]);

    assert_eq!(parts(&cluster), [(0, 1, 6, 12), (0, 2, 3, 6)]);
}

#[test]
fn memory_without_room_beside_its_cores_lies_where_there_is_room() {
    let mut cluster = cluster(&[&[(6, 1), (2, 20)]]);

    run(&mut cluster, VM, &spec(7, 14), vec![share(0, 7, 14)]);

    assert_eq!(parts(&cluster), [(0, 0, 6, 1), (0, 1, 1, 13)]);
}

#[test]
fn move_makes_before_it_breaks() {
    let mut cluster = cluster(&[&[(4, 4)], &[(4, 4)]]);
    run(&mut cluster, VM, &spec(4, 4), vec![share(0, 2, 2), share(1, 2, 2)]);
    let free = |cluster: &Cluster| [0, 1].map(|host| cluster.hosts()[host].free().cores);

    let id = cluster.reserve_move(&step(1, 0, 2, 2), 100).unwrap();
    assert_eq!(free(&cluster), [0, 2]);
    assert_eq!(cluster.commit_move(id), Err(ClusterError::NotFlipped(id)));
    cluster.flip(id).unwrap();
    assert_eq!(cluster.cancel(id), Err(ClusterError::Flips(id)));
    assert_eq!(cluster.expired(u64::MAX), [], "what flips does not expire");
    assert_eq!(free(&cluster), [0, 2]);
    cluster.commit_move(id).unwrap();

    assert_eq!(free(&cluster), [0, 4]);
    assert_eq!(parts(&cluster), [(0, 0, 4, 4)]);
    assert!(!cluster.is_aggregate(VM));
    cluster.check().unwrap();
    assert_eq!(cluster.release(VM), [HostId(0)]);
    assert_eq!(free(&cluster), [4, 4]);
}

#[test]
fn bootstrap_goes_with_its_last_core() {
    let mut cluster = cluster(&[&[(4, 4)], &[(4, 4)], &[(4, 4)]]);
    run(&mut cluster, VM, &spec(5, 5), vec![share(1, 2, 2), share(0, 3, 3)]);
    assert_eq!(cluster.vm(VM).unwrap().bootstrap(), HostId(1));

    for (cores, bootstrap) in [(1, 1), (1, 0)] {
        let id = cluster.reserve_move(&step(1, 2, cores, cores), 100).unwrap();
        cluster.flip(id).unwrap();
        cluster.commit_move(id).unwrap();
        assert_eq!(cluster.vm(VM).unwrap().bootstrap(), HostId(bootstrap));
        cluster.check().unwrap();
    }
}

#[test]
fn no_more_leaves_a_slice_than_it_has() {
    let mut cluster = cluster(&[&[(4, 4)], &[(4, 4)], &[(8, 8)]]);
    run(&mut cluster, VM, &spec(4, 4), vec![share(0, 3, 3), share(1, 1, 1)]);
    let not_there = Err(ClusterError::NotThere { vm: VM, host: HostId(0) });

    cluster.reserve_move(&step(0, 1, 2, 2), 100).unwrap();

    assert_eq!(cluster.reserve_move(&step(0, 2, 2, 2), 100), not_there);
    assert_eq!(cluster.reserve_move(&step(0, 0, 1, 1), 100), not_there);
    assert_eq!(cluster.reserve_move(&step(0, 2, 0, 0), 100), not_there);
    cluster.reserve_move(&step(0, 2, 1, 1), 100).unwrap();
    cluster.check().unwrap();
    cluster.release(VM);
    assert!(cluster.hosts().iter().all(|host| host.free() == host.total()));
}

#[test]
fn decision_on_an_earlier_generation_is_refused() {
    let mut cluster = cluster(&[&[(4, 4)], &[(4, 4)]]);
    let late = decision(&cluster, vec![share(0, 2, 2)]);
    run(&mut cluster, VM, &spec(1, 1), vec![share(0, 1, 1)]);
    let before = cluster.clone();

    let refused = cluster.reserve_start(VmId(8), &spec(2, 2), &late, 100);

    assert!(matches!(refused, Err(ClusterError::Generation { host: HostId(0), .. })));
    assert_eq!(cluster, before, "nothing has changed");
}

#[test]
fn placement_that_is_none_is_refused() {
    let mut cluster = cluster(&[&[(4, 4)], &[(4, 4)]]);
    let before = cluster.clone();
    let wrong = [
        vec![],
        vec![share(0, 3, 4)],
        vec![share(0, 2, 2), share(0, 2, 2)],
        vec![share(0, 0, 2), share(1, 4, 2)],
        vec![share(0, 4, 4), share(1, 0, 0)],
    ];
    for shares in wrong {
        let decision = decision(&cluster, shares);
        let refused = cluster.reserve_start(VM, &spec(4, 4), &decision, 100);
        assert_eq!(refused, Err(ClusterError::NotThePlacement));
    }
    let decision = decision(&cluster, vec![share(0, 5, 4)]);
    let refused = cluster.reserve_start(VM, &spec(5, 4), &decision, 100);
    assert_eq!(refused, Err(ClusterError::NoRoom(HostId(0))));
    assert_eq!(cluster, before);
}

#[test]
fn hosts_that_make_no_sense_are_refused() {
    let mut cluster = Cluster::new();
    let node = Resources::new(1, 1);
    let device = |kind, count| DeviceCount { kind: DeviceKind(kind), count };
    let with = |devices| HostSpec { devices, ..HostSpec::new(vec![node]) };

    assert_eq!(cluster.add_host(&HostSpec::new(vec![])), Err(SpecError::Nodes(0)));
    assert_eq!(cluster.add_host(&HostSpec::new(vec![node; 256])), Err(SpecError::Nodes(256)));
    let large = Resources::new(u32::MAX, 1);
    assert_eq!(cluster.add_host(&HostSpec::new(vec![large, node])), Err(SpecError::TooLarge));
    let refused = cluster.add_host(&with(vec![device(64, 1)]));
    assert_eq!(refused, Err(SpecError::Device(device(64, 1))));
    let refused = cluster.add_host(&with(vec![device(2, 1), device(2, 1)]));
    assert_eq!(refused, Err(SpecError::DeviceOrder));
    assert!(cluster.hosts().is_empty());
}

#[test]
fn groups_are_counted_where_vms_are_and_where_they_may_come() {
    let mut cluster = cluster(&[&[(4, 4)], &[(4, 4)]]);
    let group = Group(3);
    let mut wanted = Spec::new(Resources::new(2, 2), Class::Default);
    wanted.anti_affinity = Some(group);
    let wanted = Arc::new(wanted);
    run(&mut cluster, VM, &wanted, vec![share(0, 1, 1), share(1, 1, 1)]);
    let has = |cluster: &Cluster, host: usize, vm| {
        cluster.has_other_of(group, &cluster.hosts()[host], vm)
    };

    cluster.reserve_move(&step(1, 0, 1, 1), 100).unwrap();
    assert!(has(&cluster, 0, None) && has(&cluster, 1, Some(VmId(8))));
    assert!(!has(&cluster, 0, Some(VM)), "it is there twice, and no other is");
    cluster.release(VM);
    assert!(!has(&cluster, 0, None) && !has(&cluster, 1, None));
}

/// Hosts of a few kinds with a few VMs, so that much is alike.
fn filled() -> impl Strategy<Value = Cluster> {
    let host = (1u32..9, 1u32..9, 0u32..3, any::<bool>());
    let vm = (any::<prop::sample::Index>(), 1u32..5, 1u32..5);
    (vec(host, 1..30), vec(vm, 0..30)).prop_map(|(hosts, vms)| {
        let mut cluster = Cluster::new();
        for (cores, memory, fabric, shares) in hosts {
            let spec = HostSpec {
                fabric: Fabric(fabric),
                slices_max: if shares { 4 } else { 0 },
                ..HostSpec::new(vec![Resources::new(cores, memory)])
            };
            cluster.add_host(&spec).unwrap();
        }
        for (id, (index, cores, memory)) in (0..).zip(vms) {
            let host = u32::try_from(index.index(cluster.hosts().len())).unwrap();
            let decision = decision(&cluster, vec![share(host, cores, memory)]);
            // Some find no room.
            let _ = cluster.reserve_start(VmId(id), &spec(cores, memory), &decision, 9);
            if id % 5 == 0 {
                let _ = cluster.set_state(HostId(host), HostState::Cordoned);
            }
        }
        cluster
    })
}

proptest! {
    #[test]
    fn index_finds_what_looking_at_all_hosts_finds(
        cluster in filled(), cores in 0u32..9, memory in 0u32..9, fabric in 0u32..3,
    ) {
        let needs = Resources::new(cores, memory);
        let open = || cluster.hosts().iter().filter(|host| host.state() == HostState::Open);
        let key = |host: &Host| (host.free().cores, host.free().memory, host.id());
        let all = |_: &Traits| true;

        let mut fits: Vec<_> = open().filter(|host| needs.fits_in(host.free())).map(key).collect();
        fits.sort();
        let found: Vec<_> = cluster.best_fit(needs, all).map(key).collect();
        prop_assert_eq!(found, fits);

        let here = || open().filter(|host| host.fabric() == Fabric(fabric) && host.slices_max() > 0);
        let mut fits: Vec<_> = here().filter(|host| needs.fits_in(host.free())).map(key).collect();
        fits.sort();
        let found: Vec<_> = cluster.best_fit_in(Fabric(fabric), needs, all).map(key).collect();
        prop_assert_eq!(found, fits);

        let mut some: Vec<_> = here().map(key).filter(|free| free.0 > 0).collect();
        some.sort();
        let found: Vec<_> = cluster.least_first(Fabric(fabric), 1, all).collect();
        prop_assert_eq!(&found, &some);
        some.reverse();
        let found: Vec<_> = cluster.most_first(Fabric(fabric), all).collect();
        prop_assert_eq!(&found, &some);

        let most = here().map(|host| host.free().memory).max().filter(|memory| *memory > 0);
        let found = cluster.most_memory(Fabric(fabric), all, |_| true);
        prop_assert_eq!(found.map(|free| free.1), most);

        let sums = here().fold((0, 0), |sum, host| {
            let free = host.free();
            (sum.0 + u64::from(free.cores), sum.1 + u64::from(free.memory))
        });
        let found = cluster.fabrics(all).find(|(id, ..)| *id == Fabric(fabric));
        prop_assert_eq!(found.map_or((0, 0), |(_, cores, memory)| (cores, memory)), sums);
    }
}
