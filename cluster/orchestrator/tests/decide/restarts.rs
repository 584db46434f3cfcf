//! Guests that end as soon as they run, and what is forgotten of what was done.

use super::support::{desired, name, secret};
use super::{Ask, Cluster, Request};
use orchestrator::decide::Goal;
use state::{RunStrategy, Uid, VmState};

/// As many as are kept, and what comes at one moment.
const OPERATIONS_MAX: usize = 1024 + 8;

fn create(cluster: &mut Cluster, number: u16) {
    let (name, uid) = (name(&format!("v{number}")), Uid::new(u128::from(number) + 1));
    let secret = secret(&uid);
    let desired = Box::new(desired(1, 64, RunStrategy::Always));
    let ask = Ask::Create { name, uid, secret, desired, plan: None };
    cluster.ask(ask).unwrap();
}

/// All guests shut down, or panic.
fn end_all(cluster: &mut Cluster, status: u32) {
    for slice in cluster.hosts.values_mut().flat_map(|host| host.slices.values_mut()) {
        slice.ended.get_or_insert(Some(status));
    }
}

fn lives(cluster: &Cluster, vm: &str) -> u64 {
    cluster.machine.vm(&name(vm)).unwrap().life
}

#[test]
fn guests_that_end_as_soon_as_they_run_rest_longer_each_time() {
    let mut cluster = Cluster::new(&[("a", 200)]);
    (0..100).for_each(|number| create(&mut cluster, number));
    for second in 0..600 {
        cluster.is_unchecked = second % 20 != 0;
        cluster.pass(1);
        end_all(&mut cluster, [0, 4][second % 2]);
        assert!(cluster.machine.operations().count() <= OPERATIONS_MAX + 100, "they go on");
    }
    let most = (0..100).map(|number| lives(&cluster, &format!("v{number}"))).max().unwrap();
    assert!((6..12).contains(&most), "{most} lives in ten minutes");
    let over = cluster.machine.operations().filter(|it| it.result.is_some()).count();
    assert!(over <= OPERATIONS_MAX, "{over}");
    let why = &cluster.machine.vm(&name("v7")).unwrap().observed.why;
    assert!(why.contains("soon after it began"), "{why}");
    cluster.is_unchecked = true;
    // They end no more: all run, and after ten minutes one that ends is started again at once.
    cluster.pass(1300);
    assert_eq!(cluster.machine.standing().running, 100);
    let before = lives(&cluster, "v7");
    end_all(&mut cluster, 0);
    cluster.pass(20);
    assert_eq!((cluster.state("v7"), lives(&cluster, "v7")), (VmState::Running, before + 1));
}

#[test]
fn vm_that_rests_starts_at_once_when_its_user_says_so() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    create(&mut cluster, 1);
    for _ in 0..120 {
        end_all(&mut cluster, 0);
        cluster.pass(1);
    }
    assert_eq!(cluster.state("v1"), VmState::Waiting, "it rests");
    for run in [RunStrategy::Halted, RunStrategy::Always] {
        cluster.ask(Ask::Update { name: name("v1"), run, etag: None }).unwrap();
    }
    cluster.pass(1);
    assert_eq!(cluster.state("v1"), VmState::Running);
}

#[test]
fn ids_of_requests_are_forgotten_as_fast_as_they_come() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    create(&mut cluster, 1);
    let uid = Uid::new(2);
    cluster.is_unchecked = true;
    for number in 0..4200_u32 {
        let (id, content) = (Uid::new(u128::from(number)), "update".to_owned());
        let run = [RunStrategy::Always, RunStrategy::RerunOnFailure][number as usize % 2];
        let ask = Ask::Update { name: name("v1"), run, etag: None };
        cluster.ask_as(Some(Request { id, content }), ask).unwrap();
    }
    let asked = cluster.store.keys().filter(|key| key.starts_with("asked/")).count();
    assert_eq!(asked, 4096);
    assert!(!cluster.store.contains_key(&format!("asked/{}", Uid::new(0))), "the oldest are gone");
    assert!(cluster.machine.reached(&Goal::Created.name(&uid)).is_some());
    cluster.is_unchecked = false;
    // Those that are old go too.
    cluster.now.unix += 25 * 3600;
    cluster.pass(1);
    cluster.is_unchecked = true;
    cluster.pass(300);
    assert!(!cluster.store.keys().any(|key| key.starts_with("asked/")));
}
