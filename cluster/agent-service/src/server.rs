//! The agent's server: its thread, where connections come from, and its end.
//!
//! ```text
//!   begin --folders, ports, inventory, leftovers--> serving <--each 100 ms-- changes are told; each second: logs
//!   UNIX socket --peer credentials--+--> a place among CONNECTIONS_MAX, or closed --> HTTP/2
//!   TCP --TLS 1.3-------------------+
//!   dropped: watches end, calls that go on have a moment, then the agent ends. Slices go on.
//! ```

use crate::checkpoints::Mounted;
use crate::forward::{SliceOperations, Slices, Vms};
use crate::inventory::Inventory;
use crate::logs::{LOG_MAX, tend};
use crate::metrics::HostMetrics;
use crate::order::Folders;
use crate::places::Places;
use crate::ports::Ports;
use crate::service::{AgentApi, looking};
use crate::shape::Fixed;
use crate::watch::Watchers;
use ::metrics::{Listening as MetricsListening, MetricsError, serve as serve_metrics};
use agent::decide::Settings;
use agent::runtime::{AgentHandle, BeginError, Options as AgentOptions, Running};
use control::v1::agent_service_server::{AgentServiceServer, SERVICE_NAME};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{interval, sleep};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::transport::Server as Http2;
use tonic_health::ServingStatus;
use tonic_health::server::health_reporter;
use vm_service::{
    Connection, Listening, PING_EVERY, PING_LIMIT, Remote, STREAMS_MAX, ServerError, admit,
    asked_to_stop, listen_at, reflection, serve_until, welcome_remote, welcome_socket,
};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 256;
/// Bytes of a request.
const REQUEST_MAX: usize = 256 << 10;
/// Threads that may wait for disks.
const WAITING_MAX: usize = 8;
const LOOK_EVERY: Duration = Duration::from_millis(100);
const TEND_EVERY: Duration = Duration::from_secs(1);

/// What an agent needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// NAME of hosts/NAME.
    pub name: String,
    /// Its own folder.
    pub state: PathBuf,
    /// From there kernels and disks are named.
    pub images: PathBuf,
    /// From there checkpoints are named.
    pub checkpoints: PathBuf,
    /// Where companions listen.
    pub ports: Ports,
    /// What the host has.
    pub inventory: Inventory,
    /// The program of slices.
    pub program: PathBuf,
    /// Where it listens, over TLS.
    pub remote: Option<Remote>,
    /// Its UNIX socket.
    pub socket: Option<PathBuf>,
    /// What slices have in their environment beside what an agent always gives them.
    pub environment: Vec<(String, String)>,
    /// Where metrics are served, to whoever reaches that address.
    pub metrics: Option<SocketAddr>,
}

/// Why there is no agent.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The agent itself.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// Certificates, the address, the thread.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The address of the metrics.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// A folder cannot be used.
    #[error("use {} as the folder of {what}", .path.display())]
    Folder {
        /// Of what.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The name of a host has letters, digits and `-`.
    #[error(
        "{0:?} is no name of a host: 1 to 63 small letters, digits and -, a letter or digit at both ends"
    )]
    Name(String),
    /// The socket.
    #[error("listen at {}, whose folder must be there", .path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl AgentError {
    /// Whether another attempt finds the same: what was given is wrong, or somebody has to see to a file first. Anything else may pass: a disk that
    /// is full or not mounted yet, an address that the host does not have yet.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Begin(error) => error.is_final(),
            Self::Server(error) => error.is_final(),
            Self::Folder { source, .. } => source.kind() == io::ErrorKind::InvalidFilename,
            Self::Name(_) => true,
            Self::Metrics(_) | Self::Socket { .. } => false,
        }
    }
}

/// A working agent that is served. When it is dropped it ends, and slices go on.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    socket: Option<PathBuf>,
    /// After the thread.
    running: Running,
}

fn check_name(name: &str) -> Result<(), AgentError> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = (1..=63).contains(&name.len()) && name.bytes().all(|it| is_letter(it) || it == b'-');
    let ends = [name.bytes().next(), name.bytes().last()];
    if fits && ends.iter().flatten().all(|byte| is_letter(*byte)) {
        Ok(())
    } else {
        Err(AgentError::Name(name.to_owned()))
    }
}

/// The name of a folder as it comes into words of slices.
fn folder(what: &'static str, path: &Path) -> Result<String, AgentError> {
    let failed = |source| AgentError::Folder { what, path: path.to_owned(), source };
    let wrong = |text: &str| failed(io::Error::new(io::ErrorKind::InvalidFilename, text));
    let text = path.to_str().filter(|text| !text.chars().any(|it| it.is_control() || it == ','));
    let text = text.ok_or_else(|| wrong("its name has a comma, or is not text"))?;
    if !path.is_absolute() {
        return Err(wrong("its name does not begin with /"));
    }
    fs::read_dir(path).map_err(failed)?;
    Ok(text.trim_end_matches('/').to_owned())
}

