//! Slices of VMs that run go to other hosts.

use super::Cluster;
use super::support::{Host, Mood, desired, name, secret};
use orchestrator::decide::{Ask, Call, HostStanding};
use state::{Name, RunStrategy, Uid, Verb, VmState};

/// A VM of 4 vCPUs on a (3) and b (1), beside another one that had kept it from a alone and ends now.
fn split(cluster: &mut Cluster) {
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    cluster.ask(Ask::Delete { name: name("other"), etag: None }).unwrap();
}

fn cores(cluster: &Cluster, host: &str) -> u16 {
    let slices = cluster.hosts[&name(host)].slices.values();
    slices.filter(|slice| slice.ended.is_none()).map(|slice| slice.cores).sum()
}

fn free(cluster: &Cluster, host: &str) -> u32 {
    cluster.machine.host(&name(host)).unwrap().free.cores
}

fn why(cluster: &Cluster, vm: &str) -> String {
    cluster.machine.why(&name(vm)).unwrap().why
}

#[test]
fn slices_come_together_when_room_is_free() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    split(&mut cluster);
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 1, "it has run on");
    assert!(why(&cluster, "web").contains("fewer hosts"), "{}", why(&cluster, "web"));
    assert_eq!((cores(&cluster, "a"), cores(&cluster, "b")), (4, 0));
    assert_eq!((free(&cluster, "a"), free(&cluster, "b")), (2, 2));
    // Room first, then the VM, and what the slice had is free when its process has ended.
    let word = |call: &Call| match call {
        Call::Resize { .. } => Some("resize"),
        Call::Bring { slice: 1, to: 0, .. } => Some("bring"),
        Call::Where { .. } => Some("where"),
        Call::End { .. } => Some("end"),
        _ => None,
    };
    let words: Vec<_> = cluster.calls.iter().filter_map(|(_, call)| word(call)).collect();
    assert_eq!(words, ["resize", "bring", "where", "end"]);
    cluster.restart();
    cluster.pass(3);
    assert_eq!(cluster.state("web"), VmState::Running, "another leader knows where it is");
    assert_eq!((free(&cluster, "a"), free(&cluster, "b")), (2, 2));

    // The host that it has left is lost. Nothing of it runs there, so another life does not wait for it.
    cluster.silent.push(name("b"));
    cluster.pass(15);
    for slice in cluster.hosts.get_mut(&name("a")).unwrap().slices.values_mut() {
        slice.ended.get_or_insert(Some(1));
    }
    cluster.pass(5);
    assert_eq!(cluster.machine.host(&name("b")).unwrap().standing, HostStanding::Down);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 2);
    cluster.silent.clear();
    cluster.pass(3);
    assert_eq!(cores(&cluster, "b"), 0);

    // What is left of the slice on b is forgotten with the VM.
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(3);
    assert!(cluster.hosts.values().all(|host| host.slices.is_empty()), "{:?}", cluster.hosts);
}

#[test]
fn move_that_the_vm_refuses_is_undone_and_said() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::Refuses;
    split(&mut cluster);
    cluster.pass(60);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert!(why(&cluster, "web").contains("it has stayed where it was: no"), "and why");
    assert!(why(&cluster, "web").contains("slice 0 stays on a"), "{}", why(&cluster, "web"));
    assert_eq!((cores(&cluster, "a"), cores(&cluster, "b")), (3, 1), "room is given back");
    assert_eq!((free(&cluster, "a"), free(&cluster, "b")), (3, 1));
    // After 0, 5, 15 and 35 seconds, and in all as often as a VM moves in an hour.
    let tries = |cluster: &Cluster| {
        let brings = |(_, call): &&(Name, Call)| matches!(call, Call::Bring { .. });
        cluster.calls.iter().filter(brings).count()
    };
    assert_eq!(tries(&cluster), 4);
    cluster.pass(3000);
    assert_eq!(tries(&cluster), 8);
}

#[test]
fn move_that_was_done_in_part_goes_on() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::Partly;
    split(&mut cluster);
    cluster.pass(6);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    assert_eq!((cores(&cluster, "a"), cores(&cluster, "b")), (4, 0));
}

