//! Orchestrators over real stores, with hosts behind gRPC on UNIX sockets, called as users call them: what the wire, the store and
//! the clock add to `decide.rs`.

mod agent;
mod history;
mod leading;
mod moody;
mod orchestrator;
mod stuck;
#[path = "../support/mod.rs"]
mod support;

use agent::Door;
use control::longrunning::operation::Result as Outcome;
use control::longrunning::{CancelOperationRequest, GetOperationRequest, ListOperationsRequest};
use control::v1::cluster_client::ClusterClient;
use control::v1::cluster_vm::State;
use control::v1::watch_vms_response::Kind;
use control::v1::{
    CordonHostRequest, CreateVmRequest, ExplainVmRequest, GetClusterRequest, ListHostsRequest,
    ListVmsRequest, PlanVmRequest, RegisterHostRequest, RemoveHostRequest, RunStrategy,
    UncordonHostRequest, UpdateVmRequest, VmSpec, WatchVmsRequest, WatchVmsResponse,
};
use orchestrator::{Client, Folder, Running, id, reason, refused, vm};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use store::{Limits, MemoryStore, RedbStore};
use tokio::time::sleep;
use tonic::Streaming;

const LONG: Duration = Duration::from_secs(60);

/// On a store in memory.
fn on_memory(folder: &Folder, name: &str, lease: Duration, store: &MemoryStore) -> Running {
    let store = store.clone();
    Running::begin(&folder.0, name, lease, move || store, |_| std::future::ready(()))
}

/// On a file, which nobody else has at the time.
fn on_file(folder: &Folder, path: &Path) -> Running {
    let path = path.to_owned();
    let open = move || RedbStore::open(&path, Limits::default()).expect("the file");
    Running::begin(
        &folder.0,
        "it",
        LONG,
        open,
        |store: RedbStore| async move { store.close().await },
    )
}

async fn two_hosts(folder: &Folder, client: &mut Client) -> Vec<Door> {
    let mut doors = Vec::new();
    client.until_it_leads().await;
    for host in ["a", "b"] {
        let (door, agent) = agent::serve(&folder.0, host, 4);
        doors.push(door);
        client.register(host, &agent).await;
    }
    doors
}