impl Server {
    /// Begins.
    ///
    /// # Errors
    /// Another agent is here, or something that was given cannot be used.
    pub fn begin(options: Options) -> Result<Self, AgentError> {
        check_name(&options.name)?;
        let images = folder("images", &options.images)?;
        let checkpoints = folder("checkpoints", &options.checkpoints)?;
        let mounted = Mounted::look(&checkpoints).map_err(|source| AgentError::Folder {
            what: "checkpoints",
            path: options.checkpoints.clone(),
            source,
        })?;
        let (listening, address) =
            options.remote.as_ref().map(Listening::open).transpose()?.unzip();
        let (seen, metrics) = options.metrics.map(MetricsListening::open).transpose()?.unzip();
        let settings = Settings { capacity: options.inventory.capacity() };
        let running = Running::begin(AgentOptions {
            settings,
            program: options.program,
            folder: options.state.clone(),
            environment: options.environment,
        })?;
        folder("the agent", &options.state)?;
        let places = Places::open(&options.state).map_err(|source| AgentError::Folder {
            what: "the agent",
            path: options.state.clone(),
            source,
        })?;
        // Whatever holds the journal is the only one here.
        places.sweep(&running.handle().journal());
        let local = options.socket.as_deref().map(listen).transpose()?;
        let fixed = Arc::new(Fixed {
            name: format!("hosts/{}", options.name),
            agent_id: running.handle().identity().to_owned(),
            inventory: options.inventory,
            images: images.clone(),
            checkpoints: checkpoints.clone(),
        });
        let agent = running.handle();
        let api = AgentApi {
            agent: agent.clone(),
            watchers: Watchers::new(agent.clone(), Arc::clone(&fixed)),
            fixed,
            folders: Arc::new(Folders { images, checkpoints }),
            checkpoints: Arc::new(mounted),
            places: places.clone(),
            ports: options.ports,
            one: Arc::new(Mutex::new(())),
            looking: looking(),
        };
        let slices = Slices::new(agent.clone(), places);
        let fixed = Arc::clone(&api.fixed);
        let source = HostMetrics { agent: agent.clone(), fixed, slices: slices.clone() };
        let logs = options.state.join("slices");
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name("agent-call")
            .max_blocking_threads(WAITING_MAX)
            .build()
            .map_err(ServerError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let run = move || {
            run(runtime, async move {
                tokio::spawn(tell_of_changes(api.watchers.clone()));
                tokio::spawn(tend_logs(logs, agent));
                seen.map(|listening| tokio::spawn(serve_metrics(listening, source)));
                serve(api, slices, (local, listening), stopped).await;
            });
        };
        let thread = thread::Builder::new().name("agent-api".into()).spawn(run);
        let thread = Some(thread.map_err(ServerError::Thread)?);
        Ok(Self { stop, thread, address, metrics, socket: options.socket, running })
    }

    /// Where it listens for TCP, if it does.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Where it listens for those who read metrics, if it does.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// A way to the agent.
    #[must_use]
    pub fn agent(&self) -> AgentHandle {
        self.running.handle()
    }
}

fn run(runtime: Runtime, serving: impl Future<Output = ()>) {
    runtime.block_on(serving);
    // A call that still waits for a disk waits alone.
    runtime.shutdown_background();
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        let _ = self.thread.take().map(JoinHandle::join);
        // The next agent would take it away as well.
        let _ = self.socket.take().map(fs::remove_file);
    }
}

/// Listens at a UNIX socket. One that an agent of before has left goes: the journal says that it is not there any more.
fn listen(path: &Path) -> Result<UnixListener, AgentError> {
    listen_at(path).map_err(|source| AgentError::Socket { path: path.to_owned(), source })
}

/// Serves until it is to stop.
async fn serve(
    api: AgentApi,
    slices: Slices,
    (local, listening): (Option<UnixListener>, Option<Listening>),
    stopped: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (sender, connections) = mpsc::channel(1);
    if let Some(local) = local {
        tokio::spawn(welcome_socket(local, Arc::clone(&places), sender.clone()));
    }
    if let Some(listening) = listening {
        tokio::spawn(welcome_remote(listening, places, sender));
    }
    let (health, health_service) = health_reporter();
    health.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
    let watchers = api.watchers.clone();
    let service = AgentServiceServer::new(api).max_decoding_message_size(REQUEST_MAX);
    let router = Http2::builder()
        .layer(InterceptorLayer::new(admit))
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .add_service(service)
        .add_service(Vms(slices.clone()))
        .add_service(SliceOperations(slices))
        .add_service(health_service)
        .add_optional_service(reflection());
    let incoming = ReceiverStream::new(connections).map(Ok::<Connection, Infallible>);
    let end = asked_to_stop(stopped.clone());
    let until = async move {
        end.await;
        watchers.end();
    };
    let serving = router.serve_with_incoming_shutdown(incoming, until);
    serve_until("the agent", serving, stopped).await;
}

/// Tells those who watch of each change.
async fn tell_of_changes(watchers: Watchers) {
    while let Ok(is_watched) = watchers.is_watched() {
        // It fails when the agent ends.
        let _ = is_watched.then(|| watchers.look());
        sleep(LOOK_EVERY).await;
    }
}

/// Keeps logs of slices short.
async fn tend_logs(folder: PathBuf, agent: AgentHandle) {
    let mut ticks = interval(TEND_EVERY);
    loop {
        ticks.tick().await;
        let (folder, agent) = (folder.clone(), agent.clone());
        // It is waited for: there is one at a time.
        let _ = spawn_blocking(move || tend(&folder, || agent.journal(), LOG_MAX)).await;
    }
}
