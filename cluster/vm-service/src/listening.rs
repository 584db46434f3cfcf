//! Connections over TCP: who makes one proves who it is.
//!
//! ```text
//!   accept --a place--> TLS handshake, bounded in time --certificates of both ends--> a connection
//!      \--no place--> closed
//! ```

use crate::connection::{Connection, Stream, Who};
use crate::tls::{TlsError, TlsFiles};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener as AsyncListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// For a client to make its TLS connection.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// After a connection that could not be accepted.
const AGAIN: Duration = Duration::from_millis(100);

/// Where the API is served over TCP.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Where it listens.
    pub address: SocketAddr,
    /// Who it is, and who may call.
    pub files: TlsFiles,
}

/// Why the API is not served.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address.
    #[error("listen at {address} for the API")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// There is no thread.
    #[error("start the thread of the API")]
    Thread(#[source] io::Error),
}

impl ServerError {
    /// Whether another attempt finds the same: certificates are as they are, and an address may come.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

/// A listener and what it needs for TLS.
pub struct Listening {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Listening {
    /// Listens there; and where that is.
    ///
    /// # Errors
    /// The address or the files cannot be used.
    pub fn open(remote: &Remote) -> Result<(Self, SocketAddr), ServerError> {
        let acceptor = TlsAcceptor::from(remote.files.load()?);
        let address = remote.address;
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((Self { listener, acceptor }, address))
    }
}

/// Gives each connection over TCP a place, and has it prove who it is.
pub async fn welcome_remote(
    Listening { listener, acceptor }: Listening,
    places: Arc<Semaphore>,
    to: mpsc::Sender<Connection>,
) {
    let listener = match AsyncListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the API is not served over TCP"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let (acceptor, to) = (acceptor.clone(), to.clone());
                tokio::spawn(shake_hands((stream, address), acceptor, place, to));
            }
            Err(error) => {
                tracing::debug!(%error, "a connection of the API is not accepted");
                sleep(AGAIN).await;
            }
        }
    }
}

async fn shake_hands(
    (stream, address): (TcpStream, SocketAddr),
    acceptor: TlsAcceptor,
    place: OwnedSemaphorePermit,
    to: mpsc::Sender<Connection>,
) {
    // Answers are small, and somebody waits for each.
    let _ = stream.set_nodelay(true);
    match timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let stream = Stream::Tls(Box::new(stream));
            tracing::info!("{address} calls the API");
            let who = Who::Remote;
            // The server may be about to end.
            let _ = to.send(Connection { stream, who, _place: place }).await;
        }
        Ok(Err(error)) => tracing::info!("{address} is refused by the API: {error}"),
        Err(_) => tracing::info!("{address} has not proved in time who it is"),
    }
}