#[test]
fn move_is_not_made_where_its_host_has_no_room() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    split(&mut cluster);
    cluster.pass(1);
    let mut sick = Cluster::new(&[("a", 6), ("b", 2)]);
    sick.create("other", 3, RunStrategy::Always);
    sick.create("web", 4, RunStrategy::Always);
    sick.hosts.get_mut(&name("a")).unwrap().is_sick = true;
    sick.ask(Ask::Delete { name: name("other"), etag: None }).unwrap();
    sick.pass(3);
    assert_eq!(sick.places("web").len(), 2);
    assert!(!sick.calls.iter().any(|(_, call)| matches!(call, Call::Bring { .. })));
    assert!(why(&sick, "web").contains("NO_CAPACITY"), "{}", why(&sick, "web"));
}

/// At each call of a move: the leader is dropped there, and another one goes on; or the VM is to end, or a host of it is lost.
#[test]
fn move_goes_on_or_is_over_whatever_happens_at_each_of_its_steps() {
    for (step, end) in
        (0..=4).flat_map(|step| ["restart", "delete", "halt", "lose"].map(|end| (step, end)))
    {
        for lost in ["a", "b"] {
            let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
            split(&mut cluster);
            (cluster.held, cluster.made) = (Some(step), 0);
            cluster.pass(1);
            let verb = cluster.machine.going_on(&name("web")).map(|it| it.verb);
            assert_eq!(verb, Some(Verb::Move), "{step} {end}");
            match end {
                "restart" => cluster.restart(),
                "delete" => {
                    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
                }
                "halt" => {
                    let run = RunStrategy::Halted;
                    cluster.ask(Ask::Update { name: name("web"), run, etag: None }).unwrap();
                }
                _ => {
                    cluster.silent.push(name(lost));
                    cluster.pass(30);
                }
            }
            cluster.silent.clear();
            cluster.held = None;
            cluster.pass(30);
            let (a, b) = (cores(&cluster, "a"), cores(&cluster, "b"));
            match end {
                "delete" | "halt" => assert_eq!((a, b), (0, 0), "{step} {end}"),
                "restart" => {
                    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)], "{step}");
                    assert_eq!((a, b), (4, 0), "{step}");
                }
                _ => {
                    assert_eq!(cluster.state("web"), VmState::Running, "{step} {lost}");
                    assert_eq!((cluster.bootstraps(), a + b), (1, 4), "{step} {lost}");
                }
            }
            let ledger = free(&cluster, "a") + free(&cluster, "b");
            assert_eq!(ledger, 8 - u32::from(a + b), "{step} {end} {lost}");
        }
    }
}

#[test]
fn drained_host_gives_away_what_can_move_and_says_what_stays() {
    let mut cluster = Cluster::new(&[("a", 5), ("b", 3)]);
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    assert_eq!(cluster.places("other"), [("b".to_owned(), 3)], "the best fit");
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(3);
    let stays = cluster.machine.what_stays(&name("b"));
    assert!(stays[0].1.contains("its first slice stays"), "{stays:?}");
    assert!(why(&cluster, "other").contains("slice 0 stays on b"), "{}", why(&cluster, "other"));
    assert!(!cluster.calls.iter().any(|(_, call)| matches!(call, Call::Resize { .. })));
    assert_eq!(cluster.machine.what_stays(&name("a")), [], "nobody drains it");

    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(3);
    let stays = cluster.machine.what_stays(&name("b"));
    assert_eq!(stays, [(name("web"), "no other host has room for slice 1".to_owned())]);
    cluster.restart();
    assert!(cluster.machine.host(&name("b")).unwrap().host.desired.draining);
    cluster.ask(Ask::Delete { name: name("other"), etag: None }).unwrap();
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    assert_eq!(cluster.machine.host(&name("b")).unwrap().vms, []);
    cluster.ask(Ask::Cordon { name: name("b"), cordoned: false }).unwrap();
    cluster.create("next", 2, RunStrategy::Always);
    assert_eq!(cluster.state("next"), VmState::Running);
}