/// Nothing runs, and no room is kept.
async fn until_nothing_is_left(doors: &[Door]) {
    for door in doors {
        while !door.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn vm_is_created_looked_at_stopped_started_and_deleted() {
    let folder = Folder::new();
    let running = on_memory(&folder, "it", LONG, &MemoryStore::default());
    let mut client = running.client().await;
    let doors = two_hosts(&folder, &mut client).await;
    let mut watch = client.vms.watch_vms(WatchVmsRequest::default()).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap().kind;
    assert!(matches!(first, Some(Kind::Bookmark(_))), "there is none yet: {first:?}");

    let plan = client.vms.plan_vm(PlanVmRequest { vm: Some(vm("web", 6)) }).await.unwrap();
    let plan = plan.into_inner();
    assert_eq!((plan.placement.len(), plan.unchanged), (2, false), "{plan:?}");
    let request = CreateVmRequest {
        vm: Some(vm("web", 6)),
        plan_token: plan.token.clone(),
        ..CreateVmRequest::default()
    };
    let checked = CreateVmRequest { validate_only: true, ..request.clone() };
    assert!(client.vms.create_vm(checked).await.unwrap().into_inner().done);
    assert_eq!(
        reason(&client.get("web").await.unwrap_err()),
        "VM_NOT_FOUND",
        "it was only checked"
    );
    let created = client.vms.create_vm(request).await.unwrap().into_inner();
    let done = client.wait(&created).await;
    assert!(matches!(done.result, Some(Outcome::Response(_))), "{done:?}");

    let known = client.get("web").await.unwrap();
    assert_eq!((known.state(), known.life), (State::Running, 1));
    assert_eq!(known.placement, plan.placement, "where it was planned");
    let explained = ExplainVmRequest { name: "vms/web".into() };
    let explained = client.vms.explain_vm(explained).await.unwrap().into_inner();
    assert!(!explained.why.is_empty() && explained.operation.is_none(), "{explained:?}");
    assert_eq!(explained.rejected.len(), 2, "neither host has room for another one: {explained:?}");
    let again = client.vms.plan_vm(PlanVmRequest { vm: Some(vm("web", 6)) }).await.unwrap();
    assert!(again.into_inner().unchanged);
    let listed = ListOperationsRequest::default();
    let listed = client.operations.list_operations(listed).await.unwrap().into_inner();
    assert_eq!(listed.operations.len(), 1, "its start: {listed:?}");
    let found = GetOperationRequest { name: listed.operations[0].name.clone() };
    assert!(client.operations.get_operation(found).await.unwrap().into_inner().done);
    let mut cluster = ClusterClient::new(client.channel.clone());
    let status = cluster.get_cluster(GetClusterRequest {}).await.unwrap().into_inner();
    assert_eq!((status.hosts_up, status.vms_running, status.vms_aggregate), (2, 1, 1));
    assert_eq!(&status.leader[..], "it");

    let stale = update("web", RunStrategy::Halted, "0000");
    assert_eq!(refused(client.vms.update_vm(stale).await), "ETAG_MISMATCH");
    client.vms.update_vm(update("web", RunStrategy::Halted, &known.etag)).await.unwrap();
    client.until("web", State::Stopped).await;
    until_nothing_is_left(&doors).await;
    client.vms.update_vm(update("web", RunStrategy::Always, "")).await.unwrap();
    let started = client.until("web", State::Running).await;
    assert_eq!((started.life, started.uid.clone()), (2, known.uid), "another life of the same VM");

    let deleted = client.delete("web", "").await.unwrap();
    let done = client.wait(&deleted).await;
    assert!(matches!(done.result, Some(Outcome::Response(_))), "{done:?}");
    assert_eq!(reason(&client.get("web").await.unwrap_err()), "VM_NOT_FOUND");
    until_nothing_is_left(&doors).await;
    let lost = client.wait(&created).await;
    assert!(matches!(lost.result, Some(Outcome::Error(_))), "it never runs again: {lost:?}");

    assert_lives_only_go_on(&mut watch).await;
    running.end();
}

/// All that was seen of the VM up to its deletion.
async fn assert_lives_only_go_on(watch: &mut Streaming<WatchVmsResponse>) {
    let mut seen = Vec::new();
    while seen.last() != Some(&None) {
        let next = watch.message().await.expect("it goes on").expect("it goes on");
        match next.kind.expect("something is said") {
            Kind::Vm(vm) => seen.push(Some((vm.life, vm.state()))),
            Kind::Deleted(name) => seen.push((name != "vms/web").then_some((0, State::Lost))),
            Kind::Bookmark(_) => {}
        }
    }
    for state in [(1, State::Running), (2, State::Running)] {
        assert!(seen.contains(&Some(state)), "{seen:?}");
    }
    let lives: Vec<u64> = seen.iter().flatten().map(|(life, _)| *life).collect();
    assert!(lives.is_sorted(), "it never goes back: {seen:?}");
}

fn update(name: &str, run: RunStrategy, etag: &str) -> UpdateVmRequest {
    let (name, etag) = (format!("vms/{name}"), etag.to_owned());
    UpdateVmRequest { name, run: run.into(), etag, ..UpdateVmRequest::default() }
}

#[tokio::test]
async fn plan_is_stale_once_the_cluster_would_decide_otherwise() {
    let folder = Folder::new();
    let running = on_memory(&folder, "it", LONG, &MemoryStore::default());
    let mut client = running.client().await;
    two_hosts(&folder, &mut client).await;
    let plan = client.vms.plan_vm(PlanVmRequest { vm: Some(vm("web", 6)) }).await.unwrap();
    let other = client.create(vm("other", 4), "").await.unwrap();
    client.wait(&other).await;
    let late = CreateVmRequest {
        vm: Some(vm("web", 6)),
        plan_token: plan.into_inner().token,
        ..CreateVmRequest::default()
    };
    assert_eq!(refused(client.vms.create_vm(late).await), "PLAN_STALE");
    assert_eq!(reason(&client.get("web").await.unwrap_err()), "VM_NOT_FOUND");
    // Without a plan it waits for room, and says so.
    let waits = client.create(vm("web", 6), "").await.unwrap();
    assert!(!waits.done);
    let waiting = client.until_waiting("web").await;
    assert!(!waiting.why.is_empty(), "{waiting:?}");
    let cancel = CancelOperationRequest { name: waits.name.clone() };
    assert_eq!(refused(client.operations.cancel_operation(cancel).await), "NOT_CANCELLABLE");
    let deleted = client.delete("other", "").await.unwrap();
    client.wait(&deleted).await;
    client.wait(&waits).await;
    assert_eq!(client.get("web").await.unwrap().state(), State::Running);
    running.end();
}

#[tokio::test]
async fn request_id_twice_has_one_effect_also_with_another_leader() {
    let folder = Folder::new();
    let store = MemoryStore::default();
    let running = on_memory(&folder, "it", LONG, &store);
    let mut client = running.client().await;
    two_hosts(&folder, &mut client).await;
    let first = client.create(vm("web", 2), &id(1)).await.unwrap();
    client.wait(&first).await;
    let second = client.create(vm("web", 2), &id(1)).await.unwrap();
    assert_eq!((second.name.clone(), second.done), (first.name.clone(), true));
    assert_eq!(
        reason(&client.create(vm("web", 3), &id(1)).await.unwrap_err()),
        "REQUEST_ID_REUSED"
    );
    assert_eq!(reason(&client.delete("web", &id(1)).await.unwrap_err()), "REQUEST_ID_REUSED");
    assert_eq!(reason(&client.create(vm("web", 2), &id(2)).await.unwrap_err()), "VM_EXISTS");
    running.end();

    let running = on_memory(&folder, "it", LONG, &store);
    let mut client = running.client().await;
    client.until_it_leads().await;
    let third = client.create(vm("web", 2), &id(1)).await.unwrap();
    assert_eq!(third.name, first.name);
    let all = client.vms.list_vms(ListVmsRequest::default()).await.unwrap().into_inner();
    assert_eq!((all.vms.len(), &all.next_page_token[..]), (1, ""));
    running.end();
}

/// Whoever asked asks again with the same id, whatever became of the one that was asked.
async fn insist(client: &mut Client, name: &str, create: bool, number: u32) -> String {
    loop {
        let asked = match create {
            true => client.create(vm(name, 6), &id(number)).await,
            false => client.delete(name, &id(number)).await,
        };
        match asked {
            Ok(operation) => return operation.name,
            Err(status) => assert_eq!(reason(&status), "NOT_LEADER", "{status:?}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Each is killed at another moment of a create or a delete; the last one does what is left.
#[tokio::test]
async fn orchestrator_killed_at_any_moment_goes_on_and_doubles_nothing() {
    const ROUNDS: u32 = 6;
    const KILLS: u64 = 4;
    let folder = Folder::new();
    let file = folder.0.join("store");
    let running = on_file(&folder, &file);
    let doors = two_hosts(&folder, &mut running.client().await).await;
    running.kill();
    for round in 0..ROUNDS {
        let name = format!("vm-{round}");
        for create in [true, false] {
            let number = round * 2 + u32::from(create) + 1;
            let mut operations = Vec::new();
            for _ in 0..KILLS {
                let running = on_file(&folder, &file);
                let mut client = running.client().await;
                operations.push(insist(&mut client, &name, create, number).await);
                sleep(Duration::from_millis(fastrand::u64(0..60))).await;
                running.kill();
            }
            let running = on_file(&folder, &file);
            let mut client = running.client().await;
            operations.push(insist(&mut client, &name, create, number).await);
            operations.dedup();
            assert_eq!(operations.len(), 1, "one request, one operation: {operations:?}");
            if create {
                let known = client.until(&name, State::Running).await;
                let bootstraps: usize = doors.iter().map(Door::bootstraps).sum();
                assert_eq!(bootstraps, 1, "{known:?}");
                let slices: usize = doors.iter().map(Door::running).sum();
                assert_eq!(slices, known.placement.len(), "{known:?}");
            } else {
                while client.get(&name).await.is_ok() {
                    sleep(Duration::from_millis(5)).await;
                }
                until_nothing_is_left(&doors).await;
            }
            running.kill();
        }
    }
    for door in &doors {
        door.check_lives();
    }
}

#[tokio::test]
async fn second_leader_deposes_the_first_which_stops_at_once() {
    let folder = Folder::new();
    let (store, lease) = (MemoryStore::default(), Duration::from_millis(600));
    let first = on_memory(&folder, "first", lease, &store);
    let mut of_first = first.client().await;
    let doors = two_hosts(&folder, &mut of_first).await;
    let created = of_first.create(vm("web", 6), "").await.unwrap();
    of_first.wait(&created).await;
    let mut watch = of_first.vms.watch_vms(WatchVmsRequest::default()).await.unwrap().into_inner();
    let second = on_memory(&folder, "second", lease, &store);
    let mut of_second = second.client().await;
    let told = of_second.get("web").await.unwrap_err();
    assert_eq!(reason(&told), "NOT_LEADER", "{told:?}");

    // The first one stands still for longer than its lease, with something to do.
    let thaw = first.freeze().await;
    let asked = tokio::spawn({
        let mut of_first = of_first.clone();
        async move { of_first.delete("web", "").await }
    });
    of_second.until_it_leads().await;
    let deleted = of_second.delete("web", "").await.unwrap();
    of_second.wait(&deleted).await;
    let created = of_second.create(vm("web", 5), "").await.unwrap();
    of_second.wait(&created).await;
    let before: Vec<_> = doors.iter().map(Door::orders).collect();
    drop(thaw);
    let late = asked.await.unwrap().unwrap_err();
    assert!(["NOT_LEADER", "LEADER_LOST"].contains(&&reason(&late)[..]), "{late:?}");
    let ended = loop {
        match watch.message().await {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    assert_eq!(reason(&ended.unwrap_err()), "NOT_LEADER", "a watch of the first one ends");
    let told = of_first.get("web").await.unwrap_err();
    assert_eq!(reason(&told), "NOT_LEADER", "{told:?}");
    assert_eq!(of_second.get("web").await.unwrap().state(), State::Running, "it is still there");
    let after: Vec<_> = doors.iter().map(Door::orders).collect();
    assert_eq!(before, after, "the first one has ordered nothing since");

    // The first one leads again when the second one ends.
    second.end();
    of_first.until_it_leads().await;
    assert_eq!(of_first.get("web").await.unwrap().life, 1);
    let deleted = of_first.delete("web", "").await.unwrap();
    of_first.wait(&deleted).await;
    until_nothing_is_left(&doors).await;
    first.end();
}

#[tokio::test]
async fn hosts_are_registered_cordoned_and_removed_and_wrong_words_refused() {
    let folder = Folder::new();
    let running = on_memory(&folder, "it", LONG, &MemoryStore::default());
    let mut client = running.client().await;
    two_hosts(&folder, &mut client).await;
    let register = |name: &str, agent: &str| RegisterHostRequest {
        name: format!("hosts/{name}"),
        agent: agent.to_owned(),
    };
    for agent in ["", "a", "http://a:1", "https://a", "https://a:1/x", "unix:a", "https://a:1"] {
        let refused = refused(client.hosts.register_host(register("c", agent)).await);
        assert_eq!(refused, "INVALID_SPEC", "{agent:?}, without certificates");
    }
    let other = client.hosts.register_host(register("a", "unix:/nowhere")).await;
    assert_eq!(refused(other), "HOST_EXISTS");

    let (at, other) = (folder.0.join("a"), folder.0.join("other"));
    let same = client.hosts.register_host(register("c", &format!("unix:{}", at.display()))).await;
    assert_eq!(refused(same), "AGENT_KNOWN");
    // The same agent by another way: that is seen when it has answered.
    symlink(&at, &other).unwrap();
    let other = register("c", &format!("unix:{}", other.display()));
    client.hosts.register_host(other).await.unwrap();
    let c = client.until_warned("c").await;
    assert!(c.warning.contains("that of host a"), "{c:?}");
    assert_eq!(c.capacity, None);
    let page = ListHostsRequest::default();
    let hosts = client.hosts.list_hosts(page).await.unwrap().into_inner().hosts;
    let cores: u32 = hosts.iter().filter_map(|it| it.capacity.as_ref()).map(|it| it.cores).sum();
    assert_eq!((hosts.len(), cores), (3, 8), "its cores are counted once");
    let remove = RemoveHostRequest { name: "hosts/c".into(), gone: false };
    client.hosts.remove_host(remove).await.unwrap();

    let cordon = |name: &str| CordonHostRequest { name: format!("hosts/{name}") };
    assert!(client.hosts.cordon_host(cordon("a")).await.unwrap().into_inner().cordoned);
    assert_eq!(refused(client.hosts.cordon_host(cordon("x")).await), "HOST_NOT_FOUND");
    let created = client.create(vm("web", 2), "").await.unwrap();
    client.wait(&created).await;
    let placed = client.get("web").await.unwrap().placement;
    assert_eq!((placed.len(), &placed[0].host[..]), (1, "hosts/b"), "a takes nothing");
    let uncordon = UncordonHostRequest { name: "hosts/a".into() };
    assert!(!client.hosts.uncordon_host(uncordon).await.unwrap().into_inner().cordoned);

    let remove = |name: &str| RemoveHostRequest { name: format!("hosts/{name}"), gone: false };
    assert_eq!(refused(client.hosts.remove_host(remove("b")).await), "HOST_IN_USE");
    client.hosts.remove_host(remove("a")).await.unwrap();
    let page = ListHostsRequest { page_size: 1, page_token: String::new() };
    let page = client.hosts.list_hosts(page).await.unwrap().into_inner();
    assert_eq!((page.hosts[0].name.as_str(), page.next_page_token.as_str()), ("hosts/b", ""));
    assert_eq!(page.hosts[0].vms, ["vms/web"]);

    for (name, reason) in [("Web", "INVALID_SPEC"), ("x", "VM_NOT_FOUND")] {
        assert_eq!(orchestrator::reason(&client.get(name).await.unwrap_err()), reason);
    }
    let mut wrong = vm("y", 2);
    wrong.spec = Some(VmSpec { kernel: "../x".into(), ..wrong.spec.unwrap() });
    assert_eq!(reason(&client.create(wrong, "").await.unwrap_err()), "INVALID_SPEC");
    assert_eq!(reason(&client.create(vm("y", 2), "1").await.unwrap_err()), "INVALID_SPEC");
    let unknown = GetOperationRequest { name: "operations/x".into() };
    assert_eq!(refused(client.operations.get_operation(unknown).await), "OPERATION_NOT_FOUND");
    running.end();
}

/// Pages follow each other, and each VM is on one of them.
#[tokio::test]
async fn vms_are_listed_and_watched_in_pages() {
    const VMS: usize = 150;
    let folder = Folder::new();
    let running = on_memory(&folder, "it", LONG, &MemoryStore::default());
    let mut client = running.client().await;
    client.until_it_leads().await;
    let mut expected: Vec<String> = (0..VMS).map(|number| format!("vms/vm-{number}")).collect();
    for name in &expected {
        // There is no host: all of them wait.
        client.create(vm(name.strip_prefix("vms/").unwrap(), 1), "").await.unwrap();
    }
    expected.sort_unstable();
    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListVmsRequest { page_size: 40, page_token };
        let page = client.vms.list_vms(request).await.unwrap().into_inner();
        assert!(page.vms.len() <= 40);
        names.extend(page.vms.into_iter().map(|vm| vm.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, expected);
    let mut watch = client.vms.watch_vms(WatchVmsRequest::default()).await.unwrap().into_inner();
    let mut told = Vec::new();
    while let Some(Kind::Vm(vm)) = watch.message().await.unwrap().unwrap().kind {
        told.push(vm.name);
    }
    told.dedup();
    assert_eq!(told, expected, "before the first bookmark");
    running.end();
}
