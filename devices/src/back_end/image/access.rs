//! Formats over storage, and what a request means there.

use super::failures::{Failures, What};
use super::fenced::Fenced;
use super::guard::Guard;
use super::own::{IMAGES_MAX, may_name};
use super::{ImageFormat, ImageOptions};
use crate::back_end::{DiskReply, DiskRequest, SECTOR_BYTES};
use imago::format::Format;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{FormatAccess, FormatDriverBuilder, Storage, StorageOpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Mutex, RwLock};
use tokio::time::sleep;

/// Between two tries of a request for which there is no room.
const FULL_AGAIN: Duration = Duration::from_millis(200);

/// An open image.
pub(super) struct Access<S: Storage + 'static> {
    /// Discarding moves data that other requests may be using, so it is alone.
    format: RwLock<FormatAccess<Fenced<S>>>,
    /// Syncs that were begun, each while it holds `lost`.
    syncs: AtomicU64,
    /// Why data that was written may not be there any more. Held while the file is synced.
    lost: Mutex<Option<String>>,
}

/// Why a flush fails: the kernel tells of data that it could not write back once, and takes it for written from then on
/// (fsync(2)). A sync after that proves nothing about it.
#[derive(Debug, Error)]
enum NotDurable {
    #[error("{0}; what was written may be lost, so no flush of this disk succeeds from now on")]
    Now(io::Error),
    #[error("an earlier flush failed ({0}), and what was written before it may be lost")]
    Before(String),
}

impl<S: Storage + 'static> Access<S> {
    pub(super) fn new(format: FormatAccess<Fenced<S>>) -> Self {
        Self { format: RwLock::new(format), syncs: AtomicU64::new(0), lost: Mutex::default() }
    }

    /// Writes back tables, then makes the file durable.
    pub(super) async fn flush(&self) -> io::Result<()> {
        let format = self.format.read().await;
        // What fails here stays to be written, and may be tried again.
        format.flush().await?;
        let begun = self.syncs.load(Ordering::Acquire);
        let mut lost = self.lost.lock().await;
        if let Some(cause) = &*lost {
            return Err(io::Error::other(NotDurable::Before(cause.clone())));
        }
        // Another flush has begun a sync since, and ended it. One at a time: of two, only one hears of a failure.
        if self.syncs.load(Ordering::Acquire) > begun {
            return Ok(());
        }
        self.syncs.fetch_add(1, Ordering::AcqRel);
        format.sync().await.map_err(|error| {
            *lost = Some(error.to_string());
            io::Error::other(NotDurable::Now(error))
        })
    }
}

/// Opens a file that an image names.
type OpenOther<S> = Arc<dyn Fn(StorageOpenOptions) -> io::Result<S>>;

/// What may be opened because an image says so: its own frozen states, or all by one function.
pub(super) struct Gate<S> {
    open: OpenOther<S>,
    image: PathBuf,
    all: bool,
    /// Images above this one.
    above: usize,
    guard: Arc<Guard>,
}

impl<S: Storage + 'static> Gate<S> {
    pub(super) fn new(
        options: &ImageOptions,
        guard: &Arc<Guard>,
        open: impl Fn(StorageOpenOptions) -> io::Result<S> + 'static,
    ) -> Self {
        let (image, all) = (options.path.clone(), options.other_files);
        Self { open: Arc::new(open), image, all, above: 0, guard: Arc::clone(guard) }
    }

    /// For what an image names that is opened through this one.
    fn deeper(&self) -> io::Result<Self> {
        let above = self.above + 1;
        if above >= IMAGES_MAX {
            let why = format!("there are more than {IMAGES_MAX} images, each over the next one");
            return Err(io::Error::other(why));
        }
        let (open, image) = (Arc::clone(&self.open), self.image.clone());
        Ok(Self { open, image, all: self.all, above, guard: Arc::clone(&self.guard) })
    }
}

