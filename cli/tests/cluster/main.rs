//! A cluster of two hosts that are none: an agent each, one orchestrator, and a VM of a slice at both, on this machine's KVM. All of it
//! is done as an operator does it, by commands.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the guest of another test, of which this one uses its image")]
#[path = "../../../vmm/tests/kvm_two_slices/guest.rs"]
mod guest;

mod kills;
mod points;
mod rig;

use needs::Need;
use rig::{FILE, Lab, hosts_of, until};

#[test]
fn vm_of_two_hosts_is_applied_explained_and_deleted_while_orchestrators_are_killed() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    // Two vCPUs are on two hosts.
    let mut lab = Lab::new("tsrc", &[("a", 1), ("b", 1)]);
    let file = lab.file("web.toml", FILE);
    let larger = lab.file("larger.toml", &FILE.replace("\"32M\"", "\"64M\""));
    ["a", "b"].iter().for_each(|host| lab.register(host, 1));
    assert_eq!(lab.status(&["vm", "plan", "-f", &file]), Some(1), "something would be done");
    let watch = lab.watch();
    let applied = lab.json(&["vm", "apply", "-f", &file]);
    let uid = applied[0]["uid"].as_str().unwrap().to_owned();

    // In the middle of its start.
    lab.another_orchestrator();
    let running = lab.json(&["vm", "apply", "--wait", "-f", &file]);
    let vm = &running[0];
    assert_eq!((&vm["state"], vm["uid"].as_str()), (&"RUNNING".into(), Some(&uid[..])), "{vm}");
    assert_eq!(hosts_of(vm), ["a", "b"]);
    watch.waits_for("web", "RUNNING");
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 1), "{}", lab.said());
    let explained = lab.ok(&["vm", "explain", "web"]);
    assert!(explained.contains("no host has room for all of it"), "{explained}");
    assert_eq!(lab.status(&["vm", "plan", "-f", &file]), Some(0), "nothing is to be done");
    let other = lab.run(&["vm", "apply", "-f", &larger]);
    let error = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(2), "it is another VM");
    assert!(error.contains("another VM than the file says, in spec.memory:"), "{error}");
    let told = lab.file("told.toml", &lab.ok(&["vm", "get", "web", "--as-file", "toml"]));
    assert_eq!(lab.status(&["vm", "plan", "-f", &told]), Some(0), "it is what is wanted");
    assert_eq!(lab.status(&["vm", "get", "other"]), Some(2));
    assert_eq!(lab.ok(&["vm", "list", "-o", "name"]), "web\n");
    assert!(lab.ok(&["vm", "get", "web", "-o", "yaml"]).contains("RUNNING"));

    // While it runs, and in the middle of its end.
    lab.another_orchestrator();
    assert_eq!(lab.json(&["vm", "get", "web"])[0]["life"], vm["life"]);
    let halted = lab.json(&["vm", "halt", "--wait", "web"]);
    assert_eq!((&halted[0]["state"], &halted[0]["life"]), (&"STOPPED".into(), &2.into()));
    let runs = lab.json(&["vm", "run", "--wait", "web"]);
    assert_eq!((&runs[0]["state"], &runs[0]["uid"]), (&"RUNNING".into(), &vm["uid"]));
    assert_eq!(lab.status(&["vm", "halt", "other"]), Some(2));
    lab.ok(&["vm", "delete", "web"]);
    lab.another_orchestrator();
    lab.ok(&["op", "wait", &format!("delete-{uid}")]);
    assert_eq!(lab.ok(&["vm", "list", "-o", "name"]), "\n");
    // It follows whoever leads.
    watch.waits_for("web", "DELETED");
    lab.until_nothing_is_left();
    lab.ok(&["host", "drain", "a"]);
    lab.ok(&["host", "remove", "a"]);
    assert_eq!(lab.ok(&["host", "list", "-o", "name"]), "b\n");
}

