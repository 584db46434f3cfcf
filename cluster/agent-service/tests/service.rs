//! The agent's service as an orchestrator sees it.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use agent_service::{Options, Server};
use control::v1::host_slice::State;
use control::v1::watch_host_response::Kind;
use control::v1::{
    EnsureSliceRequest, GetHostRequest, HostResources, ReleaseRequest, RemoveSliceRequest,
    ReserveRequest, ResizeSliceRequest, StopSliceRequest, WatchHostRequest,
};
use prost_types::Duration as ProtoDuration;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};
use support::{Agent, Host, LIMIT, bootstrap, companion, fence, name, reason, resources, until};
use tokio::time::{sleep, timeout};
use tonic::Code;

fn remove(number: u16, life: u64) -> RemoveSliceRequest {
    RemoveSliceRequest { term: 1, slice: name(number), life }
}

#[tokio::test]
async fn slice_is_ordered_once_found_again_and_forgotten() {
    let host = Host::new();
    let first = host.begin();
    let mut agent = host.agent().await;
    let ordered = agent.ensure_slice(companion(1)).await.unwrap().into_inner();
    assert!(ordered.address.starts_with("127.0.0.1:"), "{ordered:?}");
    let running = until(&mut agent, 1, State::Running).await;
    let folder = host.folders().pop().unwrap();
    let secret = folder.join("secret");
    assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read(&secret).unwrap(), [7; 32]);
    let known = agent.get_host(GetHostRequest::default()).await.unwrap().into_inner().agent_id;
    assert_eq!(known.len(), 32, "{known:?}");
    drop((agent, first));

    let _second = host.begin();
    let mut agent = host.agent().await;
    let same = agent.get_host(GetHostRequest::default()).await.unwrap().into_inner().agent_id;
    assert_eq!(same, known, "it is the same agent");
    let again = agent.ensure_slice(companion(1)).await.unwrap().into_inner();
    assert_eq!((&again.address, again.process), (&ordered.address, running.process));
    let mut others = [companion(1), companion(1), bootstrap("vmlinuz")];
    others[0].resources = resources(2);
    others[1].secret = vec![8; 32];
    others[2].slice = name(1);
    for other in others {
        let refused = agent.ensure_slice(other).await.unwrap_err();
        assert_eq!(reason(&refused), "GENERATION_CONFLICT", "{refused:?}");
    }
    assert_eq!(fs::read(&secret).unwrap(), [7; 32]);
    // More of the host, and as much as at first.
    for cores in [2, 2, 1] {
        let (term, slice, resources) = (1, name(1), resources(cores));
        let resize = ResizeSliceRequest { term, slice, life: 1, resources };
        let resized = agent.resize_slice(resize).await.unwrap().into_inner();
        assert_eq!((resized.process, resized.resources), (running.process, resources));
    }
    let (term, slice, resources) = (1, name(1), resources(1_000_000));
    let resize = ResizeSliceRequest { term, slice, life: 1, resources };
    assert_eq!(reason(&agent.resize_slice(resize).await.unwrap_err()), "NO_CAPACITY");
    let later = EnsureSliceRequest { life: 2, secret: vec![9; 32], ..companion(1) };
    let refused = agent.ensure_slice(later).await.unwrap_err();
    assert_eq!(reason(&refused), "OLDER_LIFE_RUNS");
    assert_eq!(host.folders(), [folder], "what was refused leaves nothing");
    let refused = agent.remove_slice(remove(1, 1)).await.unwrap_err();
    assert_eq!(reason(&refused), "SLICE_RUNS");

    let proof = fence(&mut agent, 1).await;
    assert_eq!((proof.host.as_str(), proof.life, proof.boot_id.as_str()), ("hosts/h1", 1, "boot"));
    until(&mut agent, 1, State::Ended).await;
    assert_eq!(host.starts(), 1);
    let refused = agent.ensure_slice(companion(1)).await.unwrap_err();
    assert_eq!(reason(&refused), "STALE_GENERATION");
    for _ in 0..2 {
        agent.remove_slice(remove(1, 1)).await.unwrap();
    }
    assert!(host.folders().is_empty());
}

