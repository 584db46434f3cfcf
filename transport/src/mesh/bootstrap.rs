//! The side that calls.

use super::context::{Connected, Links, MeshContext, PARTING};
use super::error::MeshError;
use super::membership::Roster;
use super::transport::MeshTransport;
use crate::clock::{ClockEstimate, ClockProbe};
use crate::config::{CarrierKind, Config};
use crate::control::{Assign, BLOB_BYTES_MAX, Control, ControlError, Member, check_members, cut};
use crate::credential::{Keyring, Ticket};
use crate::handshake::{ConnectionId, Role, VmId};
use crate::link::PeerLink;
use crate::memory::PageMemory;
use crate::one_line;
use crate::ready::next_ready;
use crate::secret::Secret;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use wire::{Epoch, SliceId};

/// What the bootstrap wants to build.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The VM.
    pub vm: VmId,
    /// The epoch of this membership.
    pub epoch: Epoch,
    /// All slices. Slice 0 is the bootstrap itself and needs no address.
    pub members: Vec<Member>,
    /// Bounds and times for all slices.
    pub config: Config,
    /// The same for every companion; opaque here, at most [`BLOB_BYTES_MAX`] bytes.
    pub blob: Vec<u8>,
}

/// What a companion said to its assignment: its blob, or why it refuses.
pub type Answer = Result<Vec<u8>, String>;

/// One companion and the connection to it.
#[derive(Debug)]
struct Companion {
    slice: SliceId,
    address: SocketAddr,
    control: TcpStream,
}

impl Companion {
    fn error(&self, source: ControlError) -> MeshError {
        MeshError::Control { with: format!("{} at {}", self.slice, self.address), source }
    }

    fn send(&mut self, message: &Control, deadline: Instant) -> Result<(), MeshError> {
        message.send(&mut self.control, deadline).map_err(|source| self.error(source))
    }

    fn receive(&mut self, deadline: Instant) -> Result<Control, MeshError> {
        Control::receive(&mut self.control, deadline).map_err(|source| self.error(source))
    }
}

/// A VM in the making, seen from the bootstrap. Dropping it ends the companions' wait.
#[derive(Debug)]
pub struct BootstrapMesh {
    context: MeshContext,
    members: Vec<Member>,
    companions: Vec<Companion>,
    committed: bool,
}

impl BootstrapMesh {
    /// Calls every companion and gives it its assignment.
    ///
    /// # Errors
    /// The plan is not usable, or a companion cannot be reached or refuses the handshake; the error
    /// names it. There is no second try.
    pub fn connect(secret: Secret, plan: Plan, deadline: Instant) -> Result<Self, MeshError> {
        plan.config.validate().map_err(MeshError::Config)?;
        check_members(&plan.members).map_err(MeshError::Plan)?;
        check_blob(&plan.blob)?;
        let Plan { vm, epoch, members, config, blob } = plan;
        let keys = Keyring::All(secret);
        let context = MeshContext { keys, vm, epoch, local: SliceId(0), config, memory: None };
        let mut mesh = Self { context, members, companions: Vec::new(), committed: false };
        let mut called: Vec<SliceId> = mesh.members.iter().map(|member| member.slice).collect();
        called.retain(|slice| *slice != SliceId(0));
        called.sort_unstable();
        called.iter().try_for_each(|slice| mesh.call(*slice, deadline))?;
        for (place, slice) in called.into_iter().enumerate() {
            let tickets = tickets(&mesh.context, &mesh.members, slice);
            mesh.assign(place, &blob, tickets, deadline)?;
        }
        Ok(mesh)
    }

    /// The same for one slice that joins the others, which are members already. They call it, so it gets no tickets.
    pub(super) fn invite(
        context: MeshContext,
        members: Vec<Member>,
        newcomer: SliceId,
        blob: &[u8],
        deadline: Instant,
    ) -> Result<Self, MeshError> {
        check_members(&members).map_err(MeshError::Plan)?;
        check_blob(blob)?;
        let mut mesh = Self { context, members, companions: Vec::new(), committed: false };
        mesh.call(newcomer, deadline)?;
        mesh.assign(0, blob, Vec::new(), deadline)?;
        Ok(mesh)
    }

