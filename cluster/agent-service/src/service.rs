//! `AgentService` over the agent.
//!
//! ```text
//!   Reserve, Release, ResizeSlice, StopSlice, FenceVm --names, numbers--> agent
//!   EnsureSlice --words--> its files may be named? --one at a time--> its port --secret is on the disk--> agent --refused--> swept away
//!   DeleteCheckpoints --names--> few at a time: their files
//!   RemoveSlice --one at a time--> agent --forgotten--> swept away
//!   GetHost, WatchHost <-- the agent's journal
//! ```
//! What was begun goes on when the client goes: it has no answer then, and asks again.

use crate::checkpoints::{self, Mounted};
use crate::names;
use crate::order::{self, Folders, invalid, listens};
use crate::places::{Places, look};
use crate::ports::Ports;
use crate::problem::{Problem, not_done, status};
use crate::shape::{self, Fixed};
use crate::watch::{Watch, Watchers};
use agent::decide::{
    Generation, Manner, Operation, RESERVED_MAX_MS, Refusal, Reply, Request as Asked, SliceName,
    Term,
};
use agent::runtime::{AgentHandle, AskError};
use control::v1::agent_service_server::AgentService;
use control::v1::{
    DeleteCheckpointsRequest, DeleteCheckpointsResponse, EnsureSliceRequest, FenceProof,
    FenceVmRequest, GetHostRequest, Host, HostSlice, ReleaseRequest, ReleaseResponse,
    RemoveSliceRequest, RemoveSliceResponse, ReserveRequest, ReserveResponse, ResizeSliceRequest,
    StopSliceRequest, WatchHostRequest,
};
use prost_types::Duration as ProtoDuration;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

type Result<T> = std::result::Result<T, Status>;

/// Requests whose files are looked at, at a time: a file system may not answer.
const LOOKING_MAX: usize = 4;
/// Between two looks whether the agent is there.
const LOOK: Duration = Duration::from_millis(200);
/// A reservation lasts so long unless given, and at most.
const KEPT: Duration = Duration::from_secs(30);
const KEPT_MAX: Duration = Duration::from_secs(3600);
const BOOKMARKS: Duration = Duration::from_secs(10);
const BOOKMARKS_MIN: Duration = Duration::from_secs(1);

/// The service. Clones are of the same agent.
#[derive(Clone, Debug)]
pub(crate) struct AgentApi {
    pub(crate) agent: AgentHandle,
    pub(crate) fixed: Arc<Fixed>,
    pub(crate) folders: Arc<Folders>,
    pub(crate) checkpoints: Arc<Mounted>,
    pub(crate) places: Places,
    pub(crate) ports: Ports,
    pub(crate) watchers: Watchers,
    /// Who has files made, or removed.
    pub(crate) one: Arc<Mutex<()>>,
    pub(crate) looking: Arc<Semaphore>,
}

pub(crate) fn looking() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LOOKING_MAX))
}

/// Does work that may wait for a disk.
async fn wait<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = spawn_blocking(work).await;
    done.map_err(|_| status(&Problem::Bug, "a thread has ended early: this is a bug"))
}

/// Goes on with what was begun, also if nobody waits for it.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let done = tokio::spawn(work).await;
    done.map_err(|_| status(&Problem::Bug, "a call has ended early: this is a bug"))?
}

fn other_answer<T>() -> Result<T> {
    Err(status(&Problem::Bug, "the agent has answered something else: this is a bug"))
}

fn duration(field: &str, given: Option<&ProtoDuration>, unless: Duration) -> Result<Duration> {
    let Some(given) = given else { return Ok(unless) };
    let parsed = Duration::try_from(*given);
    parsed.or_else(|_| Ok(invalid(field, "it is not a length of time")?))
}

fn operation(text: &str) -> Result<Operation> {
    let digits = names::digits(text).map(Operation);
    match digits {
        Some(operation) => Ok(operation),
        None => Ok(invalid("operation", "it is not 32 hexadecimal digits")?),
    }
}

impl AgentApi {
    async fn ask(&self, term: u64, request: Asked) -> Result<Reply> {
        let (send, mut answer) = oneshot::channel();
        let tell = move |answer| {
            // Whoever asked may have gone.
            let _ = send.send(answer);
        };
        self.agent.ask_then(Term(term), request, tell).map_err(|error| not_done(&error))?;
        loop {
            match timeout(LOOK, &mut answer).await {
                Ok(Ok(answer)) => return answer.map_err(|error| not_done(&error)),
                Err(_) if !self.agent.has_ended() => {}
                Ok(Err(_)) | Err(_) => return Err(not_done(&AskError::Gone)),
            }
        }
    }

