//! Calls to agents.
//!
//! ```text
//!   call ──a place among those of its host, and among all──> try ──answered──> reply, refused, deposed
//!                                    ^ └─nobody answers─> a pause, longer each time and half of it chance ─┐
//!                                    └──────────── TRIES at most, all within the call's time <─────────────┘──> unreachable
//! ```
//! What may have been done is the machine's to ask again: agents do each once.
//!
//! **A host has places of its own**, so one whose agent is stuck and says nevertheless how it is takes none from the others. Who waits
//! for a place waits within the call's time, and more than so many do not wait at all.

use super::convert::{Message, failed, message, places, report, text, written};
use crate::decide::{Call, Failure, Reply, VmSight};
use control::longrunning::WaitOperationRequest;
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_client::OperationsClient;
use control::v1::agent_service_client::AgentServiceClient;
use control::v1::vm::State;
use control::v1::vm_service_client::VmServiceClient;
use control::v1::{CreateCheckpointResponse, GetHostRequest, GetVmRequest, Vm};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use prost_types::Any;
use state::Term;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use tower::service_fn;

/// To know how a host is.
const LOOK_LIMIT: Duration = Duration::from_secs(3);
/// For anything else: a slice is started meanwhile, or ended.
const CALL_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Whether the other end is still there.
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// Of a call, where nobody answers at all.
const TRIES: u32 = 3;
const FIRST_PAUSE_MS: u64 = 100;
/// Hosts that are asked at a time how they are; others wait. Those that are gone take all of their time.
const LOOKS_MAX: usize = 2048;
/// Other calls at a time.
const CALLS_MAX: usize = 2048;
/// Of them to one host. As many moves and checkpoints as go on at a time may wait there for their ends, and others are to pass them.
const HOST_CALLS_MAX: usize = 16;
/// Calls to one host that are made or wait.
const HOST_QUEUE_MAX: usize = 256;
/// Connections that are kept.
const CHANNELS_MAX: usize = 10_000;

/// With what an orchestrator proves who it is, all in PEM.
#[derive(Clone)]
pub struct AgentTls {
    /// The authority of the agents' certificates.
    pub authority: Vec<u8>,
    /// The orchestrator's certificate.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for AgentTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentTls")
    }
}

/// Why an agent is not called.
#[derive(Debug, Error)]
pub enum AgentsError {
    /// Neither `https://NAME:PORT` nor `unix:PATH`.
    #[error("{0:?} is no address of an agent: https://NAME:PORT or unix:PATH")]
    Address(String),
    /// There are no certificates.
    #[error("{0} is called over TLS, for which the orchestrator has no certificate")]
    NoTls(String),
    /// They cannot be used.
    #[error("prepare TLS")]
    Tls(#[source] tonic::transport::Error),
}

/// The way to an agent.
#[derive(Clone, Debug)]
struct Way {
    channel: Channel,
    /// Who calls.
    places: Arc<Semaphore>,
    /// Who calls or waits.
    queue: Arc<Semaphore>,
}

/// The agents of all hosts. Clones are one.
#[derive(Clone, Debug)]
pub struct Agents {
    tls: Option<Arc<AgentTls>>,
    ways: Arc<Mutex<BTreeMap<String, Way>>>,
    looks: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

impl Agents {
    /// Over TLS, if there are certificates, and on UNIX sockets.
    #[must_use]
    pub fn new(tls: Option<AgentTls>) -> Self {
        Self {
            tls: tls.map(Arc::new),
            ways: Arc::default(),
            looks: Arc::new(Semaphore::new(LOOKS_MAX)),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
        }
    }

    /// Whether an agent could be called there. Nobody is.
    ///
    /// # Errors
    /// It is no address, or certificates are missing.
    pub fn check(&self, address: &str) -> Result<(), AgentsError> {
        match address.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(()),
            Some(_) => Err(AgentsError::Address(address.to_owned())),
            None => self.endpoint(address).map(drop),
        }
    }

