//! An image that may be closed on this host and opened on another one.
//!
//! ```text
//!   open --close: flush, sample, close--> closed --reopen: it has not moved------> open
//!   closed --open: is it the same?--> opened aside --take_over--> open, for all slices
//!                                         \--let_go--> closed
//! ```

use super::super::lock;
use super::super::model::{LentThing, Opening};
use super::super::open_error::OpenError;
use super::super::parts::{ClosedPart, PartError, RealPart, Switch};
use super::super::remote::Remote;
use super::{DiskSpec, Model, WHAT};
use devices::back_end::image::{ImageDisk, ImageOptions};
use devices::back_end::sample::{Place, sample};
use devices::back_end::{Disk, DiskReply, DiskRequest, DiskShape};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// For a look at an image before the VM is there.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// The way to an image on this host.
#[derive(Debug)]
pub(super) struct DiskPart {
    options: ImageOptions,
    /// Whatever has the name later: this file is opened again.
    file: File,
    /// Opened, and not yet the disk of the VM.
    aside: Mutex<Option<ImageDisk>>,
}

impl DiskPart {
    /// Finds the file. Nothing is locked or written.
    pub(super) fn new(spec: &DiskSpec, opening: &Opening<'_>) -> Result<Self, OpenError> {
        let file = match opening.lent {
            Some(LentThing::File(file)) => file.try_clone(),
            // A FIFO or a device of another kind must not block or start anything.
            _ => File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&spec.path),
        };
        let file = file.map_err(|error| {
            OpenError::of(WHAT)(format!("open image {}: {error}", spec.path.display()))
        })?;
        let at = Some(format!("/proc/self/fd/{}", file.as_raw_fd()).into());
        let options = ImageOptions { at, ..spec.options(opening) };
        Ok(Self { options, file, aside: Mutex::default() })
    }

    /// Opens it for use. That alone may rewrite blocks near its start, to find out alignments, so a slice that has been given
    /// up must not.
    pub(super) fn open_image(&self) -> Result<ImageDisk, OpenError> {
        if !self.options.fence.pass() {
            return Err(OpenError::of(WHAT)("this slice may have been given up by the others"));
        }
        // Another host may have written it since it was looked at.
        let options = ImageOptions { fresh: true, ..self.options.clone() };
        ImageDisk::open(&options).map_err(OpenError::of(WHAT))
    }

    /// What it is. It is neither written nor locked.
    pub(super) fn look(&self) -> Result<DiskShape, OpenError> {
        let shape = self.look_at()?.shape();
        let read_only = self.options.read_only || !self.is_writable()?;
        Ok(DiskShape { read_only, discard: !read_only, ..shape })
    }

    fn look_at(&self) -> Result<ImageDisk, OpenError> {
        let options = ImageOptions { look: true, ..self.options.clone() };
        ImageDisk::open(&options).map_err(OpenError::of(WHAT))
    }

    /// Opening for writing changes nothing.
    fn is_writable(&self) -> Result<bool, OpenError> {
        let locked = |error: &std::io::Error| {
            use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
            matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
        };
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match File::options().write(true).open(path) {
            Ok(_) => Ok(true),
            Err(error) if locked(&error) => Ok(false),
            Err(error) => Err(OpenError::of(WHAT)(error)),
        }
    }
}