    /// Makes the control connection to a member.
    fn call(&mut self, slice: SliceId, deadline: Instant) -> Result<(), MeshError> {
        let member = self.members.iter().find(|member| member.slice == slice);
        let address = member.and_then(|member| member.address);
        let address = address.ok_or(MeshError::NotACompanion { slice })?;
        let control = self.context.call(Role::Control, slice, address, deadline)?;
        self.companions.push(Companion { slice, address, control });
        Ok(())
    }

    fn assign(
        &mut self,
        place: usize,
        blob: &[u8],
        tickets: Vec<Ticket>,
        deadline: Instant,
    ) -> Result<(), MeshError> {
        let companion = &mut self.companions[place];
        let assign = Assign {
            local: companion.slice,
            members: self.members.clone(),
            config: self.context.config.clone(),
            blob: blob.to_vec(),
            tickets,
        };
        companion.send(&Control::Assign(assign), deadline)
    }

    /// Waits until every companion agreed (with a blob) or refused (with a text), ascending.
    ///
    /// # Errors
    /// A companion went away, said something else, or nothing in time.
    pub fn gather(&mut self, deadline: Instant) -> Result<Vec<(SliceId, Answer)>, MeshError> {
        self.collect(deadline, |message| match message {
            Control::Agree(blob) => Ok(Ok(blob)),
            Control::Refuse(text) => Ok(Err(text)),
            other => Err(ControlError::Unexpected { got: other.name(), want: "agree" }),
        })
    }

    /// Has every companion do what takes long, before clocks are measured: their answers to it are gathered. After `gather`.
    ///
    /// # Errors
    /// A companion went away.
    pub fn prepare(&mut self, deadline: Instant) -> Result<(), MeshError> {
        self.tell_all(&Control::Prepare, deadline)
    }

    /// Takes one message of every companion, in the order they come.
    fn collect<T>(
        &mut self,
        deadline: Instant,
        mut take: impl FnMut(Control) -> Result<T, ControlError>,
    ) -> Result<Vec<(SliceId, T)>, MeshError> {
        let epoll = Epoll::new().map_err(MeshError::Wait)?;
        for (token, companion) in (0u64..).zip(&self.companions) {
            let event = EpollEvent::new(EventSet::IN, token);
            epoll
                .ctl(ControlOperation::Add, companion.control.as_raw_fd(), event)
                .map_err(MeshError::Wait)?;
        }
        let mut taken: Vec<(SliceId, T)> = Vec::new();
        while taken.len() < self.companions.len() {
            let place = next_ready(&epoll, deadline).map_err(MeshError::Wait)?;
            let Some(place) = place.filter(|place| *place < self.companions.len()) else {
                let has = |slice| taken.iter().any(|(done, _)| *done == slice);
                let silent = self.companions.iter().find(|companion| !has(companion.slice));
                return Err(silent
                    .map_or(MeshError::NoBootstrap, |silent| silent.error(ControlError::Timeout)));
            };
            let companion = &mut self.companions[place];
            let message = companion.receive(deadline)?;
            if matches!(message, Control::Refuse(_)) {
                // It may hang up now; of the others that would be a loss.
                let fd = companion.control.as_raw_fd();
                epoll
                    .ctl(ControlOperation::Delete, fd, EpollEvent::default())
                    .map_err(MeshError::Wait)?;
            }
            let value = take(message).map_err(|source| companion.error(source))?;
            if taken.iter().any(|(slice, _)| *slice == companion.slice) {
                let twice = ControlError::Unexpected { got: "a second answer", want: "silence" };
                return Err(companion.error(twice));
            }
            taken.push((companion.slice, value));
        }
        taken.sort_by_key(|(slice, _)| *slice);
        Ok(taken)
    }

