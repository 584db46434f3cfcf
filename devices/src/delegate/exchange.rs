//! One per slice: knows the devices here and elsewhere, and routes what arrives.

use super::counters::{Counters, add};
use super::inbound::Inbound;
use super::outbound::Outbound;
use super::role::{Origin, Role};
use super::{
    Courier, DiskServer, ExchangeError, Limits, NicServer, RemoteDisk, RemoteNic, ServeError,
    StillInFlight,
};
use crate::back_end::{Disk, DiskShape, Nic, NicShape};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use wire::device::DeviceFrame;
use wire::{DeviceId, Epoch, SliceId};

/// The delegated devices of one slice.
#[derive(Debug)]
pub struct Exchange {
    local: SliceId,
    members: Vec<SliceId>,
    outbound: Arc<Outbound>,
    /// Written while the slice is set up, and when the real part of a device moves.
    roles: RwLock<BTreeMap<DeviceId, Arc<dyn Role>>>,
    /// How often that of a device has.
    moves: RwLock<BTreeMap<DeviceId, u32>>,
    /// Only `frame` and `lost` take these.
    peers: BTreeMap<SliceId, Mutex<Inbound>>,
}

impl Exchange {
    /// The exchange of slice `local`; `members` are the other slices.
    #[must_use]
    pub fn new(
        local: SliceId,
        members: &[SliceId],
        epoch: Epoch,
        courier: Arc<dyn Courier>,
    ) -> Self {
        let outbound = Arc::new(Outbound::new(epoch, members, courier));
        let peers = members.iter().map(|member| (*member, Mutex::default())).collect();
        let (roles, moves) = (RwLock::default(), RwLock::default());
        Self { local, members: members.to_vec(), outbound, roles, moves, peers }
    }

    /// Serves a disk of this slice to all others. Both sides must name the same number of queues,
    /// which is a slice's at most: it gives the bounds.
    ///
    /// # Errors
    /// The server's thread cannot be started.
    pub fn serve_disk(
        &self,
        device: DeviceId,
        disk: Arc<dyn Disk>,
        queues: u16,
    ) -> Result<(), ServeError> {
        let outbound = Arc::clone(&self.outbound);
        let limits = Limits::of_queues(queues);
        let server = DiskServer::new(device, disk, limits, &self.members, outbound)?;
        self.enter(device, Arc::new(server));
        Ok(())
    }

    /// Serves a network of this slice to all others. The front ends here must use what is returned
    /// and not the network itself.
    ///
    /// # Errors
    /// The server's thread cannot be started.
    pub fn serve_nic(
        &self,
        device: DeviceId,
        nic: Arc<dyn Nic>,
    ) -> Result<Arc<dyn Nic>, ServeError> {
        let outbound = Arc::clone(&self.outbound);
        let server = NicServer::new(device, self.local, nic, &self.members, outbound)?;
        let server = Arc::new(server);
        self.enter(device, Arc::<NicServer>::clone(&server));
        Ok(server)
    }

    /// A disk that slice `owner` serves with so many queues, from now on.
    pub fn remote_disk(
        &self,
        device: DeviceId,
        owner: SliceId,
        shape: DiskShape,
        queues: u16,
    ) -> Arc<dyn Disk> {
        let (limits, outbound) = (Limits::of_queues(queues), Arc::clone(&self.outbound));
        let disk = Arc::new(RemoteDisk::new(device, owner, shape, limits, outbound));
        self.enter(device, Arc::<RemoteDisk>::clone(&disk));
        disk
    }

    /// A network that slice `owner` serves.
    pub fn remote_nic(&self, device: DeviceId, owner: SliceId, shape: NicShape) -> Arc<dyn Nic> {
        let outbound = Arc::clone(&self.outbound);
        let generation = self.next_generation(device);
        let nic = Arc::new(RemoteNic::new(device, owner, shape, outbound, generation));
        self.enter(device, Arc::<RemoteNic>::clone(&nic));
        nic
    }