    async fn ask_for_slice(
        &self,
        term: u64,
        slice: SliceName,
        request: Asked,
    ) -> Result<HostSlice> {
        match self.ask(term, request).await? {
            Reply::Slice(it) => Ok(shape::slice(slice, &it)),
            Reply::Done | Reply::Fenced(_) => other_answer(),
        }
    }

    fn check_host(&self, name: &str) -> Result<()> {
        if matches!(name, "" | "hosts/-") || name == self.fixed.name {
            return Ok(());
        }
        let text = format!("this is {}, and not {name:?}", self.fixed.name);
        Err(status(&Problem::HostNotFound, &text))
    }

    /// A deposed orchestrator does not even have files made.
    fn check_term(&self, got: u64) -> Result<()> {
        let (have, got) = (self.agent.journal().term, Term(got));
        if got >= have {
            return Ok(());
        }
        Err(not_done(&AskError::Refused(Refusal::StaleTerm { have, got })))
    }

    /// Whether what a request names is where it may be.
    async fn look_at_files(&self, request: &EnsureSliceRequest, listens: bool) -> Result<()> {
        // Words are the same with any port, and any files of its own.
        let listen = listens.then_some(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        let (slice, life, _) = order::subject(request)?;
        let files = self.places.files((slice, life));
        let named = order::order(request, &self.folders, &files, listen)?.named;
        let place = Arc::clone(&self.looking).try_acquire_owned();
        let Ok(place) = place else {
            let text = format!("files of {LOOKING_MAX} requests are looked at already");
            return Err(status(&Problem::TooManyCalls, &text));
        };
        let look_at_all = move || {
            let _place = place;
            named.iter().try_for_each(|it| {
                look(it).map_err(|message| order::Invalid { field: it.field.clone(), message })
            })
        };
        Ok(wait(look_at_all).await??)
    }

    async fn ensure(&self, request: EnsureSliceRequest) -> Result<HostSlice> {
        let (slice, life, is_companion) = order::subject(&request)?;
        self.check_term(request.term)?;
        let of = (slice, life);
        let is_known = |api: &Self| {
            let journal = api.agent.journal();
            journal.slices.get(&slice).filter(|it| it.generation == life).cloned()
        };
        if is_known(self).is_none() {
            self.look_at_files(&request, is_companion).await?;
        }
        let _one = self.one.lock().await;
        let known = is_known(self);
        let listen = match &known {
            // One that did not listen was ordered otherwise, and no other one has this port.
            Some(known) => is_companion.then(|| {
                listens(&known.order).unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
            }),
            None if is_companion => Some(self.choose_port()?),
            None => None,
        };
        let files = self.places.files(of);
        let ordered = order::order(&request, &self.folders, &files, listen)?;
        let (places, secret) = (self.places.clone(), request.secret);
        let failed = |error: io::Error| {
            status(&Problem::State, &format!("files of the slice cannot be kept: {error}"))
        };
        if known.is_some() {
            let same = wait(move || places.has_secret(of, &secret)).await?.map_err(failed)?;
            if !same {
                return Err(not_done(&AskError::Refused(Refusal::GenerationConflict)));
            }
        } else {
            let kept = wait(move || places.keep_secret(of, &secret)).await?;
            if kept.is_err() {
                self.sweep().await?;
            }
            kept.map_err(failed)?;
        }
        let order = ordered.order;
        let asked = Asked::Ensure { slice, generation: life, order };
        let answer = self.ask_for_slice(request.term, slice, asked).await;
        if known.is_none() {
            self.sweep().await?;
        }
        answer
    }

    fn choose_port(&self) -> Result<SocketAddr> {
        let chosen = self.ports.choose(&self.agent.journal());
        chosen.map_err(|error| status(&Problem::NoPort, &error.to_string()))
    }

    /// Removes files that no slice has. Nobody makes any meanwhile.
    async fn sweep(&self) -> Result<()> {
        let (places, journal) = (self.places.clone(), self.agent.journal());
        wait(move || places.sweep(&journal)).await
    }

    async fn remove(&self, request: RemoveSliceRequest) -> Result<RemoveSliceResponse> {
        let slice = order::slice("slice", &request.slice)?;
        let generation = order::life(request.life)?;
        let _one = self.one.lock().await;
        match self.ask(request.term, Asked::Remove { slice, generation }).await? {
            Reply::Done => {}
            Reply::Slice(_) | Reply::Fenced(_) => return other_answer(),
        }
        self.sweep().await?;
        Ok(RemoveSliceResponse {})
    }
}

#[tonic::async_trait]
impl AgentService for AgentApi {
    type WatchHostStream = Watch;

    async fn get_host(&self, request: Request<GetHostRequest>) -> Result<Response<Host>> {
        self.check_host(&request.into_inner().name)?;
        Ok(Response::new(Host::clone(&*self.watchers.look()?)))
    }

