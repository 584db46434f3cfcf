//! The side that listens.

use super::acceptor::{Acceptor, Caller, Next, Refused};
use super::context::{
    Connected, Links, MeshContext, PARTING, PATIENCE, PATIENCE_PROVEN, keep_alive,
};
use super::error::MeshError;
use super::listener::Listener;
use super::transport::MeshTransport;
use crate::config::Config;
use crate::control::{BLOB_BYTES_MAX, Control, ControlError, Member, cut};
use crate::credential::Keyring;
use crate::handshake::{ConnectionId, HandshakeError, Role, VmId, part};
use crate::memory::PageMemory;
use crate::one_line;
use crate::traits::Class;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use wire::{Epoch, SliceId};

/// A wait without a deadline is cut into pieces of this length.
const FOREVER: Duration = Duration::from_secs(86_400);

/// What the bootstrap wants this slice to be.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// This slice.
    pub local: SliceId,
    /// The VM.
    pub vm: VmId,
    /// The epoch of the membership.
    pub epoch: Epoch,
    /// All slices.
    pub members: Vec<Member>,
    /// Bounds and times of the transport.
    pub config: Config,
    /// Opaque here.
    pub blob: Vec<u8>,
}

impl Listener {
    /// Waits for a bootstrap that proves itself and takes its assignment. Everybody else is turned
    /// away, told to `refused` (at a bounded rate), and the wait goes on. Up to 32 callers
    /// prove themselves at a time; one more takes the place of the oldest.
    ///
    /// # Errors
    /// The deadline passed or the socket failed; never because of a caller.
    pub fn accept(
        &self,
        deadline: Option<Instant>,
        refused: &mut dyn FnMut(&Refused),
    ) -> Result<(Assignment, CompanionMesh), MeshError> {
        let mut acceptor = Acceptor::new(self, None)?;
        loop {
            let until = deadline.unwrap_or_else(|| Instant::now() + FOREVER);
            match acceptor.next(until, refused)? {
                Next::Caller(caller) => {
                    let from = caller.from;
                    match self.enroll(*caller, until) {
                        Ok(taken) => {
                            acceptor.close(refused);
                            return Ok(taken);
                        }
                        Err(error) => acceptor.refuse(Some(from), error, refused),
                    }
                }
                Next::Deadline if deadline.is_some() => {
                    acceptor.close(refused);
                    return Err(MeshError::NoBootstrap);
                }
                Next::Deadline | Next::Other => {}
            }
        }
    }

    /// Takes the assignment of a caller that proved itself, if it is a bootstrap; that one may first
    /// have to reach the other companions.
    fn enroll(
        &self,
        caller: Caller,
        deadline: Instant,
    ) -> Result<(Assignment, CompanionMesh), MeshError> {
        let Caller { mut stream, from, proven } = caller;
        let connection = &proven.connection;
        let expected = match (connection.role, connection.from, connection.to) {
            (Role::Control, SliceId(0), SliceId(1..)) => Ok(()),
            (Role::Control, from, to) => Err(HandshakeError::UnexpectedSlice { from, to }),
            _ => Err(HandshakeError::UnexpectedPurpose),
        };
        let until = deadline.min(Instant::now() + PATIENCE);
        let connection = proven
            .tell(&mut stream, expected, until)
            .map_err(|source| MeshError::Handshake { with: from.to_string(), source })?;
        keep_alive(&stream).map_err(MeshError::Wait)?;
        let deadline = deadline.min(Instant::now() + PATIENCE_PROVEN);
        let with = format!("the bootstrap at {from}");
        let control = |source| MeshError::Control { with: with.clone(), source };
        let assign = match Control::receive(&mut stream, deadline).map_err(control)? {
            Control::Assign(assign) => assign,
            Control::Abort(text) => return Err(MeshError::Aborted { text }),
            other => {
                let got = other.name();
                return Err(control(ControlError::Unexpected { got, want: "assign" }));
            }
        };
        let is_member = assign.members.iter().any(|member| member.slice == assign.local);
        if assign.local != connection.to || !is_member {
            return Err(control(ControlError::OutOfBounds { what: "the slice of this companion" }));
        }
        let socket = self.socket.try_clone().map_err(MeshError::Wait)?;
        let own = self.credential.slice_key(assign.local);
        let own = own.ok_or_else(|| control(ControlError::OutOfBounds { what: "the slice" }))?;
        // From here on it is this slice: it needs no more than the key of that.
        let listener = Self { socket, address: self.address, credential: own.clone().into() };
        let context = MeshContext {
            keys: Keyring::open(own, connection.vm, connection.epoch, &assign.tickets),
            vm: connection.vm,
            epoch: connection.epoch,
            local: assign.local,
            config: assign.config.clone(),
            memory: None,
        };
        let mesh = CompanionMesh {
            context,
            members: assign.members.clone(),
            listener,
            control: stream,
            with,
            committed: false,
        };
        let assignment = Assignment {
            local: assign.local,
            vm: connection.vm,
            epoch: connection.epoch,
            members: assign.members,
            config: assign.config,
            blob: assign.blob,
        };
        Ok((assignment, mesh))
    }
}

