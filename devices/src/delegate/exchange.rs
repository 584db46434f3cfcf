//! One per slice: knows the devices here and elsewhere, and routes what arrives.

use super::counters::{Counters, add};
use super::inbound::{Inbound, Kind};
use super::outbound::Outbound;
use super::{
    Courier, DiskServer, ExchangeError, Limits, NicServer, RemoteDisk, RemoteNic, ServeError,
    StillUnderWay,
};
use crate::back_end::{Disk, DiskShape, Nic, NicShape};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use wire::device::{DeviceFrame, Part};
use wire::{DeviceId, Epoch, SliceId};

/// What a device is on this slice.
#[derive(Clone, Debug)]
enum Role {
    DiskServer(Arc<DiskServer>),
    NicServer(Arc<NicServer>),
    RemoteDisk(Arc<RemoteDisk>),
    RemoteNic(Arc<RemoteNic>),
}

impl Role {
    /// Waits until nothing is under way, or the deadline. Gives the number of requests that are.
    fn wait_until_idle(&self, deadline: Instant) -> usize {
        match self {
            Self::DiskServer(server) => server.wait_until_idle(deadline),
            Self::NicServer(server) => server.wait_until_idle(deadline),
            Self::RemoteDisk(disk) => disk.wait_until_idle(deadline),
            Self::RemoteNic(nic) => nic.wait_until_idle(deadline),
        }
    }
}

