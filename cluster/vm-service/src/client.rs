//! The other end of the UNIX socket, for programs of ours.

use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use tokio::net::UnixStream;
pub use tonic::transport::Channel;
use tonic::transport::Endpoint;
use tower::service_fn;

/// Why a slice is not reached.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("connect to the control socket {}, which a running slice makes (--control)", .path.display())]
    Connect {
        /// Where.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It does not speak HTTP/2.
    #[error("speak gRPC at {}", .path.display())]
    Speak {
        /// Where.
        path: PathBuf,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
}

/// Connects to the control socket of a slice.
///
/// # Errors
/// Nobody listens there, or it is something else.
pub async fn connect(path: &Path) -> Result<Channel, ClientError> {
    let refused = |source| ClientError::Connect { path: path.to_owned(), source };
    // A second connection later would be to another process.
    let mut first = Some(UnixStream::connect(path).await.map_err(refused)?);
    let connector = service_fn(move |_| {
        let stream = first.take().map(TokioIo::new);
        std::future::ready(stream.ok_or_else(|| io::Error::other("the slice has ended")))
    });
    let failed = |source| ClientError::Speak { path: path.to_owned(), source };
    // The name is needed for the form of HTTP only.
    let endpoint = Endpoint::from_static("http://vm");
    endpoint.connect_with_connector(connector).await.map_err(failed)
}
