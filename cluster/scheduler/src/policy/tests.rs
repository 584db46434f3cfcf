//! Where VMs start under each policy, why not, and what comes together.

use super::*;
use crate::cluster::HostSpec;
use crate::cost::{FaultCounter, Prices};
use crate::explain::{EXPLAINED_MAX, explain};
use crate::fragmentation::Mix;
use crate::placement::Rule;
use crate::reason::WhyNot;
use crate::resources::Resources;
use crate::spec::{Class, DeviceCount};
use crate::survival::HOUR;
use crate::{DeviceKind, Fabric, FailureDomain, Features, Group, REJECTED_MAX, Tenant};
use std::sync::Arc;

/// When ours surely moves a VM.
const OLD: u64 = 200 * HOUR;

fn host(cores: u32, memory: u32) -> HostSpec {
    HostSpec::new(vec![Resources::new(cores, memory)])
}

fn cluster(hosts: &[HostSpec]) -> Cluster {
    let mut cluster = Cluster::new();
    for host in hosts {
        cluster.add_host(host).unwrap();
    }
    cluster
}

fn spec(cores: u32, memory: u32, class: Class) -> Spec {
    Spec::new(Resources::new(cores, memory), class)
}

fn fragbff(spread: Spread) -> FragBff {
    FragBff { spread, consolidation: Consolidation::MinNodes, mix: Mix::azure() }
}

/// Host, cores, memory of each share.
fn shares(found: &Decision) -> Vec<(u32, u32, u32)> {
    let share = |it: &crate::Share| (it.host.0, it.resources.cores, it.resources.memory);
    found.shares.iter().map(share).collect()
}

fn run(cluster: &mut Cluster, vm: u32, spec: Spec, found: &Decision) {
    let id = cluster.reserve_start(VmId(vm), &Arc::new(spec), found, u64::MAX).unwrap();
    cluster.commit_start(id, 0).unwrap();
    cluster.check().unwrap();
}

#[test]
fn best_fit_leaves_least_cores_then_least_memory_then_is_the_first() {
    let cluster = cluster(&[host(8, 9), host(5, 9), host(5, 6), host(5, 6), host(4, 3)]);

    let found = Bff.place(&cluster, &spec(4, 4, Class::Shared)).unwrap();

    assert_eq!(shares(&found), [(2, 4, 4)]);
    assert_eq!(found.rule, Rule::BestFit);
    assert_eq!(found.basis, [(HostId(2), 0)]);
}

#[test]
fn fewest_nodes_take_the_largest_holes_and_most_nodes_the_smallest() {
    let cluster = cluster(&[1, 2, 3, 4, 2].map(|cores| host(cores, 100)));
    let wanted = spec(6, 12, Class::Independent);

    let fewest = fragbff(Spread::MinNodes).place(&cluster, &wanted).unwrap();
    let most = fragbff(Spread::MaxNodes).place(&cluster, &wanted).unwrap();

    assert_eq!(shares(&fewest), [(3, 4, 8), (2, 2, 4)]);
    assert_eq!(fewest.rule, Rule::FewestHosts);
    assert_eq!(shares(&most), [(1, 2, 4), (4, 2, 4), (0, 1, 2), (2, 1, 2)]);
    assert_eq!(most.rule, Rule::MostHosts);
}

#[test]
fn most_nodes_keep_to_what_the_class_allows() {
    let cluster = cluster(&[1, 1, 1, 1, 1, 2, 3, 3].map(|cores| host(cores, 100)));

    let found = fragbff(Spread::MaxNodes).place(&cluster, &spec(6, 6, Class::Requests));

    assert_eq!(shares(&found.unwrap()), [(6, 3, 3), (5, 2, 2), (7, 1, 1)]);
}

#[test]
fn never_split_waits_and_says_so() {
    let cluster = cluster(&[host(4, 8), host(4, 8)]);
    let refusal = |cores, class| {
        fragbff(Spread::MinNodes).place(&cluster, &spec(cores, 4, class)).unwrap_err()
    };

    let not_allowed = Refusal::SpreadNotAllowed { needed: 2, allowed: 1 };
    assert_eq!(refusal(6, Class::Shared), not_allowed);
    let needs = Resources::new(9, 4);
    let none = Refusal::NoCapacity { needs, cores: 8, memory: 16 };
    assert_eq!(refusal(9, Class::Default), none);
    assert_eq!(
        not_allowed.to_string(),
        "no host has room for all of it; split over 2 hosts it would run, 1 are allowed"
    );
    assert_eq!(
        none.to_string(),
        "9 cores and 8 MiB are wanted, 8 cores and 32 MiB are free altogether"
    );
}