/// A VM in the making, seen from a companion. Dropping it tells the bootstrap that it is off.
#[derive(Debug)]
pub struct CompanionMesh {
    context: MeshContext,
    members: Vec<Member>,
    listener: Listener,
    control: TcpStream,
    with: String,
    committed: bool,
}

/// How a VM stands that is joined while it runs.
type State = Option<Vec<u8>>;

/// The connections from one slice, as they come.
type Partial = (SliceId, [Option<TcpStream>; Class::COUNT]);

impl CompanionMesh {
    fn error(&self, source: ControlError) -> MeshError {
        MeshError::Control { with: self.with.clone(), source }
    }

    fn send(&mut self, message: &Control, deadline: Instant) -> Result<(), MeshError> {
        message.send(&mut self.control, deadline).map_err(|source| self.error(source))
    }

    fn receive(&mut self, deadline: Instant) -> Result<Control, MeshError> {
        Control::receive(&mut self.control, deadline).map_err(|source| self.error(source))
    }

    /// Agrees with a blob for the bootstrap, or refuses with a reason for a person. After a refusal
    /// drop this and wait for another bootstrap.
    ///
    /// # Errors
    /// The bootstrap went away, or the blob is too large.
    pub fn answer(
        &mut self,
        answer: Result<&[u8], &str>,
        deadline: Instant,
    ) -> Result<(), MeshError> {
        match answer {
            Ok(blob) if blob.len() > BLOB_BYTES_MAX => {
                Err(MeshError::BlobTooLarge { length: blob.len() })
            }
            Ok(blob) => self.send(&Control::Agree(blob.to_vec()), deadline),
            Err(text) => {
                self.send(&Control::Refuse(cut(text)), deadline)?;
                part(&mut self.control);
                Ok(())
            }
        }
    }

    /// Waits until all have agreed, and this slice is to do what takes long. It answers once more when that is done. After
    /// the first `answer`.
    ///
    /// # Errors
    /// The bootstrap aborted, went away, or said nothing until the deadline.
    pub fn prepare(&mut self, deadline: Instant) -> Result<(), MeshError> {
        match self.receive(deadline)? {
            Control::Prepare => Ok(()),
            Control::Abort(text) => Err(MeshError::Aborted { text }),
            other => {
                let got = other.name();
                Err(self.error(ControlError::Unexpected { got, want: "prepare" }))
            }
        }
    }