#[tokio::test]
async fn words_reach_the_slice() {
    let host = Host::new();
    host.program("for word; do echo \"$word\" >> $0.words; done; exec sleep 600");
    let _server = host.begin();
    let mut agent = host.agent().await;
    agent.ensure_slice(bootstrap("vmlinuz")).await.unwrap();
    until(&mut agent, 0, State::Running).await;
    let end = Instant::now() + LIMIT;
    let words = loop {
        let words = fs::read_to_string(host.0.join("program.words")).unwrap_or_default();
        if words.contains("--offer-memory") {
            break words;
        }
        assert!(Instant::now() < end, "{words}");
        sleep(Duration::from_millis(10)).await;
    };
    let kernel = format!("--kernel={}/images/vmlinuz\n", host.0.display());
    assert!(words.starts_with("bootstrap\n--slice=local,cpus=1,memory=33554432\n"), "{words}");
    assert!(words.contains(&kernel) && words.contains("/control\n"), "{words}");
    let request = StopSliceRequest { term: 1, slice: name(0), life: 1, force: false };
    agent.stop_slice(request).await.unwrap();
    let ended = until(&mut agent, 0, State::Ended).await;
    assert_eq!(ended.end.unwrap().cause, "was ended by signal 15");
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_leaves_nothing() {
    let host = Host::new();
    fs::create_dir_all(host.state().join("run/left-over-1")).unwrap();
    let _server = host.begin();
    assert!(host.folders().is_empty(), "what nobody knows is removed");
    fs::write(host.0.join("secret"), "not an image").unwrap();
    symlink("../secret", host.0.join("images/link")).unwrap();
    let mut agent = host.agent().await;
    for kernel in ["../secret", "/etc/passwd", "link", "nowhere", "a,b", ""] {
        let refused = agent.ensure_slice(bootstrap(kernel)).await.unwrap_err();
        assert_eq!(
            (refused.code(), reason(&refused).as_str()),
            (Code::InvalidArgument, "INVALID_SPEC")
        );
        assert!(refused.message().starts_with("bootstrap.kernel: "), "{refused:?}");
    }
    let mut large = companion(1);
    large.resources = resources(5);
    let refused = agent.ensure_slice(large).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::ResourceExhausted, "NO_CAPACITY")
    );

    let release = |term| ReleaseRequest { term, operation: "0".repeat(32) };
    agent.release(release(7)).await.unwrap();
    let refused = agent.ensure_slice(companion(1)).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::FailedPrecondition, "STALE_TERM")
    );
    assert_eq!(reason(&agent.release(release(6)).await.unwrap_err()), "STALE_TERM");
    let request = GetHostRequest { name: "hosts/h2".into() };
    assert_eq!(reason(&agent.get_host(request).await.unwrap_err()), "HOST_NOT_FOUND");
    let request = StopSliceRequest { term: 7, slice: name(3), life: 1, force: true };
    assert_eq!(reason(&agent.stop_slice(request).await.unwrap_err()), "SLICE_NOT_FOUND");
    assert!(host.folders().is_empty());
    assert_eq!(host.starts(), 0);
}

#[tokio::test]
async fn room_is_kept_for_a_slice_and_seen() {
    let host = Host::new();
    let _server = host.begin();
    let mut agent = host.agent().await;
    let request = |slice: String, cores| ReserveRequest {
        term: 1,
        operation: "ab".repeat(16),
        slice,
        life: 1,
        resources: Some(HostResources { cores, memory_bytes: 3 << 20 }),
        ttl: None,
    };
    for _ in 0..2 {
        let kept = agent.reserve(request(name(1), 4)).await.unwrap().into_inner();
        assert_eq!(kept.ttl, Some(ProtoDuration { seconds: 30, nanos: 0 }));
    }
    let seen =
        agent.get_host(GetHostRequest { name: "hosts/-".into() }).await.unwrap().into_inner();
    let memory_bytes = (1 << 30) - (4 << 20);
    assert_eq!(seen.free, Some(HostResources { cores: 0, memory_bytes }));
    let refused = agent.ensure_slice(companion(2)).await.unwrap_err();
    assert_eq!(reason(&refused), "NO_CAPACITY");
    agent.ensure_slice(companion(1)).await.unwrap();
    let seen = agent.get_host(GetHostRequest::default()).await.unwrap().into_inner();
    assert_eq!(seen.free.map(|free| free.cores), Some(3), "the order uses it up");
    for (ttl, slice) in [(3601, name(1)), (-1, name(1)), (0, name(1)), (1, "vms/x/slices/1".into())]
    {
        let ttl = Some(ProtoDuration { seconds: ttl, nanos: 0 });
        let refused = agent.reserve(ReserveRequest { ttl, ..request(slice, 1) }).await.unwrap_err();
        assert_eq!(reason(&refused), "INVALID_SPEC");
    }
}