    /// Compares `clock` with the clock of `peer`, which waits in
    /// [`CompanionMesh::verdict`](super::CompanionMesh::verdict). After `gather`, before `commit`.
    ///
    /// # Errors
    /// No such companion, no rounds, or the companion went away.
    pub fn measure_clock(
        &mut self,
        peer: SliceId,
        rounds: u32,
        clock: &dyn Fn() -> u64,
        deadline: Instant,
    ) -> Result<ClockEstimate, MeshError> {
        let companion = self
            .companions
            .iter_mut()
            .find(|companion| companion.slice == peer)
            .ok_or(MeshError::NotACompanion { slice: peer })?;
        let mut probe = ClockProbe::default();
        for _ in 0..rounds {
            let before = clock();
            companion.send(&Control::Probe, deadline)?;
            let reply = companion.receive(deadline)?;
            let after = clock();
            match reply {
                Control::Clock(theirs) => probe.sample(before, theirs, after),
                other => {
                    let wrong = ControlError::Unexpected { got: other.name(), want: "clock" };
                    return Err(companion.error(wrong));
                }
            }
        }
        probe.best().ok_or(MeshError::OutOfOrder { step: "measure a clock in no rounds" })
    }

    /// Lends this slice's memory, should [`Config::rdma_memory`] ask for it. Before `into_transport`.
    pub fn expose(&mut self, memory: PageMemory) {
        self.context.memory = Some(memory);
    }

    /// Tells every companion that it will not be, and why.
    pub fn abort(mut self, text: &str) {
        self.tell_abort(text);
    }

    pub(super) fn tell_abort(&mut self, text: &str) {
        let deadline = Instant::now() + PARTING;
        for companion in &mut self.companions {
            // A companion that is gone needs no message.
            let _ = companion.send(&Control::Abort(cut(text)), deadline);
        }
    }

    /// Tells every companion that all agreed, with a last blob for all.
    ///
    /// # Errors
    /// A companion went away, or the blob is too large.
    pub fn commit(&mut self, blob: &[u8], deadline: Instant) -> Result<(), MeshError> {
        check_blob(blob)?;
        self.tell_all(&Control::Commit(blob.to_vec()), deadline)?;
        self.committed = true;
        Ok(())
    }

    /// Connects to every companion, once per class, waits until all are connected to each other,
    /// and starts the transport. After `commit`.
    ///
    /// Why a carrier that was asked for first is not used goes to `warn`.
    ///
    /// # Errors
    /// Names the slice that could not join; the others were told.
    pub fn into_transport(
        mut self,
        deadline: Instant,
        warn: &mut dyn FnMut(&str),
    ) -> Result<MeshTransport, MeshError> {
        if !self.committed {
            return Err(MeshError::OutOfOrder { step: "into_transport before commit" });
        }
        match self.join(deadline, warn) {
            Ok((streams, links)) => {
                let roster = Some(Roster::new(self.members));
                MeshTransport::start(self.context, streams, links, roster)
            }
            Err(error) => {
                self.tell_abort(&one_line(&error));
                Err(error)
            }
        }
    }

    /// Connects to all, and takes the first carrier of the list that every slice can use.
    fn join(
        &mut self,
        deadline: Instant,
        warn: &mut dyn FnMut(&str),
    ) -> Result<(Vec<Connected>, Links), MeshError> {
        let mut streams = Vec::with_capacity(self.companions.len());
        for place in 0..self.companions.len() {
            let (slice, address) = (self.companions[place].slice, self.companions[place].address);
            match self.context.call_classes(slice, address, deadline) {
                Ok(classes) => streams.push((slice, classes)),
                // The companion may have said why it gave up; that is the better reason.
                Err(error) => return Err(self.told_reason().unwrap_or(error)),
            }
        }
        let carriers = self.context.config.carriers.clone();
        for (place, kind) in carriers.iter().enumerate() {
            let (slice, cause) = match self.agree(*kind, &mut streams, deadline)? {
                Ok(links) => {
                    self.tell_all(&Control::Go(*kind), deadline)?;
                    return Ok((streams, links));
                }
                Err(trouble) => trouble,
            };
            let text = format!("{slice}: {cause}");
            let Some(next) = carriers.get(place + 1) else {
                return Err(MeshError::Carrier { kind: *kind, text });
            };
            warn(&format!("{kind} cannot be used, so {next} is tried: {text}"));
            self.tell_all(&Control::Next, deadline)?;
        }
        // A configuration without a carrier is refused before anybody is called.
        Err(MeshError::OutOfOrder { step: "join without a carrier" })
    }