    async fn watch_host(&self, request: Request<WatchHostRequest>) -> Result<Response<Watch>> {
        let request = request.into_inner();
        self.check_host(&request.name)?;
        let given = request.bookmark_interval.as_ref();
        let bookmarks = duration("bookmark_interval", given, BOOKMARKS)?;
        self.watchers.watch(bookmarks.max(BOOKMARKS_MIN)).map(Response::new)
    }

    async fn reserve(&self, request: Request<ReserveRequest>) -> Result<Response<ReserveResponse>> {
        let request = request.into_inner();
        let ttl = duration("ttl", request.ttl.as_ref(), KEPT)?;
        if ttl.is_zero() || ttl > KEPT_MAX {
            let message = "a reservation lasts longer than nothing, and an hour at most";
            return Ok(invalid("ttl", message)?);
        }
        let lasts = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, RESERVED_MAX_MS);
        let asked = Asked::Reserve {
            operation: operation(&request.operation)?,
            slice: order::slice("slice", &request.slice)?,
            generation: order::life(request.life)?,
            resources: order::resources("resources", request.resources.as_ref())?,
            lasts,
        };
        self.ask(request.term, asked).await?;
        let ttl = ProtoDuration::try_from(Duration::from_millis(lasts)).ok();
        Ok(Response::new(ReserveResponse { ttl }))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseResponse>> {
        let request = request.into_inner();
        let operation = operation(&request.operation)?;
        self.ask(request.term, Asked::Release { operation }).await?;
        Ok(Response::new(ReleaseResponse {}))
    }

    async fn ensure_slice(
        &self,
        request: Request<EnsureSliceRequest>,
    ) -> Result<Response<HostSlice>> {
        let (api, request) = (self.clone(), request.into_inner());
        to_its_end(async move { api.ensure(request).await }).await.map(Response::new)
    }

    async fn resize_slice(
        &self,
        request: Request<ResizeSliceRequest>,
    ) -> Result<Response<HostSlice>> {
        let request = request.into_inner();
        let slice = order::slice("slice", &request.slice)?;
        let generation = order::life(request.life)?;
        let resources = order::resources("resources", request.resources.as_ref())?;
        let asked = Asked::Resize { slice, generation, resources };
        self.ask_for_slice(request.term, slice, asked).await.map(Response::new)
    }

    async fn stop_slice(&self, request: Request<StopSliceRequest>) -> Result<Response<HostSlice>> {
        let request = request.into_inner();
        let slice = order::slice("slice", &request.slice)?;
        let generation = order::life(request.life)?;
        let manner = if request.force { Manner::AtOnce } else { Manner::Orderly };
        let asked = Asked::Stop { slice, generation, manner };
        self.ask_for_slice(request.term, slice, asked).await.map(Response::new)
    }

    async fn remove_slice(
        &self,
        request: Request<RemoveSliceRequest>,
    ) -> Result<Response<RemoveSliceResponse>> {
        let (api, request) = (self.clone(), request.into_inner());
        to_its_end(async move { api.remove(request).await }).await.map(Response::new)
    }

    async fn delete_checkpoints(
        &self,
        request: Request<DeleteCheckpointsRequest>,
    ) -> Result<Response<DeleteCheckpointsResponse>> {
        let (api, request) = (self.clone(), request.into_inner());
        api.check_term(request.term)?;
        let paths = checkpoints::paths(&api.folders.checkpoints, &request.checkpoints)?;
        to_its_end(async move {
            // None of them is closed.
            let _turn = api.looking.acquire().await;
            let folder = Arc::clone(&api.checkpoints);
            let deleted = wait(move || folder.delete_all(&paths));
            deleted.await?.map_err(|error| {
                let problem = Problem::CheckpointStays;
                status(&problem, &format!("a checkpoint stays: {error}"))
            })
        })
        .await?;
        Ok(Response::new(DeleteCheckpointsResponse {}))
    }

    async fn fence_vm(&self, request: Request<FenceVmRequest>) -> Result<Response<FenceProof>> {
        let request = request.into_inner();
        let Some(vm) = names::vm(&request.vm) else {
            let message = "it is not vms/VM, where VM has 32 hexadecimal digits";
            return Ok(invalid("vm", message)?);
        };
        let Generation(life) = order::life(request.life)?;
        let asked = Asked::Fence { vm, generation: Generation(life) };
        match self.ask(request.term, asked).await? {
            Reply::Fenced(proof) => Ok(Response::new(FenceProof {
                host: self.fixed.name.clone(),
                vm: names::vm_name(proof.vm),
                life: proof.generation.0,
                boot_id: self.fixed.inventory.boot_id.clone(),
            })),
            Reply::Done | Reply::Slice(_) => other_answer(),
        }
    }
}
