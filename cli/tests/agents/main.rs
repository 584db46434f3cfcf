//! Two hosts that are none: an agent each, and a VM of a slice at both, on this machine's KVM.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the guest of another test, of which this one uses its image")]
#[path = "../../../vmm/tests/kvm_two_slices/guest.rs"]
mod guest;

use control::longrunning::WaitOperationRequest;
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_client::OperationsClient;
use control::v1::agent_service_client::AgentServiceClient;
use control::v1::ensure_slice_request::Role;
use control::v1::host_slice::State;
use control::v1::vm_service_client::VmServiceClient;
use control::v1::{
    BootstrapSpec, CompanionSpec, DrainSliceRequest, EnsureSliceRequest, FenceVmRequest,
    GetHostRequest, GetVmRequest, HostResources, HostSlice, SlicePart, Vm, vm,
};
use needs::Need;
use prost_types::Duration as ProtoDuration;
use std::env::temp_dir;
use std::fs;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::time::sleep;
use tonic::{Code, Request, Status};
use vm_service::{Channel, connect};

const UID: &str = "vms/0000000000000000000000000000beef";
const LIMIT: Duration = Duration::from_secs(120);

/// A host, and the process of its agent.
struct Host {
    folder: PathBuf,
    agent: Child,
}

fn start(folder: &Path) -> Child {
    let option = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
    let images = folder.parent().unwrap().join("images");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.args(["agent", "--name=h1", "--slice-address=127.0.0.1", "--keep-cores=0"]);
    command.args(["--keep-memory=0", "--slice-ports=17500-17999", "--metrics=127.0.0.1:0"]);
    command.env("TESSERA_LOG_FORMAT", "json");
    command.args([option("state", folder.join("s")), option("images", images.clone())]);
    command.args([option("checkpoints", images), option("socket", folder.join("socket"))]);
    let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    command.stdin(Stdio::null()).stderr(log).spawn().unwrap()
}

