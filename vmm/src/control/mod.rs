//! What a slice is asked by people and programs: at its desk, to which its control socket and the gRPC API lead.
//!
//! ```text
//!   socket: nobody there, or nobody who answers any more --> listening --drop--> removed
//!     |                                                        | lines of JSON, or HTTP/2 that is handed over
//!     +--another process answers there: refused                v
//!                                                             desk: what there is to ask about, and its answers
//! ```
//!
//! A UNIX socket that only its owner may use. Each line is a [`Request`] and is answered by one line, an
//! [`Answer`], both JSON. Lines, clients and waits are bounded. A client may go at any time; one that does
//! not read its answer is dropped. Who speaks HTTP/2 on it is handed to whoever takes that ([`TakesStreams`]).

mod answering;
mod caller;
mod client;
mod desk;
mod message;
mod places;
mod refusal;
mod socket;
mod view;
mod vm;

pub use answering::Answering;
pub use caller::{Caller, TakesStreams};
pub use client::{Client, ClientError};
pub use desk::{Desk, Look, VmName};
pub use message::{
    AddRequest, AdviceAnswer, AdviseRequest, Answer, CheckpointAnswer, CheckpointRequest,
    ConsolidateRequest, DoneAnswer, DrainRequest, ForgetRequest, LineError, MoveVcpuRequest,
    PauseRequest, PlacementAnswer, PlacementRequest, PlanAnswer, PlanRequest, PowerButtonRequest,
    Progress, RELEASED_MAX, REQUEST_MAX, ReportAnswer, ReportRequest, Request, ResumeRequest,
    Since, SlicePlaces, SpreadRequest, StopRequest, TraceAnswer, TraceRequest, TuneRequest,
    VcpusAnswer, VcpusRequest,
};
pub use refusal::{Activity, Reason, Refusal};
pub use socket::ControlSocket;
pub use view::TOP_MAX;
pub use vm::{
    OverseesVm, PausesVm, PlugsVcpus, Relocates, Relocation, VmHandles, WritesCheckpoints,
};

pub use crate::local_socket::SocketError;