    /// Whether the bootstrap still waits for what takes long.
    ///
    /// # Errors
    /// It aborted, or went away.
    pub fn check_waiting(&mut self) -> Result<(), MeshError> {
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        if recv(&self.control, &mut [0; 1], look) == Err(Errno::AGAIN) {
            return Ok(());
        }
        match self.receive(Instant::now() + PARTING)? {
            Control::Abort(text) => Err(MeshError::Aborted { text }),
            other => {
                let got = other.name();
                Err(self.error(ControlError::Unexpected { got, want: "silence" }))
            }
        }
    }

    /// Answers clock probes with `clock` until the bootstrap commits, and returns its last blob.
    ///
    /// # Errors
    /// The bootstrap aborted, went away, or said nothing until the deadline.
    pub fn verdict(
        &mut self,
        clock: &dyn Fn() -> u64,
        deadline: Instant,
    ) -> Result<Vec<u8>, MeshError> {
        loop {
            match self.receive(deadline)? {
                Control::Probe => self.send(&Control::Clock(clock()), deadline)?,
                Control::Commit(blob) => {
                    self.committed = true;
                    return Ok(blob);
                }
                Control::Abort(text) => return Err(MeshError::Aborted { text }),
                other => {
                    let got = other.name();
                    return Err(self.error(ControlError::Unexpected { got, want: "commit" }));
                }
            }
        }
    }

    /// Lends this slice's memory, should [`Config::rdma_memory`] ask for it. Before `into_transport`.
    pub fn expose(&mut self, memory: PageMemory) {
        self.context.memory = Some(memory);
    }

    /// Connects to the other slices and starts the transport once all are connected. After
    /// `verdict`. Strangers that call meanwhile are told to `refused`.
    ///
    /// # Errors
    /// Names the slice that could not be joined; the bootstrap was told.
    pub fn into_transport(
        mut self,
        deadline: Instant,
        refused: &mut dyn FnMut(&Refused),
    ) -> Result<MeshTransport, MeshError> {
        if !self.committed {
            return Err(MeshError::OutOfOrder { step: "into_transport before verdict" });
        }
        match self.join(deadline, refused) {
            Ok((streams, links, state)) => {
                let joined = MeshTransport::start(self.context, streams, links, None)?;
                Ok(MeshTransport { state, ..joined })
            }
            // The bootstrap knows.
            Err(error @ MeshError::Aborted { .. }) => Err(error),
            Err(error) => {
                // Best effort: the bootstrap may be what failed.
                let last = Instant::now() + Duration::from_secs(1);
                let _ = self.send(&Control::Refuse(cut(&one_line(&error))), last);
                part(&mut self.control);
                Err(error)
            }
        }
    }

    fn join(
        &mut self,
        deadline: Instant,
        refused: &mut dyn FnMut(&Refused),
    ) -> Result<(Vec<Connected>, Links, State), MeshError> {
        let mut streams = self.connect(deadline, refused)?;
        for kind in self.context.config.carriers.clone() {
            let meeting = self.context.negotiate(kind, &mut streams, deadline)?;
            let trouble = meeting.as_ref().err().map(|text| cut(text));
            self.send(&Control::Ready(trouble), deadline)?;
            let (mut said, mut state) = (self.receive(deadline)?, None);
            if let Control::State(blob) = said {
                state = Some(blob);
                said = self.receive(deadline)?;
            }
            match (said, meeting) {
                (Control::Go(agreed), Ok(links)) if agreed == kind => {
                    return Ok((streams, links, state));
                }
                (Control::Next, _) => {}
                (Control::Abort(text), _) => return Err(MeshError::Aborted { text }),
                (other, _) => {
                    let got = other.name();
                    return Err(self.error(ControlError::Unexpected { got, want: "go" }));
                }
            }
        }
        let (got, want) = (Control::Next.name(), "go");
        Err(self.error(ControlError::Unexpected { got, want }))
    }

