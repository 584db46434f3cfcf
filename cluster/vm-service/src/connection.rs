//! A connection of a client, of either kind, and who that is.

use crate::problem::refused;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tonic::{Request, Status};
use vmm::control::Caller;

/// Who calls.
#[derive(Clone, Debug)]
pub enum Who {
    /// A user of this host.
    Local(Caller),
    /// Whoever has a certificate of the client's authority.
    Remote,
}

/// What bytes go over.
#[derive(Debug)]
pub enum Stream {
    /// A socket of this host.
    Unix(UnixStream),
    /// From anywhere.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection. There are only so many, so long as it lives it is one of them.
#[derive(Debug)]
pub struct Connection {
    pub(crate) stream: Stream,
    pub(crate) who: Who,
    pub(crate) _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Of a user of this host; it has this place among all.
    #[must_use]
    pub fn local(stream: UnixStream, caller: Caller, place: OwnedSemaphorePermit) -> Self {
        Self { stream: Stream::Unix(stream), who: Who::Local(caller), _place: place }
    }
}

impl Connected for Connection {
    type ConnectInfo = Who;

    fn connect_info(&self) -> Who {
        self.who.clone()
    }
}

/// Refuses calls of users who may not ask.
///
/// # Errors
/// It is of such a user.
pub fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    match request.extensions().get::<Who>() {
        Some(Who::Local(caller)) if !caller.may_ask => Err(refused(caller.refusal())),
        Some(Who::Local(_) | Who::Remote) => Ok(request),
        None => Err(Status::internal("it is not known who calls: this is a bug")),
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
