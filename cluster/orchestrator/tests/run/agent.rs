//! A host behind gRPC on a UNIX socket: the contract of agent.proto, without processes.

use crate::support::{Host, secret};
use control::v1::agent_service_server::{AgentService, AgentServiceServer};
use control::v1::ensure_slice_request::Role as RoleMessage;
use control::v1::host_slice::{End, State};
use control::v1::{
    DeleteCheckpointsRequest, DeleteCheckpointsResponse, EnsureSliceRequest, FenceProof,
    FenceVmRequest, GetHostRequest, GetVmRequest, Host as HostMessage, HostNode, HostResources,
    HostSlice, ReleaseRequest, ReleaseResponse, RemoveSliceRequest, RemoveSliceResponse,
    ReserveRequest, ReserveResponse, ResizeSliceRequest, StopSliceRequest, Vm, WatchHostRequest,
    WatchHostResponse, vm,
};
use orchestrator::decide::{Call, Failure, Phase, Reply, Role, Target};
use state::{Term, Uid};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tonic_types::{ErrorDetails, StatusExt};

/// A [`Host`] behind gRPC.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) host: Arc<Mutex<Host>>,
    secrets: Arc<Mutex<BTreeMap<Uid, Vec<u8>>>>,
    /// Orders to run a slice, also of those that ran already.
    pub(crate) ensured: Arc<Mutex<Vec<Target>>>,
    /// It says how it is, and does nothing else.
    pub(crate) is_stuck: Arc<AtomicBool>,
    /// Whose term it has heard it says only when it refuses.
    pub(crate) hides_term: Arc<AtomicBool>,
}

fn refused(why: &str) -> Status {
    let code =
        if why == "NO_CAPACITY" { Code::ResourceExhausted } else { Code::FailedPrecondition };
    let details = ErrorDetails::with_error_info(why, "tessera", HashMap::new());
    Status::with_error_details(code, "it is refused", details)
}

fn target(slice: &str, life: u64) -> Target {
    let parts: Vec<&str> = slice.split('/').collect();
    let uid = Uid::try_from(parts[1].to_owned()).expect("the uid of a VM");
    Target { uid, slice: parts[3].parse().expect("the number of a slice"), life }
}

impl Door {
    fn here(&self) -> MutexGuard<'_, Host> {
        self.host.lock().expect("a host")
    }

    /// Nothing runs, no room is kept, and all slices are forgotten.
    pub(crate) fn is_empty(&self) -> bool {
        let host = self.here();
        host.slices.is_empty() && host.kept.is_empty()
    }

    /// Slices that run.
    pub(crate) fn running(&self) -> usize {
        self.here().slices.values().filter(|slice| slice.ended.is_none()).count()
    }

    /// Bootstraps that run.
    pub(crate) fn bootstraps(&self) -> usize {
        let host = self.here();
        host.slices.values().filter(|it| it.ended.is_none() && it.is_bootstrap).count()
    }

    /// Orders to run a slice, so far.
    pub(crate) fn orders(&self) -> usize {
        self.ensured.lock().expect("orders").len()
    }

    /// Of no VM did an earlier life come after a later one.
    pub(crate) fn check_lives(&self) {
        let mut newest: BTreeMap<Uid, u64> = BTreeMap::new();
        for target in &*self.ensured.lock().expect("orders") {
            let known = newest.entry(target.uid.clone()).or_default();
            assert!(*known <= target.life, "{target:?} after life {known}");
            *known = target.life;
        }
    }

    fn call(&self, term: u64, call: &Call) -> Result<Reply, Status> {
        let result = self.here().call(Term(term), call);
        result.map_err(|failure| match failure {
            Failure::Deposed => refused("STALE_TERM"),
            Failure::Refused(why) => refused(&why),
            Failure::Unreachable(why) => Status::unavailable(why),
        })
    }

    /// Waits for as long as it is stuck.
    async fn pass(&self) {
        while self.is_stuck.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn host(&self) -> HostMessage {
        let here = self.here();
        let (report, term) = (here.report(), here.term);
        drop(here);
        let hides = self.hides_term.load(Ordering::Relaxed);
        let resources = |it: &state::NumaNode| HostResources {
            cores: u32::from(it.cores),
            memory_bytes: it.memory_mib << 20,
        };
        let node = |it: &state::NumaNode| HostNode { number: 0, capacity: Some(resources(it)) };
        let slice = |it: &orchestrator::decide::SliceReport| {
            let (state, status) = match it.phase {
                Phase::Runs => (State::Running, None),
                Phase::Ended(status) => (State::Ended, status),
            };
            HostSlice {
                name: format!("vms/{}/slices/{}", it.target.uid, it.target.slice),
                life: it.target.life,
                state: state.into(),
                end: (state == State::Ended).then(|| End { cause: it.cause.clone(), status }),
                ..HostSlice::default()
            }
        };
        HostMessage {
            name: format!("hosts/{}", report.name),
            agent_id: report.agent.clone(),
            boot_id: report.boot_id.clone(),
            nodes: report.nodes.iter().map(node).collect(),
            version: report.version.clone(),
            slices: report.slices.iter().map(slice).collect(),
            term: if hides { 0 } else { term.0 },
            ..HostMessage::default()
        }
    }
}