#[test]
fn no_split_is_wider_than_the_class_allows() {
    let cluster = cluster(&[2, 2, 2].map(|cores| host(cores, 8)));

    let refused = fragbff(Spread::MinNodes).place(&cluster, &spec(6, 6, Class::Default));

    assert_eq!(refused, Err(Refusal::SpreadNotAllowed { needed: 3, allowed: 2 }));
}

#[test]
fn memory_lies_beside_the_cores_and_the_rest_where_there_is_most() {
    let hosts = [host(4, 2), host(3, 9), host(0, 5), host(0, 20)];
    let cluster = cluster(&hosts);

    let found = fragbff(Spread::MinNodes).place(&cluster, &spec(7, 21, Class::Requests));

    assert_eq!(shares(&found.unwrap()), [(0, 4, 2), (1, 3, 9), (3, 0, 10)]);
}

#[test]
fn slices_stay_in_one_fabric_and_one_failure_domain_if_they_can() {
    let at = |cores, fabric, domain| HostSpec {
        fabric: Fabric(fabric),
        domain: FailureDomain(domain),
        ..host(cores, 100)
    };
    let hosts = [at(4, 0, 0), at(3, 1, 0), at(3, 1, 1), at(3, 1, 0), at(5, 2, 0)];
    let found = fragbff(Spread::MinNodes).place(&cluster(&hosts), &spec(6, 6, Class::Default));
    assert_eq!(shares(&found.unwrap()), [(1, 3, 3), (3, 3, 3)]);

    let apart_by_fabric = [at(4, 0, 0), at(4, 1, 0)];
    let refused =
        fragbff(Spread::MinNodes).place(&cluster(&apart_by_fabric), &spec(6, 6, Class::Default));
    assert_eq!(refused, Err(Refusal::Scattered));
}

#[test]
fn slice_with_devices_exists_even_without_cores() {
    let device = DeviceCount { kind: DeviceKind(3), count: 2 };
    let with = |cores, devices| HostSpec { devices, ..host(cores, 100) };
    let wanted = Spec { devices: vec![device], ..spec(6, 6, Class::Requests) };
    let policy = fragbff(Spread::MinNodes);

    let near = cluster(&[with(4, vec![]), with(2, vec![device]), with(3, vec![])]);
    let found = policy.place(&near, &wanted).unwrap();
    assert_eq!(shares(&found), [(1, 2, 2), (0, 4, 4)], "the bootstrap slice has the device");
    assert_eq!(found.shares[0].devices, [device]);

    let far = cluster(&[with(4, vec![]), with(0, vec![device]), with(3, vec![])]);
    let found = policy.place(&far, &wanted).unwrap();
    assert_eq!(shares(&found), [(0, 4, 4), (2, 2, 2), (1, 0, 0)]);
    assert_eq!(found.shares[2].devices, [device]);
    let default = Spec { slices_max: 2, ..wanted };
    assert!(policy.place(&far, &default).is_err(), "the slice with the device counts");
}

