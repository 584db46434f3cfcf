//! Disks: an image file or block device of one host, seen by front ends on all slices.

mod part;
mod pending;
mod restored;
mod tidying;

use super::model::{
    BackEnd, FrontEnd, Lending, LentThing, Model, Moves, Opening, Places, QUEUES_MAX, Starting,
    Worker, unknown,
};
use super::open_error::OpenError;
use super::parts::{RealPart, Switch};
use super::remote::Remote;
use devices::back_end::image::snapshot;
use devices::back_end::image::{ImageDisk, ImageFormat, ImageOptions};
use devices::back_end::{Disk, DiskShape, SwitchDisk};
use devices::delegate::{Exchange, ServeError};
use devices::virtio::DeviceShape;
use devices::virtio::blk::{self, DiskQueue};
use part::DiskPart;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{DeviceId, SliceId};

const WHAT: &str = "a disk";

/// How the bytes of an image are laid out. Always said, never guessed: a guest could write what makes its
/// raw disk look like another format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// The file is the disk.
    #[default]
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
}

/// An image file or block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// On the host of its slice.
    pub path: PathBuf,
    /// How its bytes are laid out.
    #[serde(default)]
    pub format: DiskFormat,
    /// Writes are refused.
    pub read_only: bool,
}

impl Model for DiskSpec {
    type Shape = DiskShape;

    const OPTION: &'static str = "disk";
    const MOVES: Moves = Moves::ByName;
    const LENDING: Option<Lending> =
        Some(Lending { kind: "disk", forms: &["disk:ro:PATH", "disk:rw:PATH"], check, open: lend });

    /// `PATH[,readonly][,format=raw|qcow2]`
    fn parse(parts: &[&str]) -> Result<Self, String> {
        let path = parts.first().filter(|path| !path.is_empty()).ok_or("the path is missing")?;
        let mut disk = Self { path: path.into(), format: DiskFormat::default(), read_only: false };
        for part in &parts[1..] {
            match *part {
                "readonly" => disk.read_only = true,
                "format=raw" => disk.format = DiskFormat::Raw,
                "format=qcow2" => disk.format = DiskFormat::Qcow2,
                _ => return Err(unknown(part, "readonly, format=, rings=, slice=, standby=")),
            }
        }
        Ok(disk)
    }

    /// Who may write may read.
    fn names(&self) -> Vec<String> {
        let name = |mode| format!("disk:{mode}:{}", self.path.display());
        if self.read_only { vec![name("ro"), name("rw")] } else { vec![name("rw")] }
    }

    fn named(&self, name: &str) -> Option<Self> {
        Some(Self { path: name.into(), ..self.clone() })
    }

    fn open(&self, opening: &Opening<'_>) -> Result<(DiskShape, Arc<dyn BackEnd>), OpenError> {
        let open = self.open_part(opening)?;
        Ok((open.switch.shape(), Arc::new(open)))
    }

    fn stand_by(&self, opening: &Opening<'_>) -> Result<(DiskShape, Arc<dyn RealPart>), OpenError> {
        let part = match self.anchor(opening)? {
            Some(state) => DiskPart::of_state(self, opening, state)?,
            None => DiskPart::new(self, opening)?,
        };
        Ok((part.look()?, Arc::new(part)))
    }

    fn carries_on(shape: &DiskShape, of: &DiskShape) -> Result<(), String> {
        let differs = |what: &str, here: u64, there: u64| {
            Err(format!("it has {what} of {here} bytes, and the disk of the guest has {there}"))
        };
        if shape.sectors != of.sectors {
            return differs("a size", shape.bytes(), of.bytes());
        }
        if shape.block_bytes > of.block_bytes {
            return differs("blocks", shape.block_bytes.into(), of.block_bytes.into());
        }
        if shape.read_only && !of.read_only {
            return Err("it cannot be written here".into());
        }
        Ok(())
    }

    fn fits(&self, shape: &DiskShape) -> bool {
        let block = shape.block_bytes;
        (512..=4096).contains(&block)
            && block.is_power_of_two()
            && shape.sectors > 0
            && shape.sectors.checked_mul(512).is_some()
            && (shape.read_only || !self.read_only)
    }

    /// One for each vCPU.
    fn homes(_: &DiskShape, places: &Places) -> Vec<SliceId> {
        places.vcpus.iter().take(QUEUES_MAX).copied().collect()
    }

    fn seen(shape: &DiskShape, queues: u16) -> DeviceShape {
        blk::shape(shape, queues)
    }

    fn remote(shape: &DiskShape, at: &Remote<'_>) -> Arc<dyn FrontEnd> {
        let disk = at.exchange.remote_disk(at.device, at.owner, shape.clone(), at.queues);
        Arc::new(DiskFront(Arc::new(SwitchDisk::new(shape.clone(), disk))))
    }
}

impl DiskSpec {
    /// Opens the image. Of a VM that is restored it is only held: it is opened when the guest is about to go on.
    fn open_part(&self, opening: &Opening<'_>) -> Result<OpenDisk, OpenError> {
        if opening.writer.is_some() || opening.restored.is_some() {
            return self.hold(opening);
        }
        let part = DiskPart::new(self, opening)?;
        let image = if opening.moves || opening.lent.is_some() {
            part.open_image(&part.held())?
        } else {
            ImageDisk::open(&self.options(opening)).map_err(OpenError::of(WHAT))?
        };
        let switch = Arc::new(SwitchDisk::new(image.shape(), Arc::new(image)));
        Ok(OpenDisk { switch, part: Arc::new(part), moves: opening.moves })
    }