/// The delegated devices of one slice.
#[derive(Debug)]
pub struct Exchange {
    local: SliceId,
    members: Vec<SliceId>,
    outbound: Arc<Outbound>,
    /// Written while the slice is set up.
    roles: RwLock<BTreeMap<DeviceId, Role>>,
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
        Self { local, members: members.to_vec(), outbound, roles: RwLock::default(), peers }
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
        self.enter(device, Role::DiskServer(Arc::new(server)));
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
        self.enter(device, Role::NicServer(Arc::clone(&server)));
        Ok(server)
    }

    /// A disk that slice `owner` serves with so many queues.
    pub fn remote_disk(
        &self,
        device: DeviceId,
        owner: SliceId,
        shape: DiskShape,
        queues: u16,
    ) -> Arc<dyn Disk> {
        let (limits, outbound) = (Limits::of_queues(queues), Arc::clone(&self.outbound));
        let disk = Arc::new(RemoteDisk::new(device, owner, shape, limits, outbound));
        self.enter(device, Role::RemoteDisk(Arc::clone(&disk)));
        disk
    }

    /// A network that slice `owner` serves.
    pub fn remote_nic(&self, device: DeviceId, owner: SliceId, shape: NicShape) -> Arc<dyn Nic> {
        let nic = RemoteNic::new(device, owner, shape, Arc::clone(&self.outbound));
        let nic = Arc::new(nic);
        self.enter(device, Role::RemoteNic(Arc::clone(&nic)));
        nic
    }

    fn enter(&self, device: DeviceId, role: Role) {
        self.roles.write().unwrap_or_else(PoisonError::into_inner).insert(device, role);
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
        if !self.peers.contains_key(&from) {
            return Err(ExchangeError::Stranger(from));
        }
        if self.outbound.is_lost(from) {
            return Ok(());
        }
        add(&self.outbound.counters.frames_received, 1);
        add(&self.outbound.counters.bytes_received, bytes.len() as u64);
        let device = device_of(&frame);
        let role = self.roles.read().unwrap_or_else(PoisonError::into_inner).get(&device).cloned();
        let role = role.ok_or(ExchangeError::Device { device, from })?;
        self.route(from, frame, &role)
    }

    /// Waits until what front ends here have asked of other slices is answered and they know it, and what other slices
    /// have asked of devices here is done. Called when the workers of all slices are at rest; frames must be
    /// delivered meanwhile. Packets on their way to a guest are not waited for: a network may lose them.
    ///
    /// # Errors
    /// That is not so after this time. Nothing has changed.
    pub fn wait_until_idle(&self, within: Duration) -> Result<(), StillUnderWay> {
        let deadline = Instant::now() + within;
        for (device, role) in self.all_roles() {
            let requests = role.wait_until_idle(deadline);
            if requests > 0 {
                return Err(StillUnderWay { device, requests, within });
            }
        }
        Ok(())
    }

    fn all_roles(&self) -> Vec<(DeviceId, Role)> {
        let roles = self.roles.read().unwrap_or_else(PoisonError::into_inner);
        roles.iter().map(|(device, role)| (*device, role.clone())).collect()
    }

    fn route(
        &self,
        from: SliceId,
        frame: DeviceFrame<'_>,
        role: &Role,
    ) -> Result<(), ExchangeError> {
        match (frame, role) {
            (DeviceFrame::DiskRequest { part, ask, bytes }, Role::DiskServer(server)) => {
                let data = match bytes {
                    [] => Some(Vec::new()),
                    bytes => self.take(from, Kind::Request(ask), part, bytes)?,
                };
                data.map_or(Ok(()), |data| server.request(from, part, ask, data))
            }
            (DeviceFrame::DiskReply { part, status, bytes }, Role::RemoteDisk(disk))
                if disk.owner() == from =>
            {
                let data = match bytes {
                    [] => Some(Vec::new()),
                    bytes => self.take(from, Kind::Reply(status), part, bytes)?,
                };
                data.map_or(Ok(()), |data| disk.reply(part.tag, status, data))
            }
            (DeviceFrame::PacketsOut { part, bytes }, Role::NicServer(server)) => {
                let list = self.take(from, Kind::Out, part, bytes)?;
                list.map_or(Ok(()), |list| server.packets(from, part, list))
            }
            (DeviceFrame::Allow { queue, connection, packets, .. }, Role::NicServer(server)) => {
                server.want_packets(from, connection, queue, packets)
            }
            (DeviceFrame::Connect { connection, agreed, .. }, Role::NicServer(server)) => {
                server.want_connect(from, connection, agreed)
            }
            (DeviceFrame::PacketsIn { part, connection, bytes }, Role::RemoteNic(nic))
                if nic.owner() == from =>
            {
                let list = self.take(from, Kind::In(connection), part, bytes)?;
                list.map_or(Ok(()), |list| nic.packets(part.queue, connection, &list))
            }
            (DeviceFrame::PacketsDone { tag, .. }, Role::RemoteNic(nic)) if nic.owner() == from => {
                nic.done(tag)
            }
            (frame, _) => Err(ExchangeError::Device { device: device_of(&frame), from }),
        }
    }

    /// Adds a part to what this peer has begun.
    fn take(
        &self,
        from: SliceId,
        kind: Kind,
        part: Part,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, ExchangeError> {
        let inbound = self.peers.get(&from).ok_or(ExchangeError::Stranger(from))?;
        let mut inbound = inbound.lock().unwrap_or_else(PoisonError::into_inner);
        inbound.take(from, kind, part, bytes)
    }

    /// A slice is gone: requests to its disks fail, now and later, and packets to its networks are
    /// dropped. What it asked of devices here is still carried out, but not answered.
    pub fn lost(&self, slice: SliceId) {
        self.outbound.lose(slice);
        if let Some(inbound) = self.peers.get(&slice) {
            inbound.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        for (_, role) in self.all_roles() {
            match role {
                Role::RemoteDisk(disk) if disk.owner() == slice => disk.lose(),
                Role::RemoteNic(nic) if nic.owner() == slice => nic.lose(),
                _ => {}
            }
        }
    }
}

fn device_of(frame: &DeviceFrame<'_>) -> DeviceId {
    match *frame {
        DeviceFrame::DiskRequest { part, .. }
        | DeviceFrame::DiskReply { part, .. }
        | DeviceFrame::PacketsOut { part, .. }
        | DeviceFrame::PacketsIn { part, .. } => part.device,
        DeviceFrame::PacketsDone { device, .. }
        | DeviceFrame::Allow { device, .. }
        | DeviceFrame::Connect { device, .. } => device,
    }
}