#[test]
fn each_rule_keeps_hosts_out() {
    let device = DeviceCount { kind: DeviceKind(1), count: 1 };
    let mut wanted = Spec { features: Features(2), ..spec(2, 2, Class::Shared) };
    wanted.devices = vec![device];
    wanted.anti_affinity = Some(Group(1));
    let devices = vec![DeviceCount { count: 2, ..device }];
    let good = HostSpec { features: Features(3), devices, ..host(8, 8) };
    let hosts = [
        HostSpec { features: Features(1), ..good.clone() },
        HostSpec { dedicated: Some(Tenant(9)), ..good.clone() },
        HostSpec { devices: vec![], ..good.clone() },
        HostSpec { nodes: vec![Resources::new(1, 8)], ..good.clone() },
        HostSpec { nodes: vec![Resources::new(8, 1)], ..good.clone() },
        good.clone(),
        good.clone(),
        good,
    ];
    let mut cluster = cluster(&hosts);
    let first = Bff.place(&cluster, &wanted).unwrap();
    assert_eq!(shares(&first), [(5, 2, 2)]);
    run(&mut cluster, 1, wanted.clone(), &first);
    let thief = Spec { devices: vec![device], features: Features(2), ..spec(8, 8, Class::Shared) };
    let taken = Bff.place(&cluster, &thief).unwrap();
    assert_eq!(shares(&taken), [(6, 8, 8)]);
    run(&mut cluster, 2, thief, &taken);

    let why = explain(&cluster, &wanted, false);

    assert_eq!(why.fit, 1);
    let mut reasons = why.hosts;
    reasons.sort();
    assert_eq!(
        reasons,
        [
            (HostId(0), WhyNot::Features(Features(2))),
            (HostId(1), WhyNot::Dedicated(Tenant(9))),
            (HostId(2), WhyNot::NoDevice(DeviceKind(1))),
            (HostId(3), WhyNot::Cores(1)),
            (HostId(4), WhyNot::Memory(1)),
            (HostId(5), WhyNot::AntiAffinity(Group(1))),
            (HostId(6), WhyNot::Cores(0)),
        ]
    );
    let next = Bff.place(&cluster, &wanted).unwrap();
    assert_eq!(shares(&next), [(7, 2, 2)]);
    assert_eq!(next.rejected, [(HostId(5), WhyNot::AntiAffinity(Group(1)))]);
}

#[test]
fn dedicated_vms_are_on_their_tenants_hosts_alone() {
    let own = HostSpec { dedicated: Some(Tenant(4)), ..host(8, 8) };
    let cluster = cluster(&[host(4, 4), own]);
    let wanted = Spec { dedicated: true, tenant: Tenant(4), ..spec(4, 4, Class::Default) };

    assert_eq!(shares(&Bff.place(&cluster, &wanted).unwrap()), [(1, 4, 4)]);
    let other = Spec { tenant: Tenant(5), ..wanted };
    assert_eq!(Bff.place(&cluster, &other), Err(Refusal::NoHost));
}

#[test]
fn reasons_are_bounded() {
    let wanted = Spec { anti_affinity: Some(Group(1)), ..spec(1, 1, Class::Default) };
    let mut cluster = cluster(&vec![host(2, 2); 50]);
    for vm in 0..49 {
        let found = Bff.place(&cluster, &wanted).unwrap();
        run(&mut cluster, vm, wanted.clone(), &found);
    }

    let found = Bff.place(&cluster, &wanted).unwrap();

    assert_eq!((found.rejected.len(), found.rejected_count), (REJECTED_MAX, 49));
    let why = explain(&cluster, &wanted, false);
    assert_eq!((why.hosts.len(), why.fit), (EXPLAINED_MAX, 1));
    assert_eq!(
        why.counts.into_iter().collect::<Vec<_>>(),
        [("has a VM of the same group".to_owned(), 49)]
    );
}

/// A VM of four cores over two hosts of four, with so much else on them.
fn split_in_two() -> Cluster {
    let mut cluster = cluster(&vec![host(4, 400); 2]);
    for vm in 0..2 {
        let wanted = spec(2, 2, Class::Default);
        let shares = vec![crate::Share::new(HostId(vm), wanted.needs)];
        let basis = vec![(HostId(vm), 0)];
        let rule = Rule::BestFit;
        let found = Decision { shares, rule, rejected: vec![], rejected_count: 0, basis };
        run(&mut cluster, vm, wanted, &found);
    }
    let wanted = spec(4, 40, Class::Default);
    let found = fragbff(Spread::MinNodes).place(&cluster, &wanted).unwrap();
    assert_eq!(shares(&found), [(0, 2, 20), (1, 2, 20)]);
    run(&mut cluster, 9, wanted, &found);
    cluster
}

fn facts(now: u64) -> Facts<'static> {
    Facts { now, released: None, stall: None, is_over_budget: false }
}

fn moved(moves: &[Move]) -> Vec<(u32, u32, u32)> {
    moves.iter().map(|step| (step.from.0, step.to.0, step.resources.cores)).collect()
}

