//! The real devices of this host: opened before the VM exists, so that what cannot be had is refused while
//! nothing has been promised.

use super::BackEndShape;
use super::lend::Lent;
use super::queues::Way;
use super::terminal::{Terminal, TerminalError};
use crate::slice::spec::{DeviceKind, DiskFormat, Shape};
use devices::Fence;
use devices::back_end::image::{ImageDisk, ImageError, ImageFormat, ImageOptions, OnFull};
use devices::back_end::tap::{TapError, TapNic, TapOptions};
use devices::back_end::{Disk, Nic};
use devices::delegate::{Exchange, ServeError};
use devices::virtio::net::NetDevice;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use thiserror::Error;
use wire::{DeviceId, SliceId};

/// Why a device of this host cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A disk.
    #[error("open a disk")]
    Disk(#[from] ImageError),
    /// A network interface.
    #[error("open a network interface")]
    Tap(#[from] TapError),
    /// The other end of a console.
    #[error("open a console")]
    Console(#[from] TerminalError),
    /// No thread for a console.
    #[error("start the thread of a console")]
    Start(#[source] io::Error),
    /// The operator of this host has not lent it, or not so.
    #[error("{what} is not lent to VMs here; start the companion with --lend {what}")]
    NotLent {
        /// Kind, mode and name.
        what: String,
    },
    /// It cannot be lent.
    #[error("lend {what}")]
    Lend {
        /// Kind, mode and name.
        what: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

/// What is open.
#[derive(Clone, Debug)]
enum Open {
    Disk(Arc<dyn Disk>),
    Nic(Arc<dyn Nic>),
    Rng,
    Console(Arc<Terminal>),
}

/// The devices of this host that the VM uses, by their numbers. Dropping it closes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackEnds {
    open: BTreeMap<u16, Open>,
    /// Set when the guest's panic went by on a console of this host.
    panicked: Arc<AtomicBool>,
    fence: Arc<Fence>,
}

impl BackEnds {
    /// Opens what the VM's description places on this slice. With `lend`, only what is in there.
    pub(crate) fn open(
        shape: &Shape,
        local: SliceId,
        lend: Option<&Lent>,
        on_full: OnFull,
    ) -> Result<Self, OpenError> {
        let here = (0u16..).zip(&shape.devices).filter(|(_, device)| device.slice == local.0);
        let (mut open, panicked) = (BTreeMap::new(), Arc::new(AtomicBool::new(false)));
        let fence = Arc::<Fence>::default();
        for (number, device) in here {
            let back_end = match &device.kind {
                DeviceKind::Disk { path, format, read_only } => {
                    let at = lend.map(|lent| lent.disk(path, *read_only)).transpose()?;
                    Open::Disk(disk(path, at, (*format, *read_only), (&fence, on_full))?)
                }
                DeviceKind::Nic { tap, mac } => {
                    lend.map_or(Ok(()), |lent| lent.tap(tap))?;
                    let mac = mac.unwrap_or_else(|| own_address(number));
                    Open::Nic(nic(tap, mac, shape.vcpus(), &fence)?)
                }
                DeviceKind::Rng => Open::Rng,
                DeviceKind::Console { end } => {
                    let file = lend.map(|lent| lent.console(end)).transpose()?.flatten();
                    Open::Console(Arc::new(Terminal::open(end, file, Arc::clone(&panicked))?))
                }
            };
            open.insert(number, back_end);
        }
        Ok(Self { open, panicked, fence })
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
        self.terminals().try_for_each(Terminal::start).map_err(OpenError::Start)
    }

    /// The VM is over: what is under way to people and programs gets there.
    pub(crate) fn finish(&self) {
        self.terminals().for_each(Terminal::finish);
    }

    fn terminals(&self) -> impl Iterator<Item = &Terminal> {
        self.open.values().filter_map(|open| match open {
            Open::Console(terminal) => Some(&**terminal),
            Open::Disk(_) | Open::Nic(_) | Open::Rng => None,
        })
    }

    /// What they are.
    pub(crate) fn shapes(&self) -> Vec<(u16, BackEndShape)> {
        let shape = |open: &Open| match open {
            Open::Disk(disk) => BackEndShape::Disk(disk.shape()),
            Open::Nic(nic) => BackEndShape::Nic(nic.shape()),
            Open::Rng => BackEndShape::Rng,
            Open::Console(_) => BackEndShape::Console,
        };
        self.open.iter().map(|(number, open)| (*number, shape(open))).collect()
    }

    /// The way from front ends of this slice to a device: to the one that is open here, which is
    /// served to the other slices as well, or to that of another slice.
    pub(super) fn way(
        &self,
        exchange: &Exchange,
        device: DeviceId,
        owner: SliceId,
        shape: &BackEndShape,
        queues: usize,
    ) -> Result<Way, ServeError> {
        let queues = u16::try_from(queues).unwrap_or(u16::MAX);
        Ok(match (self.open.get(&device.0), shape) {
            (Some(Open::Disk(disk)), _) => {
                exchange.serve_disk(device, Arc::clone(disk), queues)?;
                Way::Disk(Arc::clone(disk))
            }
            (Some(Open::Nic(nic)), _) => {
                let nic = exchange.serve_nic(device, Arc::clone(nic))?;
                Way::Nic { device: NetDevice::new(nic), pairs: queues / 2 }
            }
            (None, BackEndShape::Disk(shape)) => {
                Way::Disk(exchange.remote_disk(device, owner, shape.clone(), queues))
            }
            (None, BackEndShape::Nic(shape)) => {
                let nic = exchange.remote_nic(device, owner, shape.clone());
                Way::Nic { device: NetDevice::new(nic), pairs: queues / 2 }
            }
            (Some(Open::Rng), _) | (None, BackEndShape::Rng) => Way::Rng,
            (Some(Open::Console(terminal)), _) => Way::Console(Some(Arc::clone(terminal))),
            (None, BackEndShape::Console) => Way::Console(None),
        })
    }
}

/// `at`: where to open it, if not by its name.
fn disk(
    path: &Path,
    at: Option<PathBuf>,
    (format, read_only): (DiskFormat, bool),
    (fence, on_full): (&Arc<Fence>, OnFull),
) -> Result<Arc<dyn Disk>, OpenError> {
    let format = match format {
        DiskFormat::Raw => ImageFormat::Raw,
        DiskFormat::Qcow2 => ImageFormat::Qcow2,
    };
    let mut options = ImageOptions { read_only, at, ..ImageOptions::new(path, format) };
    (options.fence, options.on_full) = (Arc::clone(fence), on_full);
    let image = ImageDisk::open(&options)?;
    Ok(Arc::new(image))
}

fn nic(tap: &str, mac: [u8; 6], vcpus: u32, fence: &Arc<Fence>) -> Result<Arc<dyn Nic>, OpenError> {
    let pairs = u16::try_from(vcpus).unwrap_or(u16::MAX);
    let (name, fence) = (tap.to_owned(), Arc::clone(fence));
    let tap = TapNic::open(&TapOptions { name, mac, pairs, fence })?;
    Ok(Arc::new(tap))
}

/// A hardware address for a device without one: of one device, administered locally.
fn own_address(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0x52, 0x54, 0x00, 0x7e, high, low]
}