impl RealPart for DiskPart {
    fn sample(&self) -> Result<String, PartError> {
        let image = self.look_at()?;
        let sum = sample(&image, &Place::spread(&image.shape()), LOOK_LIMIT)?;
        Ok(sum.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn check(&self) -> Result<(), PartError> {
        self.look()?;
        Ok(())
    }

    fn close(&self, switch: &Switch, within: Duration) -> Result<ClosedPart, PartError> {
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

    fn open(&self, closed: &ClosedPart, within: Duration) -> Result<(), PartError> {
        let ClosedPart::Disk { shape, places, sample: expected } = closed else {
            return Err(PartError::Differs("it is no disk".into()));
        };
        let image = self.open_image()?;
        DiskSpec::carries_on(&image.shape(), shape).map_err(PartError::Differs)?;
        if sample(&image, places, within)? != *expected {
            let why = "it does not contain what was on the disk when it was closed there";
            return Err(PartError::Differs(why.into()));
        }
        *lock(&self.aside) = Some(image);
        Ok(())
    }

    fn let_go(&self) {
        drop(lock(&self.aside).take());
    }

    fn reopen(&self, switch: &Switch) -> Result<(), PartError> {
        let Switch::Disk(switch) = switch else { return Err(PartError::Turn) };
        let image = self.open_image()?;
        DiskSpec::carries_on(&image.shape(), &switch.shape()).map_err(PartError::Differs)?;
        switch.open(Arc::new(image));
        Ok(())
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
mod tests {
    use super::*;
    use devices::back_end::SwitchDisk;
    use devices::back_end::image::OnFull;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::id;

    const LIMIT: Duration = Duration::from_secs(30);

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tessera-part-{name}-{}", id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // A folder that stays behind is no reason to fail.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn part(path: &Path) -> DiskPart {
        let (fence, panicked) = (Arc::default(), Arc::default());
        let (number, vcpus, on_full) = (0, 1, OnFull::Report);
        let (fence, panicked) = (&fence, &panicked);
        let (moves, lent) = (true, None);
        let opening = Opening { number, vcpus, fence, on_full, panicked, moves, lent };
        let spec = DiskSpec { path: path.into(), format: Default::default(), read_only: false };
        DiskPart::new(&spec, &opening).unwrap()
    }

    fn ask(disk: &dyn Disk, request: DiskRequest) -> DiskReply {
        let (told, answer) = channel();
        disk.submit(request, Box::new(move |reply| told.send(reply).unwrap()));
        answer.recv_timeout(LIMIT).unwrap()
    }

    fn write(sector: u64, byte: u8) -> DiskRequest {
        DiskRequest::Write { sector, data: vec![byte; 512] }
    }

    /// An image under two names, and the disk of a VM that has it by the first.
    fn two(folder: &Folder) -> (DiskPart, DiskPart, Arc<SwitchDisk>) {
        let [here, there] = ["here", "there"].map(|name| folder.0.join(name));
        fs::write(&here, vec![1; 1 << 20]).unwrap();
        fs::hard_link(&here, &there).unwrap();
        let [here, there] = [here, there].map(|path| part(&path));
        let image = here.open_image().unwrap();
        let switch = Arc::new(SwitchDisk::new(image.shape(), Arc::new(image)));
        (here, there, switch)
    }

    #[test]
    fn image_is_open_at_one_place_and_has_what_was_written_at_the_other() {
        let folder = Folder::new("moves");
        let (here, there, disk) = two(&folder);
        let switch = Switch::Disk(Arc::clone(&disk));
        assert_eq!(here.sample().unwrap(), there.sample().unwrap());
        there.check().unwrap();
        assert_eq!(ask(&*disk, write(777, 9)), DiskReply::Done(Vec::new()));
        let closed = here.close(&switch, LIMIT).unwrap();
        there.open(&closed, LIMIT).unwrap();
        // The lock says so too.
        assert!(matches!(here.reopen(&switch), Err(PartError::Open(_))));
        let image = lock(&there.aside).take().unwrap();
        let read = DiskRequest::Read { sector: 777, bytes: 512 };
        assert_eq!(ask(&image, read), DiskReply::Done(vec![9; 512]));
    }

    #[test]
    fn image_that_has_not_moved_is_open_again_and_no_request_is_lost() {
        let folder = Folder::new("stays");
        let (here, there, disk) = two(&folder);
        let switch = Switch::Disk(Arc::clone(&disk));
        let ClosedPart::Disk { shape, places, .. } = here.close(&switch, LIMIT).unwrap() else {
            panic!("a disk")
        };
        let other = ClosedPart::Disk { shape, places, sample: [0; 32] };
        assert!(matches!(there.open(&other, LIMIT), Err(PartError::Differs(_))));
        // Other slices go on earlier than this one.
        let (told, answer) = channel();
        disk.submit(write(5, 3), Box::new(move |reply| told.send(reply).unwrap()));
        assert!(matches!(here.close(&switch, LIMIT), Err(PartError::Turn)));
        here.reopen(&switch).unwrap();
        assert_eq!(answer.recv_timeout(LIMIT), Ok(DiskReply::Done(Vec::new())));
        let read = DiskRequest::Read { sector: 5, bytes: 512 };
        assert_eq!(ask(&*disk, read), DiskReply::Done(vec![3; 512]));
    }

    #[test]
    fn slice_that_was_given_up_opens_nothing() {
        let folder = Folder::new("given-up");
        let (here, there, disk) = two(&folder);
        let switch = Switch::Disk(Arc::clone(&disk));
        let closed = here.close(&switch, LIMIT).unwrap();
        for part in [&here, &there] {
            part.options.fence.shut();
        }
        assert!(matches!(here.reopen(&switch), Err(PartError::Open(_))));
        assert!(matches!(there.open(&closed, LIMIT), Err(PartError::Open(_))));
        // Nobody holds its lock.
        part(&folder.0.join("here")).open_image().unwrap();
    }

    #[test]
    fn copy_has_the_same_sample_until_the_guest_writes() {
        let folder = Folder::new("copy");
        let (here, _, disk) = two(&folder);
        let copy = folder.0.join("copy");
        fs::copy(folder.0.join("here"), &copy).unwrap();
        let copy = part(&copy);
        assert_eq!(here.sample().unwrap(), copy.sample().unwrap());
        // Where nobody would look by chance.
        assert_eq!(ask(&*disk, write(1001, 9)), DiskReply::Done(Vec::new()));
        let closed = here.close(&Switch::Disk(disk), LIMIT).unwrap();
        assert!(matches!(copy.open(&closed, LIMIT), Err(PartError::Differs(_))));
    }
}