    fn options(&self, opening: &Opening<'_>) -> ImageOptions {
        let format = match self.format {
            DiskFormat::Raw => ImageFormat::Raw,
            DiskFormat::Qcow2 => ImageFormat::Qcow2,
        };
        // The very file that is lent, whatever has the name now.
        let at = opening.lent.filter(|_| !opening.cloned).and_then(|lent| match lent {
            LentThing::Image { file, .. } => {
                Some(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
            }
            LentThing::File(_) | LentThing::Interface(_) | LentThing::Later => None,
        });
        let read_only = self.read_only;
        let mut options = ImageOptions { read_only, at, ..ImageOptions::new(&self.path, format) };
        (options.fence, options.on_full) = (Arc::clone(opening.fence), opening.on_full);
        options.record = opening.writer;
        options
    }
}

/// What is lent is said with its mode.
fn check(name: &str) -> Result<(), String> {
    match name.split_once(':') {
        Some(("ro" | "rw", "")) => Err("the name is missing".into()),
        Some(("ro" | "rw", _)) => Ok(()),
        _ => Err("a disk is lent as disk:ro:PATH or disk:rw:PATH".into()),
    }
}

/// Opens an image. A FIFO or a device of another kind must not block or start anything.
fn lend(name: &str) -> Result<LentThing, Box<dyn Error + Send + Sync>> {
    let (mode, path) = name.split_once(':').unwrap_or(("ro", name));
    let mut options = File::options();
    options.read(true).write(mode == "rw").custom_flags(libc::O_NONBLOCK);
    let file = options.open(Path::new(path))?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        // Of what is no qcow2 image there is nothing else.
        let root = snapshot::root(Path::new(path), &file).or_else(|_| file.try_clone())?;
        Ok(LentThing::Image { file, root })
    } else {
        Err(io::Error::other("it is neither a file nor a block device").into())
    }
}

#[derive(Debug)]
struct OpenDisk {
    switch: Arc<SwitchDisk>,
    part: Arc<DiskPart>,
    moves: bool,
}

impl BackEnd for OpenDisk {
    fn go_on(&self) -> Result<(), OpenError> {
        self.part.put_back(&self.switch)
    }

    fn front_end(
        &self,
        exchange: &Exchange,
        device: DeviceId,
        queues: u16,
    ) -> Result<Arc<dyn FrontEnd>, ServeError> {
        exchange.serve_disk(device, Arc::clone(&self.switch) as _, queues)?;
        Ok(Arc::new(DiskFront(Arc::clone(&self.switch))))
    }

    fn part(&self) -> Option<Arc<dyn RealPart>> {
        self.moves.then(|| Arc::clone(&self.part) as _)
    }

    fn kept(&self) -> Option<Arc<dyn RealPart>> {
        Some(Arc::clone(&self.part) as _)
    }
}

/// A disk here or elsewhere.
#[derive(Debug)]
pub(super) struct DiskFront(pub(super) Arc<SwitchDisk>);

impl FrontEnd for DiskFront {
    fn switch(&self) -> Option<Switch> {
        Some(Switch::Disk(Arc::clone(&self.0)))
    }

    /// Nothing from before the reset waits any more.
    fn start(&self, _: u64) {
        self.0.may_wait(true);
    }

    fn worker(&self, at: &Starting<'_>) -> Worker {
        let (features, disk) = (at.activation.features, Arc::clone(&self.0) as Arc<dyn Disk>);
        let queue = DiskQueue::new(at.context, features, at.setup, disk, at.bell.clone())?;
        Ok(Some(Box::new(queue)))
    }

    /// So the slice with the real disk has requests that wait for room fail, also those of queues on other slices,
    /// which wait for their answers meanwhile.
    fn stop(&self) {
        self.0.may_wait(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_gives_path_format_and_mode() {
        let disk = DiskSpec::parse(&["/a b.img", "readonly", "format=qcow2"]).unwrap();
        let format = DiskFormat::Qcow2;
        assert_eq!(disk, DiskSpec { path: "/a b.img".into(), format, read_only: true });
        for parts in [&[""][..], &["", "readonly"], &["a", "rw"], &["a", "format=vmdk"]] {
            assert!(DiskSpec::parse(parts).is_err(), "{parts:?}");
        }
    }

    #[test]
    fn disk_of_another_size_or_kind_takes_no_place() {
        let (sectors, block_bytes, id) = (8, 4096, [0; 20]);
        let of = DiskShape { sectors, block_bytes, read_only: false, discard: true, id };
        let carries_on = |shape: DiskShape| DiskSpec::carries_on(&shape, &of);
        carries_on(DiskShape { block_bytes: 512, id: [7; 20], ..of.clone() }).unwrap();
        for shape in [
            DiskShape { sectors: 16, ..of.clone() },
            DiskShape { block_bytes: 8192, ..of.clone() },
            DiskShape { read_only: true, ..of.clone() },
        ] {
            carries_on(shape).unwrap_err();
        }
    }

    #[test]
    fn shape_that_was_not_asked_for_is_refused() {
        let (sectors, block_bytes, id) = (8, 512, [0; 20]);
        let shape = DiskShape { sectors, block_bytes, read_only: false, discard: true, id };
        let spec = |parts| DiskSpec::parse(parts).unwrap();
        assert!(spec(&["/d"]).fits(&shape));
        assert!(
            !spec(&["/d", "readonly"]).fits(&shape),
            "one that may be written is not read-only"
        );
        assert!(!spec(&["/d"]).fits(&DiskShape { block_bytes: 513, ..shape.clone() }));
        assert!(!spec(&["/d"]).fits(&DiskShape { sectors: u64::MAX, ..shape }));
    }
}