#[test]
fn partial_moves_let_the_number_of_hosts_fall() {
    let mut cluster = cluster(&[host(6, 60), host(4, 60), host(3, 60)]);
    let wanted = spec(9, 9, Class::Requests);
    let shares = [(0, 4), (1, 3), (2, 2)];
    let shares = shares
        .map(|(at, cores)| crate::Share::new(HostId(at), Resources::new(cores, cores)))
        .to_vec();
    let basis = vec![];
    let rule = Rule::FewestHosts;
    let found = Decision { shares, rule, rejected: vec![], rejected_count: 0, basis };
    run(&mut cluster, 9, wanted, &found);

    let facts = Facts { released: Some(HostId(1)), ..facts(0) };
    let moves = fragbff(Spread::MinNodes).consolidate(&cluster, VmId(9), &facts);

    assert_eq!(moved(&moves), [(2, 1, 1), (2, 0, 1)]);
    assert_eq!(moves.iter().map(|step| step.resources.memory).sum::<u32>(), 2);
}

#[test]
fn young_vms_are_left_alone_unless_they_wait_for_too_much() {
    let mut cluster = split_in_two();
    cluster.release(VmId(1));
    let policy = Lifetime::azure();

    assert_eq!(policy.consolidate(&cluster, VmId(9), &facts(0)), []);
    let over = Facts { is_over_budget: true, ..facts(0) };
    assert_eq!(moved(&policy.consolidate(&cluster, VmId(9), &over)), [(0, 1, 2)]);
    assert_eq!(moved(&policy.consolidate(&cluster, VmId(9), &facts(OLD))), [(0, 1, 2)]);
}

/// The age in hours at which a VM of so many cores and this class, which nobody has measured, is brought together.
fn moved_at(cores: u32, class: Class) -> Option<u64> {
    let mut cluster = cluster(&vec![host(cores, 400); 2]);
    let wanted = spec(cores, 8, class);
    let half = Resources::new(cores / 2, 4);
    let shares = [0, 1].map(|at| crate::Share::new(HostId(at), half)).to_vec();
    let rule = Rule::FewestHosts;
    let found = Decision { shares, rule, rejected: vec![], rejected_count: 0, basis: vec![] };
    run(&mut cluster, 9, wanted, &found);
    let moves = |hours: &u64| {
        !Lifetime::azure().consolidate(&cluster, VmId(9), &facts(hours * HOUR)).is_empty()
    };
    (0..500).find(moves)
}

#[test]
fn vms_that_wait_more_are_moved_younger() {
    let classes = [Class::Independent, Class::Requests, Class::Default];
    for cores in [2, 8, 32] {
        let ages = classes.map(|class| moved_at(cores, class).unwrap());

        assert!(ages.windows(2).all(|pair| pair[0] > pair[1]), "{cores} cores: {ages:?} hours");
    }
}

#[test]
fn vms_of_any_size_come_together() {
    for cores in [2, 8, 32, 64, 256, 4096] {
        let age = moved_at(cores, Class::Independent);

        assert!(age.is_some_and(|hours| (1..100).contains(&hours)), "{cores} cores: {age:?} hours");
    }
}

