//! The real devices of this host: opened before the VM exists, so that what cannot be had is refused while
//! nothing has been promised.

use super::lend::Lent;
use super::model::{BackEnd, FrontEnd, OpenError, Opening, Remote};
use super::registry::{BackEndShape, DeviceSpec};
use devices::Fence;
use devices::back_end::image::OnFull;
use devices::delegate::ServeError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::SliceId;

/// The devices of this host that the VM uses, by their numbers. Dropping it closes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackEnds {
    open: BTreeMap<u16, (BackEndShape, Arc<dyn BackEnd>)>,
    /// Set when the guest's panic went by on a console of this host.
    panicked: Arc<AtomicBool>,
    fence: Arc<Fence>,
}

impl BackEnds {
    /// Opens what the description of a VM with so many vCPUs places on this slice. With `lend`, only what is in there.
    pub(crate) fn open(
        devices: &[DeviceSpec],
        (local, vcpus): (SliceId, u32),
        lend: Option<&Lent>,
        on_full: OnFull,
    ) -> Result<Self, OpenError> {
        let mut all = Self::default();
        let here = (0u16..).zip(devices).filter(|(_, device)| device.slice == local.0);
        for (number, device) in here {
            let names = device.kind.names();
            let lend = lend.filter(|_| !names.is_empty());
            let opening = Opening {
                number,
                vcpus,
                fence: &all.fence,
                on_full,
                panicked: &all.panicked,
                lent: lend.map(|lent| lent.find(&names)).transpose()?,
            };
            let open = device.kind.open(&opening)?;
            all.open.insert(number, open);
        }
        Ok(all)
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

    /// The VM is over: what is under way to people and programs gets there.
    pub(crate) fn finish(&self) {
        self.open.values().for_each(|(_, back_end)| back_end.finish());
    }

    /// What they are.
    pub(crate) fn shapes(&self) -> Vec<(u16, BackEndShape)> {
        self.open.iter().map(|(number, (shape, _))| (*number, shape.clone())).collect()
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