    /// What this slice has set up on a carrier, if all others have too; else the first that has not, and why.
    fn agree(
        &mut self,
        kind: CarrierKind,
        streams: &mut [Connected],
        deadline: Instant,
    ) -> Result<Result<Links, (SliceId, String)>, MeshError> {
        let meeting = match self.context.negotiate(kind, streams, deadline) {
            Ok(meeting) => meeting,
            Err(error) => return Err(self.told_reason().unwrap_or(error)),
        };
        let trouble = self.trouble(deadline)?;
        let local = self.context.local;
        Ok(meeting.map_err(|text| (local, text)).and_then(|links| match trouble {
            Some(trouble) => Err(trouble),
            None => Ok(links),
        }))
    }

    /// Waits until every companion has tried a carrier. The first that could not use it, and why.
    fn trouble(&mut self, deadline: Instant) -> Result<Option<(SliceId, String)>, MeshError> {
        let answers = self.collect(deadline, |message| match message {
            Control::Ready(trouble) => Ok(Ok(trouble)),
            Control::Refuse(text) => Ok(Err(text)),
            other => Err(ControlError::Unexpected { got: other.name(), want: "ready" }),
        })?;
        let mut troubles = Vec::new();
        for (slice, answer) in answers {
            let trouble = answer.map_err(|text| MeshError::Refused { slice, text })?;
            troubles.extend(trouble.map(|text| (slice, text)));
        }
        Ok(troubles.into_iter().next())
    }

    /// Makes this slice's link to a newcomer, and waits until that one has links to all members.
    pub(super) fn meet(
        &mut self,
        kind: CarrierKind,
        newcomer: SliceId,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<PeerLink, MeshError> {
        if !self.committed {
            return Err(MeshError::OutOfOrder { step: "meet before commit" });
        }
        let link = match self.context.meet(kind, newcomer, address, deadline) {
            Ok(link) => link,
            // The newcomer may have said why it gave up; that is the better reason.
            Err(error) => return Err(self.told_reason().unwrap_or(error)),
        };
        match self.trouble(deadline)? {
            Some((slice, text)) => Err(MeshError::Newcomer { slice, kind, text }),
            None => Ok(link),
        }
    }

    /// Whether the companions still wait for a word: one that has said something or hung up does not.
    ///
    /// # Errors
    /// Names the first one that does not.
    pub fn check_waiting(&mut self, deadline: Instant) -> Result<(), MeshError> {
        for companion in &mut self.companions {
            let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            if recv(&companion.control, &mut [0; 1], look) == Err(Errno::AGAIN) {
                continue;
            }
            let slice = companion.slice;
            return Err(match companion.receive(deadline)? {
                Control::Refuse(text) => MeshError::Refused { slice, text },
                other => {
                    let got = other.name();
                    companion.error(ControlError::Unexpected { got, want: "silence" })
                }
            });
        }
        Ok(())
    }

    /// Another handle of the first companion's control connection.
    pub(super) fn control(&self) -> Result<TcpStream, MeshError> {
        let companion = self.companions.first().ok_or(MeshError::NoBootstrap)?;
        companion.control.try_clone().map_err(MeshError::Wait)
    }

    pub(super) fn tell_all(
        &mut self,
        message: &Control,
        deadline: Instant,
    ) -> Result<(), MeshError> {
        self.companions.iter_mut().try_for_each(|companion| companion.send(message, deadline))
    }

    /// A refusal that some companion has sent already.
    fn told_reason(&mut self) -> Option<MeshError> {
        let deadline = Instant::now() + Duration::from_millis(50);
        self.companions.iter_mut().find_map(|companion| match companion.receive(deadline) {
            Ok(Control::Refuse(text)) => Some(MeshError::Refused { slice: companion.slice, text }),
            _ => None,
        })
    }
}

/// For the companions that a companion calls: those with lower numbers.
fn tickets(context: &MeshContext, members: &[Member], from: SliceId) -> Vec<Ticket> {
    let called = members.iter().filter(|member| (SliceId(1)..from).contains(&member.slice));
    let connection = |to| ConnectionId { from, ..context.connection(Role::Frames(0), to) };
    called.filter_map(|member| context.keys.ticket(&connection(member.slice))).collect()
}

pub(super) fn check_blob(blob: &[u8]) -> Result<(), MeshError> {
    if blob.len() > BLOB_BYTES_MAX {
        return Err(MeshError::BlobTooLarge { length: blob.len() });
    }
    Ok(())
}