/// Whatever comes together at one moment: what it writes at once is bounded (`commit` looks).
#[test]
fn commits_of_many_vms_are_bounded() {
    let hosts: Vec<(String, u16)> = (0..40).map(|number| (format!("h{number}"), 5)).collect();
    let hosts: Vec<(&str, u16)> = hosts.iter().map(|(host, cores)| (&host[..], *cores)).collect();
    let mut cluster = Cluster::new(&hosts);
    let create = |cluster: &mut Cluster, number: u16, vcpus: u16| {
        let (name, uid) = (name(&format!("v{number}")), Uid::new(u128::from(number)));
        let (secret, run) = (secret(&uid), RunStrategy::Always);
        let desired = Box::new(desired(vcpus, u64::from(vcpus) * 1024, run));
        cluster.ask(Ask::Create { name, uid, secret, desired, plan: None }).unwrap();
    };
    (0..40).for_each(|number| create(&mut cluster, number, 3));
    // Two cores of each host are left: these are on two hosts.
    (40..66).for_each(|number| create(&mut cluster, number, 3));
    // All at once: hosts are lost, and come back; VMs of before end.
    cluster.silent = cluster.hosts.keys().take(20).cloned().collect();
    cluster.pass(15);
    cluster.silent.clear();
    cluster.pass(30);
    for number in 0..40 {
        let vm = name(&format!("v{number}"));
        cluster.ask(Ask::Delete { name: vm, etag: None }).unwrap();
    }
    cluster.pass(60);
    cluster.restart();
    cluster.pass(60);
    let running = cluster.machine.standing().running;
    assert_eq!(running, 26);
    let moved = cluster.calls.iter().filter(|(_, call)| matches!(call, Call::Bring { .. }));
    assert!(moved.count() > 0, "some have come together");
}

/// A VM of 3 vCPUs on a (2) and b (1); then there is c, and b is drained.
fn drained() -> Cluster {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 2)]);
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    cluster.hosts.insert(name("c"), Host::named("c", 2, 65536));
    let agent = "https://c:7000".to_owned();
    cluster.ask(Ask::Register { name: name("c"), agent }).unwrap();
    cluster.pass(1);
    cluster
}

#[test]
fn slice_of_a_drained_host_goes_to_one_where_its_vm_has_none() {
    let mut cluster = drained();
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("c".to_owned(), 1)]);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 1, "it has run on");
    assert_eq!(["a", "b", "c"].map(|host| cores(&cluster, host)), [2, 0, 1]);
    assert_eq!(["a", "b", "c"].map(|host| free(&cluster, host)), [0, 2, 1]);
    // Back, as one more slice: its number was never there before.
    cluster.ask(Ask::Cordon { name: name("b"), cordoned: false }).unwrap();
    cluster.ask(Ask::Drain { name: name("c") }).unwrap();
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    cluster.restart();
    cluster.pass(3);
    assert_eq!(cluster.state("web"), VmState::Running);
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(3);
    assert!(cluster.hosts.values().all(|host| host.slices.is_empty()), "{:?}", cluster.hosts);
}

#[test]
fn newcomer_that_cannot_join_is_ended_and_its_room_given_back() {
    for mood in [Mood::RefusesToJoin, Mood::Refuses] {
        let mut cluster = drained();
        cluster.hosts.get_mut(&name("a")).unwrap().mood = mood;
        cluster.ask(Ask::Drain { name: name("b") }).unwrap();
        cluster.pass(40);
        assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(["a", "b", "c"].map(|host| cores(&cluster, host)), [2, 1, 0], "{mood:?}");
        assert_eq!(["a", "b", "c"].map(|host| free(&cluster, host)), [0, 1, 2]);
        assert!(cluster.hosts.values().all(|host| host.kept.is_empty()));
        assert!(why(&cluster, "web").contains("it has stayed where it was"));
        cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
        cluster.pass(3);
        assert!(cluster.hosts.values().all(|host| host.slices.is_empty()), "{mood:?}");
    }
}

#[test]
fn newcomer_joins_or_is_over_whatever_happens_at_each_step() {
    let ends = ["restart", "delete", "lose a", "lose b", "lose c"];
    for (step, end) in (0..=6).flat_map(|step| ends.map(|end| (step, end))) {
        let mut cluster = drained();
        (cluster.held, cluster.made) = (Some(step), 0);
        cluster.ask(Ask::Drain { name: name("b") }).unwrap();
        cluster.pass(1);
        match end {
            "restart" => cluster.restart(),
            "delete" => {
                cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
            }
            _ => {
                cluster.silent.push(name(&end[5..]));
                cluster.pass(30);
            }
        }
        cluster.silent.clear();
        cluster.held = None;
        cluster.pass(60);
        let used: u16 = ["a", "b", "c"].map(|host| cores(&cluster, host)).iter().sum();
        let free: u32 = ["a", "b", "c"].map(|host| free(&cluster, host)).iter().sum();
        assert_eq!(free, 6 - u32::from(used), "{step} {end}");
        if end == "delete" {
            assert_eq!(used, 0, "{step}");
            continue;
        }
        assert_eq!((cluster.state("web"), used), (VmState::Running, 3), "{step} {end}");
        assert_eq!(cluster.bootstraps(), 1, "{step} {end}");
        assert!(cluster.places("web").iter().all(|(host, _)| host != "b"), "{step} {end}");
    }
}

