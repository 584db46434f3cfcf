//! An image that may be closed on this host and opened on another one.
//!
//! ```text
//!   open --close: flush, sample, close--> closed --reopen: it has not moved------> open
//!   closed --open: is it the same?--> opened aside --take_over--> open, for all slices
//!                                         \--let_go--> closed
//!   open --freeze: close, keep the state, reopen: an overlay over it--> open
//!   held (the VM is restored) --put_back: what it was at the checkpoint--> open
//! ```
//! With its first state the generation that writes it is recorded beside it, so that who restores the VM can fence this one.
//! A file that was found is opened again, whatever has its name later. But an image that was frozen is another file then: the
//! host that froze it has that file, and another host takes what has the name if it is an overlay over what it has found.

use super::super::lock;
use super::super::model::{LentThing, Opening};
use super::super::open_error::OpenError;
use super::super::parts::{ClosedPart, PartError, REOPEN_AGAIN, REOPEN_LIMIT, RealPart, Switch};
use super::super::remote::Remote;
use super::pending::Pending;
use super::tidying::{self, Tidying};
use super::{DiskSpec, Model, WHAT};
use crate::slice::one_line;
use devices::back_end::image::snapshot::{self, Contents, DiskState, Frozen, SnapshotError};
use devices::back_end::image::{
    ImageDisk, ImageError, ImageFormat, ImageOptions, RecordError, Writer,
};
use devices::back_end::sample::{Place, sample};
use devices::back_end::{Disk, DiskReply, DiskRequest, DiskShape, SwitchDisk};
use devices::{Fence, Standing};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// For a look at an image before the VM is there.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// A file that was found for an image.
#[derive(Clone, Debug)]
struct Found {
    file: Arc<File>,
    /// The lowest of its own states. What has the name later is opened only if it is this, or lies over it: states in between come and go.
    root: Arc<File>,
}

impl Found {
    fn of(options: &ImageOptions, file: File) -> io::Result<Self> {
        let root = match options.format {
            ImageFormat::Qcow2 => snapshot::root(&options.path, &file).ok(),
            ImageFormat::Raw => None,
        };
        let root = root.map_or_else(|| file.try_clone(), Ok)?;
        Ok(Self { file: Arc::new(file), root: Arc::new(root) })
    }

    /// What has the name of the image, if it is this or lies over it; or this file.
    fn follow(&self, options: &ImageOptions) -> Arc<File> {
        let followed = match options.format {
            ImageFormat::Qcow2 => snapshot::follow(&options.path, &self.root).ok().flatten(),
            ImageFormat::Raw => None,
        };
        followed.map_or_else(|| Arc::clone(&self.file), Arc::new)
    }
}

/// Who writes an image, if not whom it was opened for.
#[derive(Clone, Copy, Debug)]
struct Said {
    writer: Writer,
    /// A record beside the image has said so.
    recorded: bool,
}

/// The way to an image on this host.
#[derive(Debug)]
pub(super) struct DiskPart {
    options: ImageOptions,
    /// Who writes it, of a VM that had no checkpoint when it was opened: said by the first one, and kept once a state is. Of a VM that
    /// is restored: what all slices have agreed on.
    writer: Mutex<Option<Said>>,
    /// What was found first.
    found: Mutex<Found>,
    /// What was found is the state of a checkpoint: an image is still to be made of it.
    is_state: AtomicBool,
    /// What becomes of the image when the guest goes on.
    pending: Mutex<Option<Pending>>,
    /// The file that was opened last.
    held: Mutex<Arc<File>>,
    /// Opened, and not yet the disk of the VM.
    aside: Mutex<Option<ImageDisk>>,
    /// States below it that are not needed any more are merged.
    tidying: Tidying,
}