    /// Calls those that it was given tickets for, which are the companions below this one unless it is a newcomer,
    /// and takes the calls of all others.
    fn connect(
        &mut self,
        deadline: Instant,
        refused: &mut dyn FnMut(&Refused),
    ) -> Result<Vec<Connected>, MeshError> {
        let mut streams = Vec::new();
        let mut awaited: Vec<Partial> = Vec::new();
        for member in &self.members {
            match member.address {
                _ if member.slice == self.context.local => {}
                Some(address) if self.context.keys.calls(member.slice) => {
                    let classes = self.context.call_classes(member.slice, address, deadline)?;
                    streams.push((member.slice, classes));
                }
                _ => awaited.push((member.slice, [const { None }; Class::COUNT])),
            }
        }
        self.await_callers(&mut awaited, deadline, refused)?;
        for (slice, classes) in awaited {
            match classes {
                [Some(first), Some(second), Some(third), Some(fourth)] => {
                    streams.push((slice, [first, second, third, fourth]));
                }
                _ => return Err(MeshError::Missing { slice }),
            }
        }
        Ok(streams)
    }

    /// Takes connections until every awaited one is there. The control connection is watched
    /// meanwhile: the bootstrap may call it off.
    fn await_callers(
        &mut self,
        awaited: &mut [Partial],
        deadline: Instant,
        refused: &mut dyn FnMut(&Refused),
    ) -> Result<(), MeshError> {
        let missing = |awaited: &[Partial]| {
            let missing = awaited.iter().find(|(_, classes)| classes.iter().any(Option::is_none));
            missing.map(|(slice, _)| *slice)
        };
        let mut acceptor = Acceptor::new(&self.listener, Some(&self.control))?;
        while let Some(slice) = missing(awaited) {
            match acceptor.next(deadline, refused)? {
                Next::Deadline => return Err(MeshError::Missing { slice }),
                Next::Caller(caller) => {
                    let from = caller.from;
                    let until = deadline.min(Instant::now() + PATIENCE);
                    if let Err(source) = admit(&self.context, *caller, awaited, until) {
                        acceptor.refuse_handshake(from, source, refused);
                    }
                }
                Next::Other => {
                    let with = self.with.clone();
                    let message = Control::receive(&mut self.control, deadline);
                    let source = match message {
                        Ok(Control::Abort(text)) => return Err(MeshError::Aborted { text }),
                        Ok(other) => ControlError::Unexpected { got: other.name(), want: "abort" },
                        Err(source) => source,
                    };
                    return Err(MeshError::Control { with, source });
                }
            }
        }
        acceptor.close(refused);
        Ok(())
    }
}

/// Tells a proven caller whether it is awaited; it takes its place among the awaited ones.
fn admit(
    context: &MeshContext,
    caller: Caller,
    awaited: &mut [Partial],
    deadline: Instant,
) -> Result<(), HandshakeError> {
    let Caller { mut stream, proven, .. } = caller;
    let slot = |connection: &ConnectionId| {
        let Role::Frames(class) = connection.role else { return None };
        let at = awaited.iter().position(|(slice, _)| *slice == connection.from)?;
        Some((at, usize::from(class)))
    };
    let connection = &proven.connection;
    let place = slot(connection);
    let expected = if connection.vm != context.vm {
        Err(HandshakeError::WrongVm { theirs: Some(connection.vm) })
    } else if !matches!(connection.role, Role::Frames(_)) {
        Err(HandshakeError::UnexpectedPurpose)
    } else if connection.epoch != context.epoch {
        Err(HandshakeError::WrongEpoch { theirs: Some(connection.epoch) })
    } else {
        match place.filter(|_| connection.to == context.local) {
            None => {
                Err(HandshakeError::UnexpectedSlice { from: connection.from, to: connection.to })
            }
            Some((at, class)) if awaited[at].1[class].is_some() => {
                Err(HandshakeError::UnexpectedPurpose)
            }
            Some(_) => Ok(()),
        }
    };
    proven.tell(&mut stream, expected, deadline)?;
    if let Some((at, class)) = place {
        awaited[at].1[class] = Some(stream);
    }
    Ok(())
}