/// Its operator has been told that nothing comes any more.
#[test]
fn queued_move_does_not_go_to_a_host_that_takes_nothing_by_now() {
    for draining in [true, false] {
        let mut cluster = Cluster::new(&[("b", 7)]);
        let register = |cluster: &mut Cluster, host: &str, cores: u16| {
            cluster.hosts.insert(name(host), Host::named(host, cores, 65536));
            let agent = format!("https://{host}:7000");
            cluster.ask(Ask::Register { name: name(host), agent }).unwrap();
            cluster.pass(1);
        };
        for vm in ["k", "l", "m", "n", "o", "p", "q"] {
            register(&mut cluster, &format!("a-{vm}"), 8);
            cluster.create(vm, 9, RunStrategy::Always);
            let places = cluster.places(vm);
            assert_eq!(places.last(), Some(&("b".to_owned(), 1)), "{}", why(&cluster, vm));
        }
        register(&mut cluster, "c", 7);
        // As many as may go on at a time begin, and are not answered.
        (cluster.held, cluster.made) = (Some(0), 0);
        cluster.ask(Ask::Drain { name: name("b") }).unwrap();
        cluster.pass(1);
        let begun = cluster.machine.host(&name("c")).unwrap().vms.len();
        assert!((1..7).contains(&begun), "{begun} move at a time");
        let name = name("c");
        let ask = if draining { Ask::Drain { name } } else { Ask::Cordon { name, cordoned: true } };
        cluster.ask(ask).unwrap();
        cluster.held = None;
        cluster.pass(120);
        assert_eq!(on_c(&cluster), begun, "draining: {draining}");
        assert_eq!(free(&cluster, "c"), 7 - u32::try_from(begun).unwrap(), "room is given back");
    }
}

/// Slices that run on c.
fn on_c(cluster: &Cluster) -> usize {
    cluster.hosts[&name("c")].slices.values().filter(|slice| slice.ended.is_none()).count()
}

#[test]
fn newcomer_whose_host_was_lost_is_ended_when_it_is_back() {
    let mut cluster = drained();
    cluster.unheard = Some(name("c"));
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(1);
    assert_eq!(on_c(&cluster), 1, "it runs, and nobody has heard so");
    cluster.silent.push(name("c"));
    cluster.pass(15);
    assert!(
        why(&cluster, "web").contains("it has stayed where it was"),
        "{}",
        why(&cluster, "web")
    );
    assert_eq!(on_c(&cluster), 1);
    // Nothing moves there again meanwhile.
    cluster.ask(Ask::Cordon { name: name("c"), cordoned: true }).unwrap();
    cluster.silent.clear();
    cluster.unheard = None;
    cluster.pass(2);
    assert_eq!((on_c(&cluster), cluster.state("web")), (0, VmState::Running));
    let ends =
        |(_, call): &&(Name, Call)| matches!(call, Call::End { target } if target.slice == 2);
    assert_eq!(cluster.calls.iter().filter(ends).count(), 1, "{:?}", cluster.calls);
    cluster.ask(Ask::Cordon { name: name("c"), cordoned: false }).unwrap();
    cluster.pass(60);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("c".to_owned(), 1)], "it has moved");
    assert_eq!((on_c(&cluster), cores(&cluster, "c"), free(&cluster, "c")), (1, 1, 1));
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 1, "it has run on");
}

/// The order was behind another one, and is carried out after its agent has said that there is no such slice.
#[test]
fn newcomer_that_begins_late_is_ended() {
    let mut cluster = drained();
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::RefusesToJoin;
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(2);
    assert_eq!(on_c(&cluster), 0);
    for slice in cluster.hosts.get_mut(&name("c")).unwrap().slices.values_mut() {
        slice.ended = None;
    }
    assert_eq!(on_c(&cluster), 1);
    cluster.pass(1);
    assert_eq!((on_c(&cluster), cluster.state("web")), (0, VmState::Running));
}
