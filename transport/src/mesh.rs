//! From addresses to a transport: who calls whom, what is agreed, and when it starts.
//!
//! ```text
//!  bootstrap (slice 0)                              companion (slice n)
//!    connect ---- control connection, handshake ----> Listener::accept
//!            ---- Assign: slice, members, blob -----> (Assignment, CompanionMesh)
//!    gather  <--- Agree blob | Refuse text ---------- answer
//!    measure_clock <--- Probe / Clock --------------> verdict
//!    commit  ---- Commit blob (abort: Abort text) --> verdict
//!    into_transport <== connections per class ======> into_transport (higher id calls lower)
//!    for each carrier of the list, best first:
//!            <== shared memory or queue pairs, agreed on over those connections ==>
//!            <--- Ready, or Ready and why not | Refuse text
//!            ---- Go with this carrier | Next | Abort text ->
//! ```
//!
//! The bootstrap calls every companion, because it need not listen. Everything here blocks, each
//! step until the caller's deadline. A refused stranger never ends a companion's wait, and an idle one does not
//! delay others (`reception`).

mod bootstrap;
mod companion;
mod reception;
mod transport;

pub use bootstrap::{Answer, BootstrapMesh, Plan};
pub use companion::{Assignment, CompanionMesh, Listener};
pub use reception::Refused;
pub use transport::MeshTransport;

use crate::config::{CarrierKind, Config, ConfigError, RdmaMemory};
use crate::control::ControlError;
use crate::handshake::{HandshakeError, Party, Role, VmId, call};
use crate::key::Keyring;
use crate::memory::PageMemory;
use crate::rdma::{self, Endpoint, RdmaError, RdmaTransport};
use crate::seam::Class;
use crate::shm::{self, Identity, Pair, ShmError, ShmTransport};
use crate::tcp::TcpTransport;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::{Epoch, SliceId};

/// How long one caller may take to prove itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a bootstrap that proved itself may take to send the assignment.
const PATIENCE_PROVEN: Duration = Duration::from_secs(60);