impl DiskPart {
    /// Finds the file. Nothing is locked or written.
    pub(super) fn new(spec: &DiskSpec, opening: &Opening<'_>) -> Result<Self, OpenError> {
        let options = spec.options(opening);
        let found = match opening.lent {
            Some(LentThing::Image { file, root }) => file.try_clone().and_then(|file| {
                Ok(Found { file: Arc::new(file), root: Arc::new(root.try_clone()?) })
            }),
            // A FIFO or a device of another kind must not block or start anything.
            _ => File::options()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&spec.path)
                .and_then(|file| Found::of(&options, file)),
        };
        let found = found.map_err(|error| {
            OpenError::of(WHAT)(format!("open image {}: {error}", spec.path.display()))
        })?;
        let held = found.follow(&options);
        Ok(Self::of(options, (found, held), false))
    }

    /// The same with the state of a checkpoint, of which an image is made later, perhaps by another slice.
    pub(super) fn of_state(
        spec: &DiskSpec,
        opening: &Opening<'_>,
        state: File,
    ) -> Result<Self, OpenError> {
        let options = spec.options(opening);
        let state = Found::of(&options, state).map_err(OpenError::of(WHAT))?;
        let held = Arc::clone(&state.file);
        Ok(Self::of(options, (state, held), true))
    }

    fn of(options: ImageOptions, (found, held): (Found, Arc<File>), is_state: bool) -> Self {
        let (found, held) = (Mutex::new(found), Mutex::new(held));
        let (writer, pending, aside) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (is_state, tidying) = (is_state.into(), Tidying::default());
        Self { options, writer, found, is_state, pending, held, aside, tidying }
    }

    /// With what becomes of it when the guest goes on.
    pub(super) fn before(self, pending: Pending) -> Self {
        Self { pending: Mutex::new(Some(pending)), ..self }
    }

    /// The guest goes on: the image is what it was at the checkpoint, and open. Does nothing if it is.
    pub(super) fn put_back(&self, switch: &SwitchDisk) -> Result<(), OpenError> {
        let Some(pending) = lock(&self.pending).take() else { return Ok(()) };
        let options = ImageOptions { record: self.record(), ..self.options.clone() };
        if let Some(file) = pending.put_back(&options)?.map(Arc::new) {
            // It lies over the state that was found.
            lock(&self.found).file = Arc::clone(&file);
            *lock(&self.held) = file;
        }
        self.is_state.store(false, Ordering::Release);
        let image = self.open_image(&self.held())?;
        let carries_on = DiskSpec::carries_on(&image.shape(), &switch.shape());
        carries_on.map_err(OpenError::of(WHAT))?;
        switch.open(Arc::new(image));
        Ok(())
    }

    /// The file that was opened last.
    pub(super) fn held(&self) -> Arc<File> {
        Arc::clone(&lock(&self.held))
    }

    /// What of the image is there before the VM is.
    fn there(&self) -> Arc<File> {
        let found = lock(&self.found).clone();
        if self.is_state.load(Ordering::Acquire) { found.file } else { found.follow(&self.options) }
    }

    fn options_at(&self, file: &File) -> ImageOptions {
        let at = Some(format!("/proc/self/fd/{}", file.as_raw_fd()).into());
        ImageOptions { at, record: self.record(), ..self.options.clone() }
    }

    /// Who writes it.
    fn record(&self) -> Option<Writer> {
        lock(&self.writer).map(|said| said.writer).or(self.options.record)
    }

    /// Opens it for use. That alone may rewrite blocks near its start, to find out alignments, so a slice that has been given
    /// up must not.
    pub(super) fn open_image(&self, file: &File) -> Result<ImageDisk, OpenError> {
        if !self.options.fence.pass() {
            return Err(OpenError::of(WHAT)("this slice may have been given up by the others"));
        }
        // Another host may have written it since it was looked at.
        let options = ImageOptions { fresh: true, ..self.options_at(file) };
        ImageDisk::open(&options).map_err(OpenError::of(WHAT))
    }

    /// What it is. It is neither written nor locked.
    pub(super) fn look(&self) -> Result<DiskShape, OpenError> {
        let file = self.there();
        let shape = self.look_at(&file)?.shape();
        // States are not written; what is made of one is.
        let written = self.is_state.load(Ordering::Acquire) || is_writable(&file)?;
        let read_only = self.options.read_only || !written;
        Ok(DiskShape { read_only, discard: !read_only, ..shape })
    }

    fn look_at(&self, file: &File) -> Result<ImageDisk, OpenError> {
        let options = ImageOptions { look: true, ..self.options_at(file) };
        ImageDisk::open(&options).map_err(OpenError::of(WHAT))
    }

    /// Keeps the state of the image, which is closed, and holds what has its name then.
    fn keep(&self, name: &str, contents: &Contents) -> Result<DiskState, SnapshotError> {
        let (deadline, held) = (Instant::now() + REOPEN_LIMIT, self.held());
        let frozen = loop {
            match snapshot::freeze(&self.options_at(&held), name, contents) {
                // A process that this one has just started has its locks until it runs another program.
                Err(SnapshotError::Image(
                    ImageError::Locked { .. }
                    | ImageError::Record { source: RecordError::InUse { .. }, .. },
                )) if Instant::now() < deadline => sleep(REOPEN_AGAIN),
                frozen => break frozen,
            }
        };
        match frozen {
            Ok(Frozen { state, file }) => {
                if let Some(file) = file {
                    *lock(&self.held) = Arc::new(file);
                }
                lock(&self.writer).iter_mut().for_each(|said| said.recorded = true);
                Ok(state)
            }
            Err(error) => {
                // Perhaps because no record can be made. It is opened again without one, as it was.
                lock(&self.writer).take_if(|said| !said.recorded);
                // Its names may have changed before it failed.
                let found = Found { file: held, ..lock(&self.found).clone() };
                *lock(&self.held) = found.follow(&self.options);
                Err(error)
            }
        }
    }

    /// Closes it, and goes on below it.
    fn close_here(&self, switch: &Switch, within: Duration) -> Result<ClosedPart, PartError> {
        let Switch::Disk(switch) = switch else { return Err(PartError::Turn) };
        let disk = switch.behind().ok_or(PartError::Turn)?;
        let deadline = Instant::now() + within;
        flush(&*disk, within)?;
        let mut places = Place::spread(&switch.shape());
        places.extend(switch.written());
        let left = deadline.saturating_duration_since(Instant::now());
        let sample = sample(&*disk, &places, left)?;
        drop(switch.close());
        // The last one that has it closes it.
        drop(disk);
        Ok(ClosedPart::Disk { shape: switch.shape(), places, sample })
    }
}