#[tonic::async_trait]
impl AgentService for Door {
    type WatchHostStream = tokio_stream::Empty<Result<WatchHostResponse, Status>>;

    async fn get_host(&self, _: Request<GetHostRequest>) -> Result<Response<HostMessage>, Status> {
        Ok(Response::new(self.host()))
    }

    async fn watch_host(
        &self,
        _: Request<WatchHostRequest>,
    ) -> Result<Response<Self::WatchHostStream>, Status> {
        Err(Status::unimplemented("an orchestrator asks"))
    }

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        self.pass().await;
        let it = request.into_inner();
        let resources = it.resources.expect("how much");
        let call = Call::Reserve {
            operation: Uid::try_from(it.operation).expect("an operation"),
            target: target(&it.slice, it.life),
            cores: u16::try_from(resources.cores).expect("some cores"),
            memory_mib: resources.memory_bytes >> 20,
        };
        self.call(it.term, &call)?;
        Ok(Response::new(ReserveResponse::default()))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        self.pass().await;
        let it = request.into_inner();
        let operation = Uid::try_from(it.operation).expect("an operation");
        self.call(it.term, &Call::Release { operation })?;
        Ok(Response::new(ReleaseResponse {}))
    }

    async fn ensure_slice(
        &self,
        request: Request<EnsureSliceRequest>,
    ) -> Result<Response<HostSlice>, Status> {
        self.pass().await;
        let it = request.into_inner();
        assert_eq!(it.secret.len(), 32, "the secret in bytes");
        let target = target(&it.slice, it.life);
        let role = match it.role.expect("a role") {
            RoleMessage::Companion(_) => Role::Companion,
            RoleMessage::Bootstrap(spec) => {
                assert_eq!(spec.kernel, "vmlinuz");
                // Its own part has no address, and all others have one.
                let own: Vec<bool> =
                    spec.parts.iter().map(|part| part.address.is_empty()).collect();
                assert!(own[0] && !own[1..].contains(&true), "{spec:?}");
                Role::Bootstrap { parts: Vec::new(), guest: Box::default(), restore: None }
            }
        };
        let resources = it.resources.expect("how much");
        let cores = u16::try_from(resources.cores).expect("some cores");
        // The same in each of its lives, and for all of its slices.
        let mut secrets = self.secrets.lock().expect("secrets");
        let known = secrets.entry(target.uid.clone()).or_insert_with(|| it.secret.clone());
        assert_eq!(*known, it.secret, "another secret");
        drop(secrets);
        let secret = secret(&target.uid);
        let call = Call::Ensure { target, cores, memory_mib: 0, secret, role };
        let ordered = self.call(it.term, &call)?;
        let Call::Ensure { target, .. } = call else { unreachable!("it is one") };
        self.ensured.lock().expect("orders").push(target);
        match ordered {
            Reply::Ensured(address) => {
                Ok(Response::new(HostSlice { address, ..HostSlice::default() }))
            }
            other => panic!("{other:?}"),
        }
    }

    async fn resize_slice(
        &self,
        request: Request<ResizeSliceRequest>,
    ) -> Result<Response<HostSlice>, Status> {
        self.pass().await;
        let it = request.into_inner();
        let resources = it.resources.expect("how much");
        let cores = u16::try_from(resources.cores).expect("some cores");
        let (target, memory_mib) = (target(&it.slice, it.life), resources.memory_bytes >> 20);
        self.call(it.term, &Call::Resize { target, cores, memory_mib })?;
        Ok(Response::new(HostSlice::default()))
    }

    async fn stop_slice(
        &self,
        request: Request<StopSliceRequest>,
    ) -> Result<Response<HostSlice>, Status> {
        self.pass().await;
        let it = request.into_inner();
        let target = target(&it.slice, it.life);
        let call = if it.force { Call::End { target } } else { Call::Stop { target } };
        self.call(it.term, &call)?;
        Ok(Response::new(HostSlice::default()))
    }

    async fn remove_slice(
        &self,
        request: Request<RemoveSliceRequest>,
    ) -> Result<Response<RemoveSliceResponse>, Status> {
        self.pass().await;
        let it = request.into_inner();
        self.call(it.term, &Call::Remove { targets: vec![target(&it.slice, it.life)] })?;
        Ok(Response::new(RemoveSliceResponse {}))
    }

    async fn delete_checkpoints(
        &self,
        request: Request<DeleteCheckpointsRequest>,
    ) -> Result<Response<DeleteCheckpointsResponse>, Status> {
        self.pass().await;
        let it = request.into_inner();
        self.call(it.term, &Call::Discard { folders: it.checkpoints })?;
        Ok(Response::new(DeleteCheckpointsResponse {}))
    }

    async fn fence_vm(
        &self,
        request: Request<FenceVmRequest>,
    ) -> Result<Response<FenceProof>, Status> {
        self.pass().await;
        let it = request.into_inner();
        let uid = it.vm.strip_prefix("vms/").expect("a VM").to_owned();
        let uid = Uid::try_from(uid).expect("the uid of a VM");
        self.call(it.term, &Call::Fence { uid, life: it.life })?;
        Ok(Response::new(FenceProof::default()))
    }
}

