//! Hosts that cannot run a VM, or any.

use super::support::{POLICY, desired, name};
use super::{Ask, Cluster, Name};
use orchestrator::decide::Call;
use state::{RunStrategy, VmDesired, VmState};

fn why(cluster: &Cluster, vm: &str) -> String {
    cluster.machine.why(&name(vm)).unwrap().why
}

fn orders(cluster: &Cluster, host: &Name) -> usize {
    let is_order = |(to, call): &&(Name, Call)| to == host && matches!(call, Call::Reserve { .. });
    cluster.calls.iter().filter(is_order).count()
}

#[test]
fn host_where_a_start_has_failed_is_passed_by() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
    let a = name("a");
    cluster.hosts.get_mut(&a).unwrap().is_sick = true;
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(orders(&cluster, &a), 1, "the best fit");
    cluster.pass(10);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.places("web"), [("b".to_owned(), 3)]);
    assert_eq!(orders(&cluster, &a), 1);
    // Others may go there.
    cluster.hosts.get_mut(&a).unwrap().is_sick = false;
    cluster.create("next", 3, RunStrategy::Always);
    assert_eq!(cluster.places("next"), [("a".to_owned(), 3)]);
}

#[test]
fn host_where_a_start_has_failed_is_tried_again_if_there_is_no_other() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 2)]);
    let a = name("a");
    cluster.hosts.get_mut(&a).unwrap().is_sick = true;
    cluster.create("web", 3, RunStrategy::Always);
    let mut tried = vec![orders(&cluster, &a)];
    for seconds in [6, 6, 10, 20, 40] {
        cluster.pass(seconds);
        tried.push(orders(&cluster, &a));
    }
    assert_ne!(cluster.state("web"), VmState::Running);
    assert_eq!(tried, [1, 2, 3, 4, 5, 6], "longer rests");
    cluster.hosts.get_mut(&a).unwrap().is_sick = false;
    cluster.pass(80);
    assert_eq!(cluster.state("web"), VmState::Running);
}

#[test]
fn nothing_is_placed_on_a_host_that_can_run_nothing() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
    let a = name("a");
    cluster.hosts.get_mut(&a).unwrap().lacks = Some("kvm: /dev/kvm: Permission denied");
    cluster.pass(2);
    let warning = cluster.machine.host(&a).unwrap().warning.unwrap();
    assert!(warning.contains("kvm: /dev/kvm: Permission denied"), "{warning}");
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("b".to_owned(), 3)]);
    // What runs there runs on.
    cluster.hosts.get_mut(&name("b")).unwrap().lacks = Some("userfaultfd: sysctl");
    cluster.pass(20);
    assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 1));
    cluster.create("next", 1, RunStrategy::Always);
    assert_eq!(cluster.state("next"), VmState::Waiting);
    cluster.hosts.get_mut(&a).unwrap().lacks = None;
    cluster.pass(5);
    assert_eq!(cluster.places("next"), [("a".to_owned(), 1)]);
}

#[test]
fn host_that_does_not_answer_says_why_and_what_it_lacks_is_told_once_it_does() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.silent.push(name("a"));
    cluster.pass(1);
    let warning = cluster.machine.host(&name("a")).unwrap().warning;
    assert_eq!(warning.as_deref(), Some("its agent does not answer: silent"));
    cluster.silent.clear();
    cluster.pass(1);
    assert_eq!(cluster.machine.host(&name("a")).unwrap().warning, None);
}

#[test]
fn checkpoints_that_fail_are_told_and_counted() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    let wanted = desired(1, 1024, RunStrategy::Always);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = super::support::Mood::CannotWrite;
    cluster.create_as("web", VmDesired { checkpoint: Some(POLICY), ..wanted });
    cluster.create("plain", 1, RunStrategy::Always);
    cluster.pass(25);
    let said = why(&cluster, "web");
    assert!(said.contains("it has no checkpoint yet"), "{said}");
    assert!(said.contains("no space is left"), "{said}");
    assert!(!why(&cluster, "plain").contains("checkpoint"));
    let uid = cluster.machine.vm(&name("web")).unwrap().uid.clone();
    let ages = cluster.machine.counts().checkpoints;
    assert_eq!(ages.into_iter().collect::<Vec<_>>(), [(uid, 25)], "since it runs");
    cluster.hosts.get_mut(&name("a")).unwrap().mood = super::support::Mood::Willing;
    cluster.pass(11);
    let said = why(&cluster, "web");
    assert!(said.contains("its newest checkpoint is") && !said.contains("failed"), "{said}");
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(3);
    assert!(cluster.machine.counts().checkpoints.is_empty());
}
