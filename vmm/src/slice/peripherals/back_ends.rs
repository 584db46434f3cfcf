//! The real devices of this host: opened before the VM exists, so that what cannot be had is refused while
//! nothing has been promised.

use super::freezing::FromCheckpoint;
use super::lend::Lent;
use super::model::{BackEnd, FrontEnd, Opening};
use super::open_error::OpenError;
use super::parts::RealPart;
use super::registry::{BackEndShape, DeviceKind, DeviceSpec};
use super::remote::Remote;
use devices::Fence;
use devices::back_end::image::{GenerationRecord, OnFull, Writer};
use devices::delegate::ServeError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::SliceId;

/// The devices of this host that the VM uses, by their numbers. Dropping it closes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackEnds {
    open: BTreeMap<u16, (BackEndShape, Arc<dyn BackEnd>)>,
    /// Those that may be opened later.
    standbys: BTreeMap<u16, (BackEndShape, Arc<dyn RealPart>)>,
    /// Set when the guest's panic went by on a console of this host.
    panicked: Arc<AtomicBool>,
    fence: Arc<Fence>,
}

impl BackEnds {
    /// Opens what the description of a VM with so many vCPUs places on this slice. With `lend`, only what is in there. Disks of a VM
    /// that is restored are only looked at, and kept from others, until it goes on ([`Self::go_on`]).
    pub(crate) fn open(
        devices: &[DeviceSpec],
        (local, vcpus): (SliceId, u32),
        (lend, on_full): (Option<&Lent>, OnFull),
        checkpoint: &FromCheckpoint,
    ) -> Result<Self, OpenError> {
        let mut all = Self::default();
        for (number, device) in (0u16..).zip(devices) {
            let Some(kind) = device.at(local) else { continue };
            let origin = kind.cloned_from().filter(|_| checkpoint.cloned);
            let names = origin.as_ref().unwrap_or(&kind).names();
            let lend = lend.filter(|_| !names.is_empty());
            let opening = Opening {
                number,
                vcpus,
                fence: &all.fence,
                on_full,
                panicked: &all.panicked,
                moves: !device.standby.is_empty(),
                lent: lend.map(|lent| lent.find(&names)).transpose()?,
                writer: checkpoint.writer,
                restored: checkpoint.disks.get(&number),
                cloned: origin.is_some(),
            };
            if device.slice == local.0 {
                let open = kind.open(&opening)?;
                all.open.insert(number, open);
            } else {
                let standby = kind.stand_by(&opening)?;
                all.standbys.insert(number, standby);
            }
        }
        Ok(all)
    }

    /// The newest life of this VM that records beside its images on this host name. With `lend`, only beside what is in there.
    pub(crate) fn newest_life(
        devices: &[DeviceSpec],
        local: SliceId,
        lend: Option<&Lent>,
        vm: [u8; 16],
    ) -> Option<u64> {
        let kinds = devices.iter().filter_map(|device| device.at(local));
        let lent = kinds.filter(|kind| lend.is_none_or(|lent| lent.find(&kind.names()).is_ok()));
        let recorded = lent.filter_map(|kind| match kind {
            // One that cannot be read refuses whoever opens the image.
            DeviceKind::Disk(disk) if !disk.read_only => {
                GenerationRecord::last_writer(&disk.path).ok().flatten()
            }
            _ => None,
        });
        recorded.filter(|writer| writer.vm == vm).map(|writer| writer.generation).max()
    }

    /// The VM that goes on is known by this, which all slices have agreed on.
    pub(crate) fn go_on_as(&self, writer: Writer) {
        self.kept().values().for_each(|part| part.goes_on_as(writer));
    }

    /// What keeps them from changing anything outside once the VM is over for this slice.
    pub(crate) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Set when the guest's panic was seen here.
    pub(crate) fn panicked(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.panicked)
    }

    /// The VM begins.
    pub(crate) fn start(&self) -> Result<(), OpenError> {
        self.open.values().try_for_each(|(_, back_end)| back_end.start())
    }

    /// The guest of a VM that is restored is about to go on: disks become what they were at the checkpoint.
    ///
    /// # Errors
    /// One cannot. Others may have become so.
    pub(crate) fn go_on(&self) -> Result<(), OpenError> {
        self.open.values().try_for_each(|(_, back_end)| back_end.go_on())
    }

    /// The VM is over: what is under way to people and programs gets there.
    pub(crate) fn finish(&self) {
        self.open.values().for_each(|(_, back_end)| back_end.finish());
    }

    /// What they are.
    pub(crate) fn shapes(&self) -> Vec<(u16, BackEndShape)> {
        self.open.iter().map(|(number, (shape, _))| (*number, shape.clone())).collect()
    }

    /// What they are that may be opened here later.
    pub(crate) fn standby_shapes(&self) -> Vec<(u16, BackEndShape)> {
        self.standbys.iter().map(|(number, (shape, _))| (*number, shape.clone())).collect()
    }

    /// What can move to this host or from it, by the devices' numbers.
    pub(super) fn parts(&self) -> BTreeMap<u16, Arc<dyn RealPart>> {
        let open = self.open.iter().filter_map(|(number, (_, open))| Some((*number, open.part()?)));
        open.chain(self.standby_parts()).collect()
    }

    /// What is or can be on this host and has a state that a checkpoint must keep, by the devices' numbers.
    pub(super) fn kept(&self) -> BTreeMap<u16, Arc<dyn RealPart>> {
        let open = self.open.iter().filter_map(|(number, (_, open))| Some((*number, open.kept()?)));
        open.chain(self.standby_parts()).collect()
    }

    fn standby_parts(&self) -> impl Iterator<Item = (u16, Arc<dyn RealPart>)> {
        self.standbys.iter().map(|(number, (_, part))| (*number, Arc::clone(part)))
    }

    /// What each of them contains, as far as one looks: equal on all hosts that have the same one.
    ///
    /// # Errors
    /// One cannot be read.
    pub(crate) fn samples(&self) -> Result<Vec<(u16, String)>, OpenError> {
        let unread = OpenError::of("a device that can move");
        let sample = |(number, part): (u16, Arc<dyn RealPart>)| {
            Ok((number, part.sample().map_err(&unread)?))
        };
        self.parts().into_iter().map(sample).collect()
    }

    /// The front end of a device on this slice: of the one that is open here, which is served to the other slices as
    /// well, or of that of another slice.
    pub(super) fn front_end(
        &self,
        shape: &BackEndShape,
        at: &Remote<'_>,
    ) -> Result<Arc<dyn FrontEnd>, ServeError> {
        match self.open.get(&at.device.0) {
            Some((_, back_end)) => back_end.front_end(at.exchange, at.device, at.queues),
            None => Ok(shape.remote(at)),
        }
    }
}