#[test]
fn fewest_and_smallest_vms_move_aside() {
    let mut cluster = cluster(&[host(8, 80), host(8, 80), host(5, 80)]);
    let at = |cluster: &mut Cluster, vm: u32, to: u32, cores: u32| {
        let wanted = spec(cores, cores, Class::Default);
        let shares = vec![crate::Share::new(HostId(to), wanted.needs)];
        let rule = Rule::BestFit;
        let found = Decision { shares, rule, rejected: vec![], rejected_count: 0, basis: vec![] };
        run(cluster, vm, wanted, &found);
    };
    for (vm, to, cores) in [(0, 0, 2), (1, 0, 2), (2, 0, 1), (3, 1, 2), (4, 1, 3), (5, 2, 3)] {
        at(&mut cluster, vm, to, cores);
    }

    // Three are free on the first two hosts; five are wanted; two fit on the last one.
    let room_for = |policy: &Lifetime, cores, waited, blocks| {
        let (spec, allows) = (spec(cores, cores, Class::Shared), |_: &[Move]| true);
        policy.make_room(&cluster, &RoomFor { spec: &spec, waited, blocks, allows: &allows })
    };
    let eager = Lifetime::azure().with_eager_room();
    let room = |cores| room_for(&eager, cores, HOUR, false);
    let moves = room(5);
    assert_eq!(moved(&moves), [(1, 2, 2)], "of hosts alike the last one");
    assert_eq!(moves[0].vm, VmId(3), "not the one of three cores");
    let all = room(8);
    assert_eq!(moved(&all), [(1, 0, 3), (1, 2, 2)], "a host is empty then");
    assert_eq!(room(9), [], "no host is so large");
    assert_eq!(room_for(&eager, 5, 0, true), [], "it has just come");
    assert!(!Lifetime { room: None, ..eager.clone() }.makes_room());

    let ours = Lifetime::azure();
    assert_eq!(room_for(&ours, 5, HOUR, true), moves);
    assert_eq!(room_for(&ours, 5, HOUR, false), [], "others may pass it still");
    let one = Lifetime { room: Some(Room { moved_max: 1, ..Room::SPARING }), ..ours.clone() };
    assert_eq!(room_for(&one, 8, HOUR, true), [], "two would have to move");
    assert_eq!(room_for(&ours, 8, HOUR, true).len(), 2);

    // What may not be made is not proposed, and another VM moves.
    let (spec, allows) = (spec(5, 5, Class::Shared), |moves: &[Move]| moves[0].vm != VmId(3));
    let asks = RoomFor { spec: &spec, waited: HOUR, blocks: true, allows: &allows };
    assert_eq!(moved(&ours.make_room(&cluster, &asks)), [(0, 2, 2)]);
}

#[test]
fn what_does_not_wait_is_not_worth_a_move() {
    let mut cluster = split_in_two();
    cluster.release(VmId(1));
    let policy = Lifetime::azure();
    let counter = |waited_us| FaultCounter { by: HostId(0), of: HostId(1), waited_us };
    let asked = |waited_us| {
        let stall = Stall::measured(&[counter(waited_us)], 4, 1_000_000, 100);
        let facts = Facts { stall: stall.as_ref(), ..facts(OLD) };
        moved(&policy.consolidate(&cluster, VmId(9), &facts))
    };

    assert_eq!(asked(100), []);
    assert_eq!(asked(400_000), [(0, 1, 2)]);
    let dear = Lifetime {
        prices: Prices { factor_percent: 100_000_000, ..policy.prices },
        ..policy.clone()
    };
    assert_eq!(dear.consolidate(&cluster, VmId(9), &facts(OLD)), []);
}

#[test]
fn ours_gathers_a_vm_on_a_host_where_it_is_not_yet() {
    let mut cluster = split_in_two();
    cluster.add_host(&host(4, 400)).unwrap();

    let moves = Lifetime::azure().consolidate(&cluster, VmId(9), &facts(OLD));

    assert_eq!(moved(&moves), [(0, 2, 2), (1, 2, 2)]);
    assert_eq!(fragbff(Spread::MinNodes).consolidate(&cluster, VmId(9), &facts(OLD)), []);
}

#[test]
fn ours_keeps_a_vm_on_one_node_and_its_last_slice_tight() {
    let two = |a, b| HostSpec::new(vec![Resources::new(a, 50), Resources::new(b, 50)]);
    let found =
        Lifetime::azure().place(&cluster(&[two(4, 4), two(8, 0)]), &spec(6, 6, Class::Shared));
    let found = found.unwrap();
    assert_eq!(shares(&found), [(1, 6, 6)]);
    assert_eq!(found.rejected, [(HostId(0), WhyNot::SpansNodes)]);

    let nowhere = cluster(&[two(4, 4), two(7, 5)]);
    let found = Lifetime::azure().place(&nowhere, &spec(8, 8, Class::Default)).unwrap();
    assert_eq!(
        shares(&found),
        [(0, 8, 8)],
        "it lies over two nodes of one host, not over two hosts"
    );

    let holes = cluster(&[6, 5, 3, 2].map(|cores| host(cores, 100)));
    let wanted = spec(8, 8, Class::Default);
    assert_eq!(shares(&Lifetime::azure().place(&holes, &wanted).unwrap()), [(0, 6, 6), (3, 2, 2)]);
    let theirs = fragbff(Spread::MinNodes).place(&holes, &wanted).unwrap();
    assert_eq!(shares(&theirs), [(0, 6, 6), (1, 2, 2)]);
}