impl RealPart for DiskPart {
    fn sample(&self) -> Result<String, PartError> {
        let image = self.look_at(&self.there())?;
        let sum = sample(&image, &Place::spread(&image.shape()), LOOK_LIMIT)?;
        Ok(sum.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn check(&self) -> Result<(), PartError> {
        // The VM goes on: another slice has made an image of it.
        self.is_state.store(false, Ordering::Release);
        self.look()?;
        Ok(())
    }

    fn close(&self, switch: &Switch, within: Duration) -> Result<ClosedPart, PartError> {
        // The next host is to find what was written here, and to be alone with it.
        self.tidying.stop();
        self.close_here(switch, within)
    }

    fn open(&self, closed: &ClosedPart, within: Duration) -> Result<(), PartError> {
        let ClosedPart::Disk { shape, places, sample: expected } = closed else {
            return Err(PartError::Differs("it is no disk".into()));
        };
        let file = lock(&self.found).clone().follow(&self.options);
        let image = self.open_image(&file)?;
        DiskSpec::carries_on(&image.shape(), shape).map_err(PartError::Differs)?;
        if sample(&image, places, within)? != *expected {
            let why = "it does not contain what was on the disk when it was closed there";
            return Err(PartError::Differs(why.into()));
        }
        *lock(&self.held) = file;
        *lock(&self.aside) = Some(image);
        Ok(())
    }

    fn let_go(&self) {
        drop(lock(&self.aside).take());
    }

    fn reopen(&self, switch: &Switch) -> Result<(), PartError> {
        let Switch::Disk(switch) = switch else { return Err(PartError::Turn) };
        let image = self.open_image(&self.held())?;
        DiskSpec::carries_on(&image.shape(), &switch.shape()).map_err(PartError::Differs)?;
        switch.open(Arc::new(image));
        Ok(())
    }

    fn freeze(
        &self,
        switch: &Switch,
        (name, leaves): (&str, bool),
        within: Duration,
    ) -> Result<Option<DiskState>, PartError> {
        let ClosedPart::Disk { shape, places, sample } = self.close_here(switch, within)? else {
            return Err(PartError::Turn);
        };
        let contents = Contents { bytes: shape.bytes(), places, sample };
        let kept = match self.keep(name, &contents) {
            Err(kind) if leaves && kind.is_of_its_kind() => {
                snapshot::leave(&self.options_at(&self.held()), &contents)
            }
            kept => kept,
        };
        let deadline = Instant::now() + REOPEN_LIMIT;
        while let Err(error) = self.reopen(switch) {
            let over = self.options.fence.look(Fence::now()) == Standing::Over;
            if over || Instant::now() >= deadline {
                return Err(PartError::Shut(one_line(&error)));
            }
            sleep(REOPEN_AGAIN);
        }
        Ok(Some(kept?))
    }

    fn tidy(&self, released: &[String]) {
        // By its path: the file that is open is not the only one.
        let options = ImageOptions { at: None, record: self.record(), ..self.options.clone() };
        self.tidying.start(options, released);
    }

    fn release(&self, released: &[String]) {
        tidying::mark(&self.options, released);
    }

    fn is_written_by(&self, writer: Writer) {
        let mut said = lock(&self.writer);
        if self.options.record.is_none() && said.is_none() {
            *said = Some(Said { writer, recorded: false });
        }
    }

    fn goes_on_as(&self, writer: Writer) {
        *lock(&self.writer) = Some(Said { writer, recorded: true });
    }

    fn take_over(&self, switch: &Switch, at: &Remote<'_>) -> Result<(), PartError> {
        let (Switch::Disk(switch), Some(image)) = (switch, lock(&self.aside).take()) else {
            return Err(PartError::Turn);
        };
        drop(switch.close());
        switch.open(Arc::new(image));
        at.exchange.serve_disk(at.device, Arc::clone(switch) as _, at.queues)?;
        Ok(())
    }
}

/// Opening for writing changes nothing.
fn is_writable(file: &File) -> Result<bool, OpenError> {
    let locked = |error: &io::Error| {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
    };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match File::options().write(true).open(path) {
        Ok(_) => Ok(true),
        Err(error) if locked(&error) => Ok(false),
        Err(error) => Err(OpenError::of(WHAT)(error)),
    }
}

/// Makes durable what was written.
fn flush(disk: &dyn Disk, within: Duration) -> Result<(), PartError> {
    let (told, answer) = channel();
    // Who has waited too long has gone.
    disk.submit(DiskRequest::Flush, Box::new(move |reply| drop(told.send(reply))));
    match answer.recv_timeout(within) {
        Ok(DiskReply::Done(_)) => Ok(()),
        Ok(_) => Err(PartError::NotDurable),
        Err(_) => Err(PartError::Busy(within)),
    }
}

#[cfg(test)]
mod tests;