    fn enter(&self, device: DeviceId, role: Arc<dyn Role>) {
        let before =
            self.roles.write().unwrap_or_else(PoisonError::into_inner).insert(device, role);
        if before.is_some() {
            let mut moves = self.moves.write().unwrap_or_else(PoisonError::into_inner);
            *moves.entry(device).or_default() += 1;
        }
    }

    /// How often the real part of a device has moved.
    fn moves(&self, device: DeviceId) -> u32 {
        let moves = self.moves.read().unwrap_or_else(PoisonError::into_inner);
        moves.get(&device).copied().unwrap_or(0)
    }

    /// The number of moves when a role is entered that is made now.
    fn next_generation(&self, device: DeviceId) -> u32 {
        let roles = self.roles.read().unwrap_or_else(PoisonError::into_inner);
        self.moves(device) + u32::from(roles.contains_key(&device))
    }

    /// What went through.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.outbound.counters
    }

    /// Takes a frame of a peer. Returns at once.
    ///
    /// # Errors
    /// What the peer must not say, or more than it may say. The VM cannot go on.
    pub fn frame(&self, from: SliceId, bytes: &[u8]) -> Result<(), ExchangeError> {
        let frame = DeviceFrame::decode(self.outbound.epoch(), bytes)?;
        let inbound = self.peers.get(&from).ok_or(ExchangeError::Stranger(from))?;
        if self.outbound.is_lost(from) {
            return Ok(());
        }
        add(&self.outbound.counters.frames_received, 1);
        add(&self.outbound.counters.bytes_received, bytes.len() as u64);
        let device = frame.device();
        let role = self.roles.read().unwrap_or_else(PoisonError::into_inner).get(&device).cloned();
        let role = role.ok_or(ExchangeError::Device { device, from })?;
        // Nobody waits for these, so some may be on their way while the real part moves.
        let may_be_late = matches!(
            frame,
            DeviceFrame::PacketsIn { .. } | DeviceFrame::Allow { .. } | DeviceFrame::Connect { .. }
        );
        match role.take(frame, &Origin { slice: from, inbound }) {
            Err(ExchangeError::Device { .. } | ExchangeError::Part(_))
                if may_be_late && self.moves(device) > 0 =>
            {
                add(&self.outbound.counters.dropped, 1);
                Ok(())
            }
            taken => taken,
        }
    }

    /// Waits until what front ends here have asked of other slices is answered and they know it, and what other slices
    /// have asked of devices here is done. Called when the workers of all slices are at rest; frames must be
    /// delivered meanwhile. Packets on their way to a guest are not waited for: a network may lose them.
    ///
    /// # Errors
    /// That is not so after this time. Nothing has changed.
    pub fn wait_until_idle(&self, within: Duration) -> Result<(), StillInFlight> {
        let deadline = Instant::now() + within;
        for (device, role) in self.all_roles() {
            let requests = role.wait_until_idle(deadline);
            if requests > 0 {
                return Err(StillInFlight { device, requests, within });
            }
        }
        Ok(())
    }

    fn all_roles(&self) -> Vec<(DeviceId, Arc<dyn Role>)> {
        let roles = self.roles.read().unwrap_or_else(PoisonError::into_inner);
        roles.iter().map(|(device, role)| (*device, Arc::clone(role))).collect()
    }

    /// A slice is gone: requests to its disks fail, now and later, and packets to its networks are
    /// dropped. What it asked of devices here is still carried out, but not answered.
    pub fn lost(&self, slice: SliceId) {
        self.outbound.lose(slice);
        self.forget(slice);
    }

    /// What a slice has begun to say counts no more, as of one that was to join and does not. A slice of this number may still join.
    pub fn forget(&self, slice: SliceId) {
        if let Some(inbound) = self.peers.get(&slice) {
            inbound.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        self.all_roles().iter().for_each(|(_, role)| role.lost(slice));
    }
}