    fn way(&self, address: &str) -> Result<Way, AgentsError> {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = ways.get(address) {
            return Ok(way.clone());
        }
        let channel = self.open(address)?;
        if ways.len() >= CHANNELS_MAX {
            // They are made again when they are needed.
            ways.clear();
        }
        let places = Arc::new(Semaphore::new(HOST_CALLS_MAX));
        let way = Way { channel, places, queue: Arc::new(Semaphore::new(HOST_QUEUE_MAX)) };
        ways.insert(address.to_owned(), way.clone());
        Ok(way)
    }

    /// It connects when it is used, and again after it was cut.
    fn open(&self, address: &str) -> Result<Channel, AgentsError> {
        if let Some(path) = address.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            let connect = service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            // The name is needed for the form of HTTP only.
            return Ok(Endpoint::from_static("http://agent").connect_with_connector_lazy(connect));
        }
        Ok(self.endpoint(address)?.connect_lazy())
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, AgentsError> {
        let wrong = || AgentsError::Address(address.to_owned());
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|_| wrong())?;
        let uri = endpoint.uri();
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if uri.scheme_str() != Some("https") || !has_host || uri.port_u16().is_none() || !is_bare {
            return Err(wrong());
        }
        let tls = self.tls.as_ref().ok_or_else(|| AgentsError::NoTls(address.to_owned()))?;
        let config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&tls.authority))
            .identity(Identity::from_pem(&tls.certificate, &tls.key));
        let endpoint = endpoint.tls_config(config).map_err(AgentsError::Tls)?;
        // Answers are small, and somebody waits for each.
        let endpoint = endpoint.connect_timeout(CONNECT_LIMIT).tcp_nodelay(true);
        // Of a host that lost its power the connection would seem to be there for minutes, and longer than the host is away.
        Ok(endpoint
            .http2_keep_alive_interval(PROBE_EVERY)
            .keep_alive_timeout(PROBE_LIMIT)
            .keep_alive_while_idle(true))
    }

    /// Asks an agent, and says how that ended.
    ///
    /// # Errors
    /// It was refused, or nobody knows.
    pub async fn call(&self, address: &str, term: Term, call: &Call) -> Result<Reply, Failure> {
        let way = self.way(address).map_err(|error| Failure::Refused(error.to_string()))?;
        let (limit, made) = if matches!(call, Call::Look) {
            // Each host is asked once at a time, so nobody has to wait within a time.
            let _place = self.looks.acquire().await;
            (LOOK_LIMIT, timeout(LOOK_LIMIT, try_for_a_while(way.channel, term, call)).await)
        } else {
            let Ok(_turn) = way.queue.try_acquire() else {
                let why = format!("{HOST_QUEUE_MAX} calls wait for its agent already");
                return Err(Failure::Unreachable(why));
            };
            let made = async {
                // The host's own first: whoever waits for one takes none of those of all.
                let _own = way.places.acquire().await;
                let _place = self.calls.acquire().await;
                try_for_a_while(way.channel.clone(), term, call).await
            };
            (CALL_LIMIT, timeout(CALL_LIMIT, made).await)
        };
        match made {
            Ok(result) => result.or_else(|status| failed(call, &status)),
            Err(_) => Err(Failure::Unreachable(format!("no answer in {limit:?}"))),
        }
    }
}

async fn try_for_a_while(channel: Channel, term: Term, call: &Call) -> Result<Reply, Status> {
    let mut pause = FIRST_PAUSE_MS;
    for _ in 1..TRIES {
        match make(channel.clone(), message(term, call)).await {
            Err(status) if is_silence(&status) => {
                sleep(Duration::from_millis(pause / 2 + fastrand::u64(0..=pause / 2))).await;
                pause *= 2;
            }
            ended => return ended,
        }
    }
    make(channel, message(term, call)).await
}

/// Nobody has answered: an agent gives a reason.
fn is_silence(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.get_error_details().error_info().is_none()
}