/// Why the slices of a VM could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// No bootstrap came in time.
    #[error("no bootstrap called in time")]
    NoBootstrap,
    /// Waiting for connections failed.
    #[error("cannot wait for connections")]
    Wait(#[source] io::Error),
    /// The machine has no descriptor, memory or thread for one more connection.
    #[error("there is no room for one more connection")]
    NoRoom(#[source] io::Error),
    /// A slice cannot be reached.
    #[error("cannot connect to {slice} at {address}")]
    Connect {
        /// The slice.
        slice: SliceId,
        /// Where it should listen.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A slice that was called, or a caller, did not pass the handshake.
    #[error("the handshake with {with} failed")]
    Handshake {
        /// Slice and address, or address of the caller.
        with: String,
        /// Why.
        #[source]
        source: HandshakeError,
    },
    /// The control connection ended or carried nonsense.
    #[error("the set-up with {with} failed")]
    Control {
        /// Slice and address.
        with: String,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// A companion said no when the slices were to connect.
    #[error("{slice} cannot join: {text}")]
    Refused {
        /// The slice.
        slice: SliceId,
        /// Its reason.
        text: String,
    },
    /// The bootstrap called it off.
    #[error("the bootstrap called it off: {text}")]
    Aborted {
        /// Its reason.
        text: String,
    },
    /// Some slices did not connect in time.
    #[error("{slice} did not connect in time")]
    Missing {
        /// The first that is missing.
        slice: SliceId,
    },
    /// The plan cannot work.
    #[error("the plan of slices cannot be used")]
    Plan(#[source] ControlError),
    /// The plan's bounds cannot work.
    #[error("the transport's configuration cannot be used")]
    Config(#[source] ConfigError),
    /// A blob is too large.
    #[error("a blob of {length} bytes is larger than a blob may be")]
    BlobTooLarge {
        /// Its length in bytes.
        length: usize,
    },
    /// No such companion.
    #[error("{slice} is no companion of this bootstrap")]
    NotACompanion {
        /// The slice.
        slice: SliceId,
    },
    /// The steps were called out of order.
    #[error("the set-up step \"{step}\" is out of order")]
    OutOfOrder {
        /// The step that was called.
        step: &'static str,
    },
    /// A slice cannot use the last carrier of the list.
    #[error("{kind} cannot be used, and the list of transports has nothing after it: {text}")]
    Carrier {
        /// The last of the list.
        kind: CarrierKind,
        /// Which slice, and why.
        text: String,
    },
    /// The shared memory cannot be made into a transport.
    #[error("cannot build the transport from its shared memory")]
    SharedMemory(#[source] ShmError),
    /// The queue pairs cannot be made into a transport.
    #[error("cannot build the transport from its queue pairs")]
    QueuePairs(#[source] RdmaError),
    /// The sockets cannot be made into a transport.
    #[error("cannot build the transport from its connections")]
    Transport(#[source] io::Error),
}

impl MeshError {
    /// True when a slice cannot be reached or went away, as one whose host is down: the plan may be
    /// good, and the same call can succeed later or with another host in its place.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        use ControlError as C;
        use HandshakeError as H;
        match self {
            Self::Connect { .. } | Self::Missing { .. } => true,
            Self::Handshake { source, .. } => matches!(source, H::Closed | H::Io(_)),
            Self::Control { source, .. } => matches!(source, C::Closed | C::Io(_)),
            _ => false,
        }
    }
}

/// A peer and the streams to it, one per class.
type Connected = (SliceId, [TcpStream; Class::COUNT]);

/// What every connection of one VM has in common.
#[derive(Clone, Debug)]
struct Circle {
    keys: Keyring,
    vm: VmId,
    epoch: Epoch,
    local: SliceId,
    config: Config,
    /// What this slice lends, if it is asked for.
    memory: Option<PageMemory>,
}

impl Circle {
    fn party(&self, role: Role, to: SliceId) -> Party {
        Party { role, vm: self.vm, epoch: self.epoch, from: self.local, to }
    }

    /// Calls `to` and passes the handshake.
    fn call(
        &self,
        role: Role,
        to: SliceId,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<TcpStream, MeshError> {
        let connect = |source| MeshError::Connect { slice: to, address, source };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(connect(io::ErrorKind::TimedOut.into()));
        }
        let mut stream = TcpStream::connect_timeout(&address, left).map_err(connect)?;
        stream.set_nodelay(true).map_err(connect)?;
        call(&mut stream, &self.keys, &self.party(role, to), deadline).map_err(|source| {
            MeshError::Handshake { with: format!("{to} at {address}"), source }
        })?;
        Ok(stream)
    }

    /// Calls `to` once per class.
    fn call_classes(
        &self,
        to: SliceId,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<[TcpStream; Class::COUNT], MeshError> {
        Ok([
            self.call(Role::Frames(0), to, address, deadline)?,
            self.call(Role::Frames(1), to, address, deadline)?,
            self.call(Role::Frames(2), to, address, deadline)?,
            self.call(Role::Frames(3), to, address, deadline)?,
        ])
    }

    /// Sets up a carrier over streams that are all there. TCP has nothing left to do.
    fn meet(
        &self,
        kind: CarrierKind,
        streams: &mut [Connected],
        deadline: Instant,
    ) -> Result<Meeting, MeshError> {
        let failed = |(slice, error): (SliceId, io::Error)| MeshError::Control {
            with: format!("{slice} over {kind}"),
            source: error.into(),
        };
        match kind {
            CarrierKind::Tcp => Ok(Ok(Links::Tcp)),
            CarrierKind::Shm => {
                // The key of a connection does not depend on its role.
                let party = self.party(Role::SharedMemory, self.local);
                let identity = Identity { keys: &self.keys, party };
                let pairs = shm::meet(&identity, streams, deadline).map_err(failed)?;
                Ok(pairs.map(Links::Shm))
            }
            CarrierKind::Rdma => {
                let lends = self.config.rdma_memory == RdmaMemory::Registered;
                let memory = self.memory.as_ref().filter(|_| lends);
                let lease = self.config.lease;
                let endpoints = rdma::meet(streams, memory, lease, deadline).map_err(failed)?;
                Ok(endpoints.map(Links::Rdma))
            }
        }
    }

    /// Starts the transport on the carrier that all agreed on.
    fn transport(
        self,
        streams: Vec<Connected>,
        links: Links,
    ) -> Result<MeshTransport, MeshError> {
        match links {
            Links::Tcp => TcpTransport::from_streams(self.local, streams, self.config)
                .map(|transport| MeshTransport::new(CarrierKind::Tcp, transport))
                .map_err(MeshError::Transport),
            Links::Shm(pairs) => ShmTransport::new(self.local, pairs, self.config)
                .map(|transport| MeshTransport::new(CarrierKind::Shm, transport))
                .map_err(MeshError::SharedMemory),
            Links::Rdma(endpoints) => {
                let join = |((slice, [life, ..]), endpoint): (Connected, Endpoint)| {
                    (slice, endpoint, life)
                };
                let peers = streams.into_iter().zip(endpoints).map(join).collect();
                RdmaTransport::new(self.local, peers, self.config)
                    .map(|transport| MeshTransport::new(CarrierKind::Rdma, transport))
                    .map_err(MeshError::QueuePairs)
            }
        }
    }
}

/// What a slice has set up to all its peers, on one carrier.
#[derive(Debug)]
enum Links {
    /// The streams themselves.
    Tcp,
    Shm(Vec<Pair>),
    Rdma(Vec<Endpoint>),
}

/// The links on a carrier, or why it cannot be used here.
type Meeting = Result<Links, String>;

/// An error with its causes, as one line for the other side.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