#[tokio::test]
async fn thousand_watchers_see_a_change() {
    const EACH: usize = 200;
    let host = Host::new();
    let server = host.begin();
    let mut watches = Vec::new();
    for _ in 0..5 {
        let agent = host.agent().await;
        for _ in 0..EACH {
            let mut agent: Agent = agent.clone();
            let watch = agent.watch_host(WatchHostRequest::default()).await.unwrap();
            watches.push(watch.into_inner());
        }
    }
    for watch in &mut watches {
        let first = timeout(LIMIT, watch.message()).await.unwrap().unwrap().unwrap();
        assert!(matches!(first.kind, Some(Kind::Host(host)) if host.slices.is_empty()));
    }
    let mut agent = host.agent().await;
    agent.ensure_slice(companion(1)).await.unwrap();
    for watch in &mut watches {
        loop {
            let next = timeout(LIMIT, watch.message()).await.unwrap().unwrap().unwrap();
            if matches!(next.kind, Some(Kind::Host(host)) if host.slices.len() == 1) {
                break;
            }
        }
    }
    drop(server);
    for watch in &mut watches {
        while let Ok(Ok(Some(_))) = timeout(LIMIT, watch.message()).await {}
    }
}

#[tokio::test]
async fn second_agent_of_a_host_is_refused() {
    let host = Host::new();
    let _first = host.begin();
    let error = Server::begin(host.options()).unwrap_err();
    assert!(error.to_string().contains("another agent"), "{error}");
    for (name, text) in [("", "no name"), ("A", "no name"), ("-a", "no name")] {
        let options = Options { name: name.into(), ..host.options() };
        let error = Server::begin(options).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let options = Options { images: host.0.join("nowhere"), ..host.options() };
    let error = Server::begin(options).unwrap_err();
    assert!(error.to_string().contains("nowhere as the folder of images"), "{error}");
}

#[test]
fn full_disk_is_told_and_gets_over() {
    // A write beyond its limit does not end a process that ignores the signal.
    let script = "trap '' XFSZ; exec \"$0\" --ignored --exact full_disk --nocapture";
    let this = env::current_exe().unwrap();
    let status = Command::new("sh").args(["-c", script]).arg(this).status();
    assert!(status.unwrap().success());
}

fn limited(most: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: most, maximum }).unwrap();
}

#[tokio::test]
#[ignore = "has a process to itself"]
async fn full_disk() {
    let host = Host::new();
    let _server = host.begin();
    let mut agent = host.agent().await;
    limited(Some(0));
    let refused = agent.ensure_slice(companion(1)).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::Unavailable, "STATE_UNWRITABLE")
    );
    let release = ReleaseRequest { term: 2, operation: "0".repeat(32) };
    let refused = agent.release(release).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::Unavailable, "JOURNAL_UNWRITABLE")
    );
    limited(getrlimit(Resource::Fsize).maximum);
    let end = Instant::now() + LIMIT;
    while let Err(refused) = agent.ensure_slice(companion(1)).await {
        assert_eq!(reason(&refused), "JOURNAL_UNWRITABLE", "{refused:?}");
        assert!(Instant::now() < end);
        sleep(Duration::from_millis(100)).await;
    }
    until(&mut agent, 1, State::Running).await;
}