impl Host {
    fn new(parent: &Path, name: &str) -> Self {
        let folder = parent.join(name);
        fs::create_dir(&folder).unwrap();
        Self { agent: start(&folder), folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// What the slice of the VM has said.
    fn said(&self) -> String {
        let entries = fs::read_dir(self.folder.join("s/slices")).into_iter().flatten().flatten();
        let texts = entries.filter_map(|entry| fs::read(entry.path()).ok());
        texts.map(|text| String::from_utf8_lossy(&text).into_owned()).collect()
    }

    fn kill(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }

    async fn channel(&self) -> Channel {
        let socket = self.folder.join("socket");
        until(|| async {
            connect(&socket).await.map_err(|error| format!("{error}: {}", self.log()))
        })
        .await
    }

    async fn slice(&self) -> HostSlice {
        let mut agent = AgentServiceClient::new(self.channel().await);
        let host = agent.get_host(GetHostRequest::default()).await.unwrap().into_inner();
        host.slices.into_iter().next().unwrap()
    }

    async fn ensure(&self, request: EnsureSliceRequest) -> HostSlice {
        let mut agent = AgentServiceClient::new(self.channel().await);
        agent.ensure_slice(request).await.unwrap().into_inner()
    }

    async fn fence(&self) {
        let mut agent = AgentServiceClient::new(self.channel().await);
        let request = FenceVmRequest { term: 1, vm: UID.into(), life: 1 };
        agent.fence_vm(request).await.unwrap();
    }
}

/// The folder of both, without what was left there.
struct Hosts {
    folder: PathBuf,
    first: Host,
    second: Host,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in [&mut self.first, &mut self.second] {
            host.kill();
        }
        // Also if the test has failed before it has fenced the VM.
        needs::processes::kill_all(&self.folder);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

async fn until<T, F: Future<Output = Result<T, String>>>(mut look: impl FnMut() -> F) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(why) => assert!(Instant::now() < end, "{why}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn of<T>(number: u16, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let name = format!("{UID}/slices/{number}");
    request.metadata_mut().insert("tessera-slice", name.parse().unwrap());
    request
}

async fn get_vm(host: &Host) -> Result<Vm, Status> {
    let mut vms = VmServiceClient::new(host.channel().await);
    let request = of(0, GetVmRequest { name: "vms/-".into() });
    Ok(vms.get_vm(request).await?.into_inner())
}

/// Waits until the VM runs, with these vCPUs at its slices.
async fn runs(host: &Host, vcpus: &[&[u32]]) {
    until(|| async {
        let vm = get_vm(host).await.map_err(|error| format!("{error:?}: {}", host.said()))?;
        let places: Vec<_> = vm.slices.iter().map(|slice| slice.vcpus.clone()).collect();
        let is_so = vm.state() == vm::State::Running && places == vcpus;
        if is_so { Ok(()) } else { Err(format!("{vm:?}")) }
    })
    .await;
}

/// The metrics of a host, from where its agent's log says that they are.
fn metrics(host: &Host) -> Result<String, String> {
    let log = host.log();
    let (_, rest) = log.rsplit_once("metrics are served at http://").ok_or(log.as_str())?;
    let (address, _) = rest.split_once('/').ok_or(rest)?;
    let failed = |error: io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Waits until a host tells of all this.
async fn tells(host: &Host, rows: &[&str]) {
    let vm = UID.trim_start_matches("vms/");
    until(|| async {
        let text = metrics(host)?;
        let has = |row: &&str| text.lines().any(|line| line == row.replace("VM", vm));
        if rows.iter().all(has) { Ok(()) } else { Err(text) }
    })
    .await;
}

fn order(number: u16, role: Role) -> EnsureSliceRequest {
    EnsureSliceRequest {
        term: 1,
        slice: format!("{UID}/slices/{number}"),
        life: 1,
        resources: Some(HostResources { cores: 2, memory_bytes: 64 << 20 }),
        secret: vec![0x41; 32],
        role: Some(role),
    }
}

fn bootstrap(address: String) -> Role {
    let part = |address| SlicePart { address, vcpus: 1, memory_bytes: guest::SLICE_BYTES };
    Role::Bootstrap(BootstrapSpec {
        parts: vec![part(String::new()), part(address)],
        kernel: "kernel".into(),
        initrd: "initrd".into(),
        lease: Some(ProtoDuration { seconds: 20, nanos: 0 }),
        guest_preset: "none".into(),
        ..BootstrapSpec::default()
    })
}

async fn drain(host: &Host) {
    let channel = host.channel().await;
    let mut vms = VmServiceClient::new(channel.clone());
    let request = DrainSliceRequest { name: "slices/1".into(), ..Default::default() };
    let begun = vms.drain_slice(of(0, request)).await.unwrap().into_inner();
    let mut operations = OperationsClient::new(channel);
    let request = WaitOperationRequest { name: begun.name, timeout: None };
    let done = operations.wait_operation(of(0, request)).await.unwrap().into_inner();
    assert!(matches!(done.result, Some(Outcome::Response(_))), "{done:?}");
}

async fn live(hosts: &mut Hosts) {
    let companion = order(1, Role::Companion(CompanionSpec::default()));
    let address = hosts.second.ensure(companion.clone()).await.address;
    let ordered = order(0, bootstrap(address.clone()));
    hosts.first.ensure(ordered.clone()).await;
    runs(&hosts.first, &[&[0], &[1]]).await;
    let process = hosts.first.slice().await.process;
    let first = [
        "tessera_slice_up{vm=\"VM\",slice=\"0\"} 1.0",
        "tessera_vm_info{vm=\"VM\",state=\"running\"} 1.0",
        "tessera_vm_slices{vm=\"VM\"} 2.0",
        "tessera_vm_vcpu_location{vm=\"VM\",vcpu=\"0\",host=\"h1\"} 1.0",
    ];
    tells(&hosts.first, &first).await;
    let second = [
        "tessera_slice_up{vm=\"VM\",slice=\"1\"} 1.0",
        "tessera_vm_vcpu_location{vm=\"VM\",vcpu=\"1\",host=\"h1\"} 1.0",
    ];
    tells(&hosts.second, &second).await;
    let named = format!("{{\"vm\":\"{}\",\"slice\":1,", UID.trim_start_matches("vms/"));
    assert!(hosts.second.said().contains(&named), "{}", hosts.second.said());

    // Both agents die without a word. The VM goes on, and the next agents find it and know its orders.
    for host in [&mut hosts.first, &mut hosts.second] {
        host.kill();
        host.agent = start(&host.folder);
    }
    let found = hosts.first.slice().await;
    assert_eq!((found.state(), found.process), (State::Running, process));
    runs(&hosts.first, &[&[0], &[1]]).await;
    assert_eq!(hosts.first.ensure(ordered).await.process, process);
    assert_eq!(hosts.second.ensure(companion).await.address, address);

    drain(&hosts.first).await;
    runs(&hosts.first, &[&[0, 1]]).await;
    until(|| async {
        let slice = hosts.second.slice().await;
        if slice.state() == State::Ended { Ok(()) } else { Err(format!("{slice:?}")) }
    })
    .await;
    for host in [&hosts.first, &hosts.second] {
        host.fence().await;
        assert_eq!(host.slice().await.state(), State::Ended);
    }
    let refused = get_vm(&hosts.first).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    // Whoever has inherited it from the agent that was killed may not have waited for it yet.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().to_owned());
    assert!(state.is_none_or(|state| state.starts_with('Z')), "it runs: {stat}");
}

#[test]
fn vm_of_two_hosts_is_ordered_outlives_its_agents_is_drained_and_fenced() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let folder = temp_dir().join(format!("tsrh-{}", id()));
    let images = folder.join("images");
    fs::create_dir_all(&images).unwrap();
    fs::write(images.join("kernel"), guest::image(guest::Disk::None)).unwrap();
    fs::write(images.join("initrd"), vec![1; 4 << 20]).unwrap();
    let (first, second) = (Host::new(&folder, "a"), Host::new(&folder, "b"));
    let mut hosts = Hosts { folder, first, second };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(live(&mut hosts));
}
