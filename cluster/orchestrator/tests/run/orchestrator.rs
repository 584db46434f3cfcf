//! Orchestrators in threads of their own, which can be killed at any moment, and how they are called.

use control::longrunning::operations_client::OperationsClient;
use control::longrunning::{Operation, WaitOperationRequest};
use control::v1::cluster_vm::State;
use control::v1::hosts_client::HostsClient;
use control::v1::vms_client::VmsClient;
use control::v1::{
    ClusterHost, ClusterVm, CreateVmRequest, DeleteVmRequest, GetClusterHostRequest,
    GetClusterVmRequest, RegisterHostRequest, SharingClass, VmSpec, cluster_host,
};
use orchestrator::api::serve;
use orchestrator::decide::{Choice, Settings};
use orchestrator::run::{Agents, Pace, Standing};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Consolidation, FragBff, Spread};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{
    Receiver as BlockingReceiver, Sender as BlockingSender, channel as blocking_channel,
};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{env, fs, process};
use store::{Candidate, Store};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tonic::{Response, Status};
use tonic_types::StatusExt;
use vm_service::{Channel, connect, listen_at};

/// A folder that goes away.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("tsro-{}-{number}", process::id()));
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// What happens to an orchestrator.
enum Fate {
    /// It is told to end.
    Ends,
    /// It is over at once, whatever it does just now.
    Killed,
}

/// An orchestrator.
pub(crate) struct Running {
    pub(crate) socket: PathBuf,
    fate: Option<oneshot::Sender<Fate>>,
    /// What its thread is to wait for, so that nothing of it goes on meanwhile.
    freeze: mpsc::Sender<BlockingReceiver<()>>,
    thread: Option<JoinHandle<()>>,
}

/// With times for a test.
pub(crate) fn settings() -> Settings {
    let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinNodes);
    let choice = Choice::Split(FragBff { spread, consolidation, mix: Mix::azure() });
    Settings { retry_ms: 10, again_ms: 10, ..Settings::new(choice) }
}

pub(crate) fn standing(name: &str, lease: Duration) -> Standing {
    let (name, clock_error) = (name.to_owned(), Duration::from_millis(10));
    Standing {
        candidate: Candidate { name, lease, clock_error },
        settings: settings(),
        pace: Pace(Duration::from_millis(20)),
        agents: Agents::new(None),
    }
}

impl Running {
    /// `open` gives the store, and `close` is told when nothing uses it any more.
    pub(crate) fn begin<S: Store, F: Future<Output = ()>>(
        folder: &Path,
        name: &str,
        lease: Duration,
        open: impl FnOnce() -> S + Send + 'static,
        close: impl FnOnce(S) -> F + Send + 'static,
    ) -> Self {
        let socket = folder.join(format!("{name}.sock"));
        let listener = listen_at(&socket).expect("a socket");
        let (fate, told) = oneshot::channel();
        let (freeze, mut frozen) = mpsc::channel::<BlockingReceiver<()>>(1);
        let standing = standing(name, lease);
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            let store = open();
            let (stop, stopped) = watch::channel(false);
            let serving = serve(store.clone(), standing, (Some(listener), None, None), stopped);
            runtime.block_on(async {
                tokio::spawn(async move {
                    while let Some(until) = frozen.recv().await {
                        // It blocks the only thread that there is.
                        let _ = until.recv();
                    }
                });
                tokio::pin!(serving);
                tokio::select! {
                    () = &mut serving => panic!("it has ended by itself"),
                    fate = told => if matches!(fate, Ok(Fate::Ends)) {
                        let _ = stop.send(true);
                        serving.await;
                    },
                }
            });
            // All that goes on in it ends where it waits.
            drop(runtime);
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(close(store));
        };
        let thread = Some(thread::spawn(run));
        Self { socket, fate: Some(fate), freeze, thread }
    }

    fn end_by(&mut self, fate: Fate) {
        let told = self.fate.take().is_some_and(|it| it.send(fate).is_ok());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() && told, "its thread has panicked");
        }
    }

    pub(crate) fn end(mut self) {
        self.end_by(Fate::Ends);
    }

    pub(crate) fn kill(mut self) {
        self.end_by(Fate::Killed);
    }

    /// Nothing of it goes on until what is given back is dropped.
    pub(crate) async fn freeze(&self) -> BlockingSender<()> {
        let (thaw, until) = blocking_channel();
        self.freeze.send(until).await.expect("it runs");
        thaw
    }

    pub(crate) async fn client(&self) -> Client {
        Client::new(connect(&self.socket).await.expect("it listens"))
    }
}

