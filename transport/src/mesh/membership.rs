//! What a slice keeps of the mesh while its VM runs: enough to meet one slice more.

use super::context::MeshContext;
use super::error::MeshError;
use super::summons::Summons;
use crate::config::CarrierKind;
use crate::control::Member;
use crate::handshake::{ConnectionId, Role};
use crate::link::PeerLink;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;
use wire::SliceId;

/// This slice's part in the mesh of a running VM. It has keys and no connections.
#[derive(Debug)]
pub struct Membership {
    pub(super) context: MeshContext,
    kind: CarrierKind,
    /// The bootstrap's.
    pub(super) roster: Option<Roster>,
}

/// Who is a member, and who ever was.
#[derive(Debug)]
pub(super) struct Roster {
    members: Vec<Member>,
    used: BTreeSet<SliceId>,
}

impl Roster {
    pub(super) fn new(members: Vec<Member>) -> Self {
        let used = members.iter().map(|member| member.slice).collect();
        Self { members, used }
    }

    /// All members with a newcomer, if its number is fresh.
    pub(super) fn with(&self, newcomer: Member) -> Result<Vec<Member>, MeshError> {
        let slice = newcomer.slice;
        if self.used.contains(&slice) {
            return Err(MeshError::NotFresh { slice });
        }
        Ok(self.members.iter().cloned().chain([newcomer]).collect())
    }

    /// From now on the number is not given to anybody else.
    pub(super) fn admit(&mut self, newcomer: Member) {
        self.used.insert(newcomer.slice);
        self.members.push(newcomer);
    }

    /// The companions.
    pub(super) fn companions(&self) -> impl Iterator<Item = SliceId> {
        let slices = self.members.iter().map(|member| member.slice);
        slices.filter(|slice| *slice != SliceId(0))
    }
}

impl Membership {
    pub(super) fn new(mut context: MeshContext, kind: CarrierKind, roster: Option<Roster>) -> Self {
        // A newcomer has no choice.
        context.config.carriers = vec![kind];
        Self { context, kind, roster }
    }

    /// What carries the frames of the VM.
    #[must_use]
    pub fn kind(&self) -> CarrierKind {
        self.kind
    }

    /// On the bootstrap: only these are members now, and newcomers are not told of others. Their numbers stay used.
    pub fn keep(&mut self, is_member: impl Fn(SliceId) -> bool) {
        if let Some(roster) = &mut self.roster {
            roster.members.retain(|member| is_member(member.slice));
        }
    }

    /// On the bootstrap: the lowest number above those that slices of this VM ever had, if there is one.
    #[must_use]
    pub fn next_slice(&self) -> Option<SliceId> {
        let SliceId(last) = self.roster.as_ref()?.used.last()?;
        last.checked_add(1).map(SliceId)
    }

    /// On any other member: calls the newcomer of a summons and sets up the carrier of the VM to it. Blocks until the
    /// newcomer has taken the call, which over anything but TCP it does only when all members have called.
    ///
    /// # Errors
    /// The newcomer cannot be reached, is another, or cannot be reached over the carrier of the VM.
    pub fn meet(&self, summons: &Summons, deadline: Instant) -> Result<PeerLink, MeshError> {
        let (newcomer, address) = (summons.newcomer(), summons.address());
        let MeshContext { vm, epoch, local, .. } = self.context;
        if newcomer == local {
            return Err(MeshError::NotFresh { slice: newcomer });
        }
        let keys = self.context.keys.clone().with(vm, epoch, summons.ticket());
        let context = MeshContext { keys, ..self.context.clone() };
        context.meet(self.kind, newcomer, address, deadline)
    }
}

/// For a member that calls a newcomer.
pub(super) fn summons(
    context: &MeshContext,
    from: SliceId,
    newcomer: SliceId,
    address: SocketAddr,
) -> Option<Summons> {
    let connection = ConnectionId { from, ..context.connection(Role::Frames(0), newcomer) };
    context.keys.ticket(&connection).map(|ticket| Summons::new(address, ticket))
}
