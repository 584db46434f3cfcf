//! The server: its thread, where connections come from, and its end.
//!
//! ```text
//!   start --connections of the control socket--+
//!     \--TCP--> TLS handshake, bounded --------+--> a place among CONNECTIONS_MAX, or closed --> HTTP/2
//!   stop: watches end, calls that go on have a moment, then the thread ends
//! ```

use crate::connection::{Connection, admit};
use crate::listening::{Listening, Remote, ServerError, welcome_remote};
use crate::service::VmApi;
use crate::serving::{PING_EVERY, PING_LIMIT, STREAMS_MAX, asked_to_stop, reflection, serve_until};
use control::longrunning::operations_server::OperationsServer;
use control::v1::vm_service_server::{SERVICE_NAME, VmServiceServer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::transport::Server as Http2;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use vmm::control::{Caller, Desk, TakesStreams};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request.
const REQUEST_MAX: usize = 64 << 10;
/// Threads that may wait for the VM.
const WAITING_MAX: usize = 32;
/// Between two looks at a VM that somebody watches, or that has not begun.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Serves the API of a slice until it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
}

/// Takes what comes by the control socket.
#[derive(Debug)]
struct Taker(mpsc::Sender<(UnixStream, Caller)>);

impl TakesStreams for Taker {
    fn take(&self, stream: UnixStream, caller: Caller) {
        // With so many before it, it is closed.
        let _ = self.0.try_send((stream, caller));
    }
}

impl Server {
    /// Serves what is asked at this desk: to whoever comes by its control socket, and over TCP if that is wanted.
    ///
    /// # Errors
    /// The address or the files for TCP cannot be used, or there is no thread.
    pub fn start(desk: &Desk, remote: Option<&Remote>) -> Result<Self, ServerError> {
        let (sender, local) = mpsc::channel(CONNECTIONS_MAX);
        let (listening, address) = remote.map(Listening::open).transpose()?.unzip();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name("api-call")
            .max_blocking_threads(WAITING_MAX)
            .build()
            .map_err(ServerError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let api = VmApi::new(desk.clone());
        let run = move || {
            runtime.block_on(serve(api, (local, listening), stopped));
            // A call that still waits for the VM waits alone.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("api".into()).spawn(run);
        let thread = thread.map_err(ServerError::Thread)?;
        desk.give_http2_to(Arc::new(Taker(sender)));
        Ok(Self { stop, thread: Some(thread), address })
    }

    /// Where it listens for TCP, if it does.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Serves until it is to stop.
async fn serve(
    api: VmApi,
    (local, listening): (mpsc::Receiver<(UnixStream, Caller)>, Option<Listening>),
    stopped: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (sender, connections) = mpsc::channel(1);
    tokio::spawn(welcome_local(local, Arc::clone(&places), sender.clone()));
    if let Some(listening) = listening {
        tokio::spawn(welcome_remote(listening, places, sender));
    }
    let (health, health_service) = health_reporter();
    health.set_service_status(SERVICE_NAME, ServingStatus::NotServing).await;
    tokio::spawn(look_for_the_vm(api.clone(), health));
    tokio::spawn(look_for_changes(api.clone()));
    let limited = VmServiceServer::new(api.clone()).max_decoding_message_size(REQUEST_MAX);
    let operations = OperationsServer::new(api.operations());
    let router = Http2::builder()
        .layer(InterceptorLayer::new(admit))
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .add_service(limited)
        .add_service(operations.max_decoding_message_size(REQUEST_MAX))
        .add_service(health_service)
        .add_optional_service(reflection());
    let incoming = ReceiverStream::new(connections).map(Ok::<Connection, Infallible>);
    let end = asked_to_stop(stopped.clone());
    let until = async move {
        end.await;
        api.end();
    };
    let serving = router.serve_with_incoming_shutdown(incoming, until);
    serve_until("the API", serving, stopped).await;
}

/// Gives each connection of the control socket a place.
async fn welcome_local(
    mut from: mpsc::Receiver<(UnixStream, Caller)>,
    places: Arc<Semaphore>,
    to: mpsc::Sender<Connection>,
) {
    while let Some((stream, caller)) = from.recv().await {
        // Without a place it is closed.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let stream = stream.set_nonblocking(true).and_then(|()| stream.try_into());
        let connected = stream.map(|stream| Connection::local(stream, caller, place));
        match connected {
            Ok(connection) => {
                if to.send(connection).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "a connection of the API is not served"),
        }
    }
}

/// Says that the VM is served as soon as there is one.
async fn look_for_the_vm(api: VmApi, health: HealthReporter) {
    while !api.has_vm() {
        sleep(LOOK_EVERY).await;
    }
    health.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
}

/// Tells those who watch of each change.
async fn look_for_changes(api: VmApi) {
    loop {
        api.tell_watchers().await;
        sleep(LOOK_EVERY).await;
    }
}