#[test]
fn slices_come_together_by_themselves_while_orchestrators_are_killed() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let mut lab = Lab::new("tsrd", &[("a", 2), ("b", 1), ("c", 1)]);
    let other = FILE.replace("web", "other").replace("vcpus = 2", "vcpus = 1");
    let (web, other) = (lab.file("web.toml", FILE), lab.file("other.toml", &other));
    // One VM has half of the first host, so the next one is on both.
    lab.register("a", 2);
    lab.ok(&["vm", "apply", "--wait", "-f", &other]);
    lab.register("b", 1);
    lab.ok(&["vm", "apply", "--wait", "-f", &web]);
    let before = lab.json(&["vm", "get", "web"]).take();
    let vm = &before[0];
    assert_eq!(hosts_of(vm), ["a", "b"], "{vm}");
    assert_eq!(vm["placement"][0]["host"], "a", "{vm}");
    assert!(lab.ok(&["vm", "explain", "web"]).contains("slice 0 stays on a"));
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (2, 1), "{}", lab.said());

    // The second host is drained: what is there goes to a third one, where the VM has had nothing.
    lab.register("c", 1);
    lab.ok(&["host", "drain", "b"]);
    let drained = lab.json(&["vm", "get", "web"]).take();
    assert_eq!(hosts_of(&drained[0]), ["a", "c"], "{drained}\n{}", lab.said());
    assert_eq!((&drained[0]["state"], &drained[0]["life"]), (&"RUNNING".into(), &vm["life"]));

    // The other one ends: there is room for all of it on the first host.
    lab.ok(&["vm", "delete", "other"]);
    lab.another_orchestrator();
    until("it is on one host", &lab, || {
        let vm = &lab.json(&["vm", "get", "web"])[0];
        hosts_of(vm) == ["a"] && vm["operation"].as_str().is_none_or(str::is_empty)
    });
    lab.another_orchestrator();
    let after = lab.json(&["vm", "get", "web"]).take();
    let now = &after[0];
    assert_eq!((&now["state"], &now["life"]), (&"RUNNING".into(), &vm["life"]), "{now}");
    let explained = lab.ok(&["vm", "explain", "web"]);
    assert!(explained.contains("on fewer hosts"), "{explained}");
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 0), "{}", lab.said());
    until("what it had on the other hosts is free", &lab, || {
        ["b", "c"].iter().all(|host| {
            let host = &lab.json(&["host", "get", host])[0];
            host["state"] == "UP" && host["free"] == host["capacity"]
        })
    });
    let drained = lab.run(&["host", "drain", "a", "--timeout", "1"]);
    let error = String::from_utf8_lossy(&drained.stderr).into_owned();
    assert!(!drained.status.success() && error.contains("its first slice stays"), "{error}");
    lab.ok(&["vm", "delete", "web"]);
    lab.until_nothing_is_left();
}

#[test]
fn vm_that_lost_a_slice_goes_on_from_its_checkpoint() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let mut lab = Lab::new("tsrk", &[("a", 1), ("b", 1)]);
    ["a", "b"].iter().for_each(|host| lab.register(host, 1));
    let text = format!("{FILE}checkpoint = {{ every = \"10s\", keep = 1 }}\n");
    let file = lab.file("web.toml", &text);
    lab.ok(&["vm", "apply", "--wait", "-f", &file]);
    until("it is written down", &lab, || !lab.checkpoints().is_empty());
    lab.another_orchestrator();
    let first = lab.checkpoints();
    until("it is written down again, and the first one is deleted", &lab, || {
        let now = lab.checkpoints();
        now.len() == 1 && now != first
    });
    for (role, life) in [("companion", 2), ("bootstrap", 3)] {
        let written = lab.checkpoints();
        lab.kill_one(role);
        lab.another_orchestrator();
        let is_back = || {
            let vm = &lab.json(&["vm", "get", "web"])[0];
            vm["state"] == "RUNNING" && vm["life"] == life
        };
        until("it is back", &lab, is_back);
        let explained = lab.ok(&["vm", "explain", "web"]);
        let from = written[0].rsplit('-').next().unwrap();
        assert!(explained.contains("gone on from checkpoint"), "{explained}");
        assert!(explained.contains(from) || lab.checkpoints() != written, "{explained}");
        assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 1), "{}", lab.said());
        until("it is written down again", &lab, || {
            lab.checkpoints().len() == 1 && lab.checkpoints() != written
        });
    }
    lab.ok(&["vm", "delete", "web"]);
    until("nothing is left", &lab, || {
        lab.slices("bootstrap") + lab.slices("companion") == 0 && lab.checkpoints().is_empty()
    });
}

