//! The orchestrator's server: its thread, where connections come from, and its end.
//!
//! ```text
//!   begin --store, sockets--> serving, and beside it: follows <--> leads
//!   UNIX socket --peer credentials--+--> a place among CONNECTIONS_MAX, or closed --> HTTP/2
//!   TCP --TLS 1.3-------------------+
//!   dropped: it resigns, calls that go on have a moment, then it ends. VMs go on.
//! ```

use super::cluster::ClusterApi;
use super::hosts::HostsApi;
use super::metrics::ClusterMetrics;
use super::operations::Operations;
use super::vms::VmsApi;
use crate::run::{Handle, Role, Standing, handle, orchestrate};
use ::metrics::{Listening as MetricsListening, MetricsError, serve as serve_metrics};
use control::longrunning::operations_server::OperationsServer;
use control::v1::cluster_server::ClusterServer;
use control::v1::hosts_server::HostsServer;
use control::v1::vms_server::{self, VmsServer};
use std::convert::Infallible;
use std::error::Error;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use store::{OpenError, Store};
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::transport::Server as Http2;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use vm_service::{
    Connection, Listening, PING_EVERY, PING_LIMIT, Remote, STREAMS_MAX, ServerError, admit,
    asked_to_stop, listen_at, reflection, serve_until, welcome_remote, welcome_socket,
};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 1024;
/// Bytes of a request.
const REQUEST_MAX: usize = 256 << 10;

/// What an orchestrator needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it is.
    pub standing: Standing,
    /// Where it listens, over TLS.
    pub remote: Option<Remote>,
    /// Its UNIX socket.
    pub socket: Option<PathBuf>,
    /// Where metrics are served, to whoever reaches that address.
    pub metrics: Option<SocketAddr>,
}

/// Why there is no orchestrator.
#[derive(Debug, Error)]
pub enum OrchestratorError {
    /// Its store.
    #[error("open the store")]
    Store(#[source] Box<dyn Error + Send + Sync>),
    /// Certificates, the address, the thread.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The address of the metrics.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
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

impl OrchestratorError {
    /// Whether another attempt finds the same: what was given is wrong, or somebody has to see to a file first.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Store(error) => {
                !error.downcast_ref::<OpenError>().is_some_and(OpenError::may_pass)
            }
            Self::Server(error) => error.is_final(),
            Self::Metrics(_) | Self::Socket { .. } => false,
        }
    }
}

/// A working orchestrator. When it is dropped it ends, and VMs go on.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    socket: Option<PathBuf>,
}

impl Server {
    /// Begins. The store is opened when it is known that the sockets can be used, and where tasks can be started.
    ///
    /// # Errors
    /// Something that was given cannot be used.
    pub fn begin<S: Store>(
        options: Options,
        open: impl FnOnce() -> Result<S, Box<dyn Error + Send + Sync>>,
    ) -> Result<Self, OrchestratorError> {
        let Options { standing, remote, socket, metrics } = options;
        let (listening, address) = remote.as_ref().map(Listening::open).transpose()?.unzip();
        let (seen, metrics) = metrics.map(MetricsListening::open).transpose()?.unzip();
        let local = socket.as_deref().map(listen).transpose()?;
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(ServerError::Thread)?;
        let store = {
            let _here = runtime.enter();
            open().map_err(OrchestratorError::Store)?
        };
        let (stop, stopped) = watch::channel(false);
        let run = move || {
            runtime.block_on(serve(store, standing, (local, listening, seen), stopped));
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("cluster-api".into()).spawn(run);
        let thread = Some(thread.map_err(ServerError::Thread)?);
        Ok(Self { stop, thread, address, metrics, socket })
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

    /// It has ended by itself: its store has ended for good, or there is a bug.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        let _ = self.thread.take().map(JoinHandle::join);
        // The next one would take it away as well.
        let _ = self.socket.take().map(fs::remove_file);
    }
}

fn listen(path: &Path) -> Result<UnixListener, OrchestratorError> {
    listen_at(path).map_err(|source| OrchestratorError::Socket { path: path.to_owned(), source })
}

/// Leads whenever it can, and serves, until it is to stop or its store has ended.
pub async fn serve<S: Store>(
    store: S,
    standing: Standing,
    (local, listening, seen): (Option<UnixListener>, Option<Listening>, Option<MetricsListening>),
    stopped: watch::Receiver<bool>,
) {
    let (handle, inbox) = handle();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (sender, connections) = mpsc::channel(1);
    if let Some(local) = local {
        tokio::spawn(welcome_socket(local, Arc::clone(&places), sender.clone()));
    }
    if let Some(listening) = listening {
        tokio::spawn(welcome_remote(listening, places, sender.clone()));
    }
    if let Some(seen) = seen {
        tokio::spawn(serve_metrics(seen, ClusterMetrics(handle.clone())));
    }
    let (health, health_service) = health_reporter();
    tokio::spawn(tell_health(handle.clone(), health));
    let (name, agents) = (standing.candidate.name.clone(), standing.agents.clone());
    let vms = VmsServer::new(VmsApi::new(handle.clone()));
    let hosts = HostsServer::new(HostsApi::new(handle.clone(), agents));
    let cluster = ClusterServer::new(ClusterApi::new(handle.clone(), name));
    let operations = OperationsServer::new(Operations::new(handle));
    let router = Http2::builder()
        .layer(InterceptorLayer::new(admit))
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .add_service(vms.max_decoding_message_size(REQUEST_MAX))
        .add_service(hosts.max_decoding_message_size(REQUEST_MAX))
        .add_service(cluster.max_decoding_message_size(REQUEST_MAX))
        .add_service(operations.max_decoding_message_size(REQUEST_MAX))
        .add_service(health_service)
        .add_optional_service(reflection());
    let incoming = ReceiverStream::new(connections).map(Ok::<Connection, Infallible>);
    let until = asked_to_stop(stopped.clone());
    let serving = router.serve_with_incoming_shutdown(incoming, until);
    let serving = serve_until("the orchestrator", serving, stopped.clone());
    // The sender lives as long as this does: without a socket nobody comes, and it leads nevertheless.
    let leading = orchestrate(store, standing, inbox, stopped.clone());
    tokio::pin!(leading, serving);
    tokio::select! {
        // By itself: it will never lead again, and nobody who asks is served.
        () = &mut leading => if *stopped.borrow() { serving.await },
        () = &mut serving => leading.await,
    }
    drop(sender);
}

/// Says that it serves as long as it leads.
async fn tell_health(handle: Handle, health: HealthReporter) {
    let mut roles = handle.roles();
    loop {
        let leads = matches!(*roles.borrow_and_update(), Role::Leads { .. });
        let status = if leads { ServingStatus::Serving } else { ServingStatus::NotServing };
        health.set_service_status(vms_server::SERVICE_NAME, status).await;
        if roles.changed().await.is_err() {
            return;
        }
    }
}