async fn make(channel: Channel, message: Message) -> Result<Reply, Status> {
    let mut agent = AgentServiceClient::new(channel.clone());
    Ok(match message {
        Message::Look(term) => {
            let host = agent.get_host(GetHostRequest::default()).await?.into_inner();
            Reply::Report(report(term, &host))
        }
        Message::Ask(slice) => {
            let vm = get_vm(channel, &slice).await?;
            Reply::Vm(if vm.state() == State::Running { VmSight::Runs } else { VmSight::Rests })
        }
        Message::Where(slice) => Reply::Places(places(&get_vm(channel, &slice).await?)),
        Message::Drain(slice, request) => {
            let mut vms = VmServiceClient::new(channel.clone());
            let begun = vms.drain_slice(for_slice(&slice, request)?).await?.into_inner();
            done(to_its_end(channel, &slice, begun.name).await?)
        }
        Message::WriteDown(slice, request) => {
            let mut vms = VmServiceClient::new(channel.clone());
            let begun = vms.create_checkpoint(for_slice(&slice, request)?).await?.into_inner();
            match to_its_end(channel, &slice, begun.name).await? {
                Ok(response) => {
                    let read = CreateCheckpointResponse::decode(&response.value[..]);
                    let read = read.map_err(|error| Status::internal(error.to_string()))?;
                    Reply::Written(written(read))
                }
                Err(why) => Reply::Failed(text(&why)),
            }
        }
        Message::Discard(request) => {
            let folders = request.checkpoints.clone();
            agent.delete_checkpoints(request).await.map(|_| Reply::Discarded(folders))?
        }
        Message::Add(slice, request) => {
            let mut vms = VmServiceClient::new(channel.clone());
            let begun = vms.add_slice(for_slice(&slice, request)?).await?.into_inner();
            done(to_its_end(channel, &slice, begun.name).await?)
        }
        Message::Resize(request) => agent.resize_slice(request).await.map(|_| Reply::Done)?,
        Message::Reserve(request) => agent.reserve(request).await.map(|_| Reply::Done)?,
        Message::Release(request) => agent.release(request).await.map(|_| Reply::Done)?,
        Message::Ensure(request) => {
            let slice = agent.ensure_slice(*request).await?.into_inner();
            Reply::Ensured(slice.address)
        }
        Message::Stop(request) => agent.stop_slice(request).await.map(|_| Reply::Done)?,
        Message::Fence(request) => agent.fence_vm(request).await.map(|_| Reply::Done)?,
        Message::Remove(fence, requests) => {
            if let Some(fence) = fence {
                agent.fence_vm(fence).await?;
            }
            for request in requests {
                match agent.remove_slice(request).await {
                    Err(status) if status.code() != Code::NotFound => return Err(status),
                    _ => {}
                }
            }
            Reply::Done
        }
    })
}

/// A request that the agent hands on to this slice.
fn for_slice<T>(slice: &str, message: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(message);
    let value = MetadataValue::try_from(slice);
    let value = value.map_err(|error| Status::internal(error.to_string()))?;
    request.metadata_mut().insert("tessera-slice", value);
    Ok(request)
}

async fn get_vm(channel: Channel, slice: &str) -> Result<Vm, Status> {
    let request = for_slice(slice, GetVmRequest { name: "vms/-".to_owned() })?;
    Ok(VmServiceClient::new(channel).get_vm(request).await?.into_inner())
}

fn done(ended: Result<Any, String>) -> Reply {
    ended.map_or_else(|why| Reply::Failed(text(&why)), |_| Reply::Done)
}

/// Waits for what a VM has begun. If it takes longer than a call may, it is asked for again and waited for again.
async fn to_its_end(
    channel: Channel,
    slice: &str,
    name: String,
) -> Result<Result<Any, String>, Status> {
    let request = for_slice(slice, WaitOperationRequest { name, timeout: None })?;
    let waited = OperationsClient::new(channel).wait_operation(request).await?.into_inner();
    match waited.result {
        Some(Outcome::Response(response)) => Ok(Ok(response)),
        Some(Outcome::Error(error)) => Ok(Err(error.message)),
        None => Err(Status::unavailable("it is not over yet")),
    }
}