/// As if a host were cut off: its agent is gone, and its slice hears no more of the others when they are fenced.
#[test]
fn vm_goes_on_elsewhere_when_a_host_says_nothing_any_more() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let hosts = ["a", "b", "c"];
    let mut lab = Lab::new("tsrh", &hosts.map(|host| (host, 1)));
    hosts.iter().for_each(|host| lab.register(host, 1));
    let text = format!("{FILE}checkpoint = {{ every = \"10s\", keep = 1 }}\n");
    lab.ok(&["vm", "apply", "--wait", "-f", &lab.file("web.toml", &text)]);
    until("it is written down", &lab, || !lab.checkpoints().is_empty());
    let before = lab.json(&["vm", "get", "web"]).take();
    let lost = before[0]["placement"][1]["host"].as_str().unwrap();
    // All that runs there dies with its agent.
    lab.kill_agent(hosts.iter().position(|host| *host == lost).unwrap());
    lab.kill_one("companion");
    until("it goes on without that host", &lab, || {
        let vm = &lab.json(&["vm", "get", "web"])[0];
        vm["state"] == "RUNNING" && vm["life"] == 2
    });
    let after = lab.json(&["vm", "get", "web"]).take();
    assert!(!hosts_of(&after[0]).contains(&lost.to_owned()), "{after}");
    assert!(lab.ok(&["vm", "explain", "web"]).contains("gone on from checkpoint"));
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (1, 1), "{}", lab.said());
    lab.ok(&["vm", "delete", "web"]);
}

/// Whoever stops agents, or cuts them off, ends no VM: neither one of one host nor one of several.
#[test]
fn vms_outlive_agents_that_are_away_for_longer_than_their_leases() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let hosts = ["a", "b", "c"];
    let mut lab = Lab::new("tsra", &hosts.map(|host| (host, 1)));
    hosts.iter().for_each(|host| lab.register(host, 1));
    let one = FILE.replace("\"web\"", "\"one\"").replace("vcpus = 2", "vcpus = 1");
    for (name, text) in [("web", FILE), ("one", &one)] {
        lab.ok(&["vm", "apply", "--wait", "-f", &lab.file(&format!("{name}.toml"), text)]);
    }
    let vms = |lab: &Lab| lab.json(&["vm", "list"]).as_array().unwrap().clone();
    let are = |lab: &Lab, state: &str| vms(lab).iter().all(|vm| vm["state"] == state);
    let down = |lab: &Lab| {
        let hosts = lab.json(&["host", "list"]);
        hosts.as_array().unwrap().iter().filter(|host| host["state"] == "DOWN").count()
    };
    (0..3).for_each(|host| lab.kill_agent(host));
    until("nothing is heard of any VM", &lab, || down(&lab) == 3 && are(&lab, "LOST"));
    let told = lab.ok(&["vm", "get", "one"]);
    assert!(told.contains("it is waited for"), "{told}");
    (0..3).for_each(|host| lab.begin_agent(host));
    until("they have run on", &lab, || down(&lab) == 0 && are(&lab, "RUNNING"));

    let web = lab.json(&["vm", "get", "web"]).take();
    let silent = web[0]["placement"][1]["host"].as_str().unwrap();
    lab.kill_agent(hosts.iter().position(|host| *host == silent).unwrap());
    until("a host is down", &lab, || down(&lab) == 1);
    let why = lab.ok(&["vm", "explain", "web"]);
    assert!(why.contains(&format!("nothing is heard of the agent of {silent}")), "{why}");
    lab.another_orchestrator();
    until("the next one finds it down", &lab, || down(&lab) == 1);
    let still = lab.json(&["vm", "get", "web"]).take();
    assert_eq!((&still[0]["state"], &still[0]["life"]), (&"RUNNING".into(), &1.into()));
    lab.begin_agent(hosts.iter().position(|host| *host == silent).unwrap());
    until("it is up", &lab, || down(&lab) == 0);
    assert!(vms(&lab).iter().all(|vm| vm["life"] == 1), "{:?}", vms(&lab));
    assert_eq!((lab.slices("bootstrap"), lab.slices("companion")), (2, 1), "{}", lab.said());
    ["web", "one"].iter().for_each(|vm| drop(lab.ok(&["vm", "delete", vm])));
    lab.until_nothing_is_left();
}