/// What is handed on to a slice: of `VmService` only the one call that an orchestrator makes.
#[derive(Clone)]
struct Slices(Door);

impl NamedService for Slices {
    const NAME: &'static str = "tessera.control.v1.VmService";
}

impl UnaryService<GetVmRequest> for Slices {
    type Response = Vm;
    type Future = Ready<Result<Response<Vm>, Status>>;

    fn call(&mut self, request: Request<GetVmRequest>) -> Self::Future {
        let slice = request.metadata().get("tessera-slice").and_then(|value| value.to_str().ok());
        let slice = slice.expect("which slice").to_owned();
        let host = self.0.here();
        let runs = host.slices.iter().any(|(target, slice_here)| {
            slice == format!("vms/{}/slices/{}", target.uid, target.slice)
                && slice_here.ended.is_none()
        });
        let state = vm::State::Running.into();
        ready(if runs {
            Ok(Response::new(Vm { state, ..Vm::default() }))
        } else {
            Err(Status::not_found("no slice"))
        })
    }
}

impl Service<http::Request<Body>> for Slices {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let it = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<Vm, GetVmRequest>::default();
            Ok(Grpc::new(codec).unary(it, request).await)
        })
    }
}

/// Serves a host in the runtime of the caller; and where its agent is reached.
pub(crate) fn serve(folder: &Path, host: &str, cores: u16) -> (Door, String) {
    let host_here = Arc::new(Mutex::new(Host::named(host, cores, 65536)));
    let door = Door {
        host: host_here,
        secrets: Arc::default(),
        ensured: Arc::default(),
        is_stuck: Arc::default(),
        hides_term: Arc::default(),
    };
    let path = folder.join(host);
    let listener = UnixListener::bind(&path).expect("a socket");
    let server = Server::builder()
        .add_service(AgentServiceServer::new(door.clone()))
        .add_service(Slices(door.clone()));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    (door, format!("unix:{}", path.display()))
}