/// Calls an orchestrator.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) vms: VmsClient<Channel>,
    pub(crate) hosts: HostsClient<Channel>,
    pub(crate) operations: OperationsClient<Channel>,
    pub(crate) channel: Channel,
}

pub(crate) fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<Response<T>, Status>) -> String {
    reason(&result.expect_err("it is refused"))
}

/// A VM that may be split.
pub(crate) fn vm(name: &str, vcpus: u32) -> ClusterVm {
    let spec = VmSpec {
        vcpus,
        memory_bytes: 1024 << 20,
        class: SharingClass::Default.into(),
        kernel: "vmlinuz".into(),
        ..VmSpec::default()
    };
    ClusterVm { name: format!("vms/{name}"), spec: Some(spec), ..ClusterVm::default() }
}

/// An id of a request.
pub(crate) fn id(number: u32) -> String {
    format!("00000000-0000-0000-0000-{number:012}")
}

impl Client {
    fn new(channel: Channel) -> Self {
        Self {
            vms: VmsClient::new(channel.clone()),
            hosts: HostsClient::new(channel.clone()),
            operations: OperationsClient::new(channel.clone()),
            channel,
        }
    }

    /// Waits until it leads.
    pub(crate) async fn until_it_leads(&mut self) {
        while self.get("none").await.is_err_and(|it| reason(&it) == "NOT_LEADER") {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Makes a host known, and waits until its agent has answered.
    pub(crate) async fn register(&mut self, host: &str, agent: &str) {
        let (name, agent) = (format!("hosts/{host}"), agent.to_owned());
        let request = RegisterHostRequest { name: name.clone(), agent };
        self.hosts.register_host(request).await.expect("a host");
        loop {
            let request = GetClusterHostRequest { name: name.clone() };
            let host = self.hosts.get_cluster_host(request).await.expect("the host").into_inner();
            if host.state() == cluster_host::State::Up && host.capacity.is_some() {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until something is wrong with a host.
    pub(crate) async fn until_warned(&mut self, host: &str) -> ClusterHost {
        loop {
            let request = GetClusterHostRequest { name: format!("hosts/{host}") };
            let host = self.hosts.get_cluster_host(request).await.expect("the host").into_inner();
            if !host.warning.is_empty() {
                return host;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn create(&mut self, vm: ClusterVm, id: &str) -> Result<Operation, Status> {
        let (vm, request_id) = (Some(vm), id.to_owned());
        let request = CreateVmRequest { vm, request_id, ..CreateVmRequest::default() };
        self.vms.create_vm(request).await.map(Response::into_inner)
    }

    pub(crate) async fn get(&mut self, name: &str) -> Result<ClusterVm, Status> {
        let request = GetClusterVmRequest { name: format!("vms/{name}") };
        self.vms.get_cluster_vm(request).await.map(Response::into_inner)
    }

    pub(crate) async fn delete(&mut self, name: &str, id: &str) -> Result<Operation, Status> {
        let (name, request_id) = (format!("vms/{name}"), id.to_owned());
        let request = DeleteVmRequest { name, request_id, ..DeleteVmRequest::default() };
        self.vms.delete_vm(request).await.map(Response::into_inner)
    }

    /// Waits for an operation; whoever runs the test ends it if that never comes.
    pub(crate) async fn wait(&mut self, operation: &Operation) -> Operation {
        let request = WaitOperationRequest { name: operation.name.clone(), timeout: None };
        let done = self.operations.wait_operation(request).await.expect("it goes on").into_inner();
        assert!(done.done, "{done:?}");
        done
    }

    pub(crate) async fn until(&mut self, name: &str, state: State) -> ClusterVm {
        loop {
            let vm = self.get(name).await.expect("the VM");
            if vm.state() == state && vm.observed_generation == vm.generation {
                return vm;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until it is known why it waits.
    pub(crate) async fn until_waiting(&mut self, name: &str) -> ClusterVm {
        loop {
            let vm = self.get(name).await.expect("the VM");
            if vm.state() == State::Waiting && vm.why != "it has been created" {
                return vm;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}