impl<S: Storage + 'static> ImplicitOpenGate<Fenced<S>> for Gate<S> {
    async fn open_format<F: FormatDriverBuilder<Fenced<S>>>(
        &mut self,
        builder: F,
    ) -> io::Result<FormatAccess<Fenced<S>>> {
        if !self.all && F::FORMAT != Format::Qcow2 {
            return Err(io::Error::other("a frozen state of it is of another format"));
        }
        let deeper = self.deeper()?;
        Ok(FormatAccess::new(Box::pin(builder.open(deeper)).await?))
    }

    async fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<Fenced<S>> {
        let name = options.get_filename().unwrap_or_else(|| Path::new(""));
        // A file with its data would be written.
        let own = !options.get_writable() && may_name(&self.image, name);
        if !self.all && !own {
            let why = format!("it names another file, {}, which was not permitted", name.display());
            return Err(io::Error::other(why));
        }
        Ok(Fenced::new((self.open)(options)?, Arc::clone(&self.guard)))
    }
}

/// Opens the format over a storage.
pub(super) async fn open<S: Storage + 'static>(
    storage: S,
    format: ImageFormat,
    writable: bool,
    gate: Gate<S>,
) -> io::Result<FormatAccess<Fenced<S>>> {
    let storage = Fenced::new(storage, Arc::clone(&gate.guard));
    Ok(match format {
        ImageFormat::Raw => {
            FormatAccess::new(Raw::builder(storage).write(writable).open(gate).await?)
        }
        ImageFormat::Qcow2 => {
            let builder = Qcow2::<Fenced<S>>::builder(storage).write(writable);
            FormatAccess::new(builder.open(gate).await?)
        }
    })
}

/// Carries out a request that the disk's shape admits.
pub(super) async fn perform<S: Storage + 'static>(
    access: &Access<S>,
    failures: &Failures,
    request: DiskRequest,
) -> DiskReply {
    let what = What::of(&request);
    loop {
        match try_perform(access, &request).await {
            Ok(data) => return DiskReply::Done(data),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return DiskReply::Unsupported;
            }
            // Once the fence is over it fails for another reason, and a sync that found no room is of another kind.
            Err(error) if failures.waits(&error) => {
                failures.tell_waiting(what, &error);
                sleep(FULL_AGAIN).await;
            }
            Err(error) => {
                failures.tell(what, &error);
                return DiskReply::Failed;
            }
        }
    }
}

async fn try_perform<S: Storage + 'static>(
    access: &Access<S>,
    request: &DiskRequest,
) -> io::Result<Vec<u8>> {
    match *request {
        DiskRequest::Read { sector, bytes } => {
            let mut data = vec![0; bytes as usize];
            access.format.read().await.read(&mut data[..], sector * SECTOR_BYTES).await?;
            return Ok(data);
        }
        DiskRequest::Write { sector, ref data } => {
            access.format.read().await.write(&data[..], sector * SECTOR_BYTES).await?;
        }
        DiskRequest::Flush => access.flush().await?,
        DiskRequest::Discard { sector, sectors } => {
            let (offset, length) = (sector * SECTOR_BYTES, sectors * SECTOR_BYTES);
            access.format.write().await.discard_to_any(offset, length).await?;
        }
        DiskRequest::WriteZeroes { sector, sectors, unmap } => {
            let (offset, length) = (sector * SECTOR_BYTES, sectors * SECTOR_BYTES);
            if !unmap || !zero_by_discard(access, offset, length).await? {
                access.format.read().await.write_zeroes(offset, length).await?;
            }
        }
    }
    Ok(Vec::new())
}

/// Zeros that give room back. False when this image cannot do that.
async fn zero_by_discard<S: Storage + 'static>(
    access: &Access<S>,
    offset: u64,
    length: u64,
) -> io::Result<bool> {
    match access.format.write().await.discard_to_zero(offset, length).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error),
    }
}
