//! Calls that are for a slice, handed on to its control socket as they are.
//!
//! ```text
//!   call of VmService or Operations --`tessera-slice`--> a slice that runs? --> the connection to its process --> HTTP/2, as it came
//!                                \--none, wrong--> SLICE_NOT_NAMED    \--no--> SLICE_NOT_FOUND, SLICE_NOT_RUNNING
//!                                                       no connection, or it broke --> SLICE_UNREACHABLE
//! ```
//! Messages are not looked at: what a slice can do, its API says.

use crate::names;
use crate::places::Places;
use crate::problem::{Problem, status};
use agent::decide::{Phase, Process, Refusal, SliceName};
use agent::runtime::AgentHandle;
use control::longrunning::operations_server::SERVICE_NAME as OPERATIONS;
use control::v1::vm_service_server::SERVICE_NAME as VM_SERVICE;
use http::{Request, Response};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::{Service, ServiceExt};
use vm_service::{Channel, connect};

/// What names the slice.
pub const METADATA: &str = "tessera-slice";
/// Connections to slices that are kept.
const CHANNELS_MAX: usize = 128;
/// For a slice to take a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A process of a slice. Another one has another connection.
pub(crate) type Key = (SliceName, Process);

/// The way to the slices of a host. Clones are of the same.
#[derive(Clone, Debug)]
pub(crate) struct Slices {
    agent: AgentHandle,
    places: Places,
    channels: Arc<Mutex<BTreeMap<Key, Channel>>>,
}

impl Slices {
    pub(crate) fn new(agent: AgentHandle, places: Places) -> Self {
        Self { agent, places, channels: Arc::default() }
    }

    fn channels(&self) -> MutexGuard<'_, BTreeMap<Key, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that has failed is not used again.
    pub(crate) fn forget(&self, key: &Key) {
        self.channels().remove(key);
    }

    async fn hand_on(&self, mut request: Request<Body>) -> Result<Response<Body>, Status> {
        let named = request.headers_mut().remove(METADATA);
        let slice = named.as_ref().and_then(|name| names::slice(name.to_str().ok()?));
        let slice = slice.ok_or_else(|| {
            let text = format!("the metadata {METADATA} says for which: vms/VM/slices/NUMBER");
            status(&Problem::SliceNotNamed, &text)
        })?;
        let (key, mut channel) = self.channel(slice).await?;
        let ready = channel.ready().await;
        let answer = match ready {
            Ok(ready) => ready.call(request).await,
            Err(error) => Err(error),
        };
        answer.map_err(|error| {
            self.forget(&key);
            let text = format!("the slice does not answer on its control socket: {error}");
            status(&Problem::SliceUnreachable, &text)
        })
    }

    /// The connection to a slice's process, for another call; and what to forget if that one fails.
    pub(crate) async fn channel(&self, slice: SliceName) -> Result<(Key, Channel), Status> {
        let journal = self.agent.journal();
        let Some(known) = journal.slices.get(&slice) else {
            let refusal = Refusal::Unknown;
            let text = refusal.to_string();
            return Err(status(&Problem::Refused(refusal), &text));
        };
        let process = match &known.phase {
            Phase::Running(process) => *process,
            Phase::Starting => {
                return Err(status(&Problem::SliceUnreachable, "the slice is being started"));
            }
            Phase::Ended(end) => {
                let text = format!("the slice {end}");
                return Err(status(&Problem::SliceNotRunning, &text));
            }
        };
        let key = (slice, process);
        if let Some(channel) = self.channels().get(&key) {
            return Ok((key, channel.clone()));
        }
        let path = self.places.control((slice, known.generation));
        let unreachable = |text: &str| status(&Problem::SliceUnreachable, text);
        let connected = timeout(CONNECT_LIMIT, connect(&path)).await;
        let connected = connected.map_err(|_| unreachable("the slice takes no connection"))?;
        let channel = connected.map_err(|error| unreachable(&error.to_string()))?;
        let mut channels = self.channels();
        let runs = |(slice, process): &Key| {
            let phase = journal.slices.get(slice).map(|it| &it.phase);
            phase == Some(&Phase::Running(*process))
        };
        channels.retain(|key, _| runs(key));
        // A call that goes on has a connection of its own share: only later ones need another.
        while channels.len() >= CHANNELS_MAX {
            channels.pop_first();
        }
        channels.insert(key, channel.clone());
        Ok((key, channel))
    }
}

type Handing = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Service<Request<Body>> for Slices {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Handing;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Handing {
        let slices = self.clone();
        Box::pin(async move {
            let answer = slices.hand_on(request).await;
            Ok(answer.unwrap_or_else(Status::into_http))
        })
    }
}

macro_rules! service_of_slices {
    ($(#[$doc:meta])* $name:ident, $of:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name(pub(crate) Slices);

        impl NamedService for $name {
            const NAME: &'static str = $of;
        }

        impl Service<Request<Body>> for $name {
            type Response = Response<Body>;
            type Error = Infallible;
            type Future = Handing;

            fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                self.0.poll_ready(context)
            }

            fn call(&mut self, request: Request<Body>) -> Handing {
                self.0.call(request)
            }
        }
    };
}

service_of_slices! {
    /// Calls of `VmService`.
    Vms, VM_SERVICE
}
service_of_slices! {
    /// Calls of `google.longrunning.Operations`.
    SliceOperations, OPERATIONS
}
