//! The socket that a companion listens on.

use super::error::MeshError;
use crate::credential::Credential;
use std::net::{SocketAddr, TcpListener};

/// Waits for a bootstrap, and later for the other slices.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) credential: Credential,
}

impl Listener {
    /// Listens on `address`; port 0 takes a free one. With the key of one slice it becomes that slice only.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn bind(address: SocketAddr, credential: impl Into<Credential>) -> Result<Self, MeshError> {
        let listen = |source| MeshError::Listen { address, source };
        let socket = TcpListener::bind(address).map_err(listen)?;
        socket.set_nonblocking(true).map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        Ok(Self { socket, address, credential: credential.into() })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn socket(&self) -> &TcpListener {
        &self.socket
    }

    pub(super) fn credential(&self) -> &Credential {
        &self.credential
    }
}
