//! Images against a model in memory, on both kinds of threads, and what is refused.

mod full;
mod order;
mod sync;

pub(super) use full::Small;

use super::{ImageDisk, ImageError, ImageFormat, ImageOptions, RecordError};
use crate::back_end::{Disk, DiskReply, DiskRequest, SECTOR_BYTES};
use crate::fence::Fence;
use imago::file::File as PlainFile;
use imago::qcow2::Qcow2;
use imago::{FormatCreateBuilder, Storage, StorageCreateOptions, StorageOpenOptions};
use proptest::collection::vec;
use proptest::prelude::*;
use std::env;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use tokio::runtime::Builder;

/// Whole blocks of 4 KiB, so that raw images are used directly too.
const SECTORS: u64 = 4096 + 8;

/// A folder of one test.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        Self::under(&env::temp_dir())
    }

    /// Where making something durable costs nothing, if there is such a place.
    pub(super) fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::under(memory) } else { Self::new() }
    }

    fn under(folder: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("tessera-image-{}-{count}", process::id()));
        fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// An empty image of this format.
    pub(super) fn image(&self, format: ImageFormat, bytes: u64) -> PathBuf {
        self.image_over(format, bytes, None)
    }

    pub(super) fn image_over(
        &self,
        format: ImageFormat,
        bytes: u64,
        below: Option<&str>,
    ) -> PathBuf {
        let path = self.0.join(format!("{format:?}.img"));
        if format == ImageFormat::Raw {
            File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
            return path;
        }
        let create = async {
            let open = StorageOpenOptions::new().filename(&path).write(true);
            let file =
                PlainFile::create_open(StorageCreateOptions::new().modify_open_opts(|_| open));
            let builder = Qcow2::<PlainFile>::create_builder(file.await?).size(bytes);
            let builder = builder.cluster_size(4096);
            match below {
                Some(name) => builder.backing(name.to_owned(), "raw".to_owned()).create().await,
                None => builder.create().await,
            }
        };
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(create).expect("a qcow2 image");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is only in the way of nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn submit(disk: &dyn Disk, request: DiskRequest) -> Receiver<DiskReply> {
    let (sender, receiver) = channel();
    disk.submit(request, Box::new(move |reply| drop(sender.send(reply))));
    receiver
}

pub(super) fn ask(disk: &dyn Disk, request: DiskRequest) -> DiskReply {
    submit(disk, request).recv().expect("every request is answered")
}

pub(super) fn done() -> DiskReply {
    DiskReply::Done(Vec::new())
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Read(u64, u64),
    Zero(u64, u64, bool),
    Discard(u64, u64),
    Flush,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    // Some ranges reach behind the end.
    let range = || {
        let length = prop_oneof![6 => 1..40_u64, 1 => 40..2100_u64];
        (0..SECTORS + 8, length)
    };
    prop_oneof![
        6 => (range(), any::<u8>()).prop_map(|((at, count), fill)| Step::Write(at, count, fill)),
        5 => range().prop_map(|(at, count)| Step::Read(at, count)),
        2 => (range(), any::<bool>()).prop_map(|((at, count), unmap)| Step::Zero(at, count, unmap)),
        1 => range().prop_map(|(at, count)| Step::Discard(at, count)),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ]
}

/// Contents as they must be; nothing where anything may be.
struct Model(Vec<Option<u8>>);

impl Model {
    fn range(&mut self, at: u64, count: u64) -> Option<&mut [Option<u8>]> {
        let start = usize::try_from(at * SECTOR_BYTES).ok()?;
        let end = usize::try_from((at + count) * SECTOR_BYTES).ok()?;
        self.0.get_mut(start..end)
    }

    fn check(&mut self, at: u64, count: u64, reply: &DiskReply) {
        match (self.range(at, count), reply) {
            (None, reply) => assert_eq!(*reply, DiskReply::Failed),
            (Some(range), DiskReply::Done(data)) => {
                assert_eq!(range.len(), data.len());
                let wrong = range
                    .iter()
                    .zip(data)
                    .position(|(want, is)| want.is_some_and(|want| want != *is));
                assert_eq!(wrong, None, "byte after sector {at}");
            }
            (Some(_), reply) => panic!("a read of {count} sectors at {at}: {reply:?}"),
        }
    }
}

pub(super) fn written(fill: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| fill.wrapping_add((at / 512 + at % 5).to_le_bytes()[0])).collect()
}

fn run(options: &ImageOptions, steps: &[Step]) {
    let mut disk = Some(ImageDisk::open(options).expect("an image"));
    let mut model = Model(vec![Some(0); usize::try_from(SECTORS * SECTOR_BYTES).expect("small")]);
    for step in steps {
        let now = disk.as_ref().expect("open between steps");
        match *step {
            Step::Write(sector, count, fill) => {
                let data = written(fill, count * SECTOR_BYTES);
                let reply = ask(now, DiskRequest::Write { sector, data: data.clone() });
                if let Some(range) = model.range(sector, count) {
                    assert_eq!(reply, done());
                    range.iter_mut().zip(data).for_each(|(to, from)| *to = Some(from));
                } else {
                    assert_eq!(reply, DiskReply::Failed);
                }
            }
            Step::Read(sector, count) => {
                let bytes = u32::try_from(count * SECTOR_BYTES).expect("small");
                let reply = ask(now, DiskRequest::Read { sector, bytes });
                model.check(sector, count, &reply);
            }
            Step::Zero(sector, sectors, unmap) => {
                let reply = ask(now, DiskRequest::WriteZeroes { sector, sectors, unmap });
                let range = model.range(sector, sectors);
                assert_eq!(reply, if range.is_some() { done() } else { DiskReply::Failed });
                range.into_iter().for_each(|range| range.fill(Some(0)));
            }
            Step::Discard(sector, sectors) => {
                let reply = ask(now, DiskRequest::Discard { sector, sectors });
                let range = model.range(sector, sectors);
                assert_eq!(reply, if range.is_some() { done() } else { DiskReply::Failed });
                range.into_iter().for_each(|range| range.fill(None));
            }
            Step::Flush => assert_eq!(ask(now, DiskRequest::Flush), done()),
            Step::Reopen => {
                drop(disk.take());
                disk = Some(open_again(options));
            }
        }
    }
    drop(disk);
    // What is in the file, seen by a reader.
    let reader = ImageOptions { read_only: true, ..options.clone() };
    let disk = open_again(&reader);
    let bytes = u32::try_from(SECTORS * SECTOR_BYTES).expect("small");
    let reply = ask(&disk, DiskRequest::Read { sector: 0, bytes });
    model.check(0, SECTORS, &reply);
}

/// Opens an image once more. Another test may be starting a program: between fork and exec the child has all files of
/// this process, and so its locks.
pub(super) fn open_again(options: &ImageOptions) -> ImageDisk {
    for _ in 0..1000 {
        match ImageDisk::open(options) {
            Err(
                ImageError::Locked { .. }
                | ImageError::Record { source: RecordError::InUse { .. }, .. },
            ) => thread::sleep(Duration::from_millis(5)),
            // What is below it, likewise.
            Err(ImageError::Format { source, .. }) if source.to_string().contains("is in use") => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.expect("an image that was closed"),
        }
    }
    panic!("the image is locked for ever");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn raw_image_is_what_was_written(
        steps in vec(step(), 1..30),
        ring in any::<bool>(),
        direct in any::<bool>(),
    ) {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Raw, SECTORS * SECTOR_BYTES);
        run(&ImageOptions { ring, direct, ..ImageOptions::new(path, ImageFormat::Raw) }, &steps);
    }

    #[test]
    fn qcow2_image_is_what_was_written(
        steps in vec(step(), 1..30),
        ring in any::<bool>(),
        direct in any::<bool>(),
    ) {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Qcow2, SECTORS * SECTOR_BYTES);
        run(&ImageOptions { ring, direct, ..ImageOptions::new(path, ImageFormat::Qcow2) }, &steps);
    }
}

/// Many requests at a time, on an image that is all there is.
fn many_at_a_time(format: ImageFormat, ring: bool) {
    let folder = Folder::new();
    let path = folder.image(format, 8 << 20);
    let disk = ImageDisk::open(&ImageOptions { ring, ..ImageOptions::new(path, format) });
    let disk = disk.expect("an image");
    let place = |index: u64| (index * 7 % 512 * 32, written(index.to_le_bytes()[0], 32 * 512));
    let writes: Vec<_> = (0..512)
        .map(|index| {
            let (sector, data) = place(index);
            submit(&disk, DiskRequest::Write { sector, data })
        })
        .collect();
    assert!(writes.into_iter().all(|reply| reply.recv() == Ok(done())));
    let reads: Vec<_> = (0..512)
        .map(|index| submit(&disk, DiskRequest::Read { sector: place(index).0, bytes: 32 * 512 }))
        .collect();
    for (index, reply) in (0..).zip(reads) {
        assert!(reply.recv() == Ok(DiskReply::Done(place(index).1)), "request {index}");
    }
}

#[test]
fn many_requests_at_a_time_are_all_answered() {
    for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
        many_at_a_time(format, true);
        many_at_a_time(format, false);
    }
}

#[test]
fn dropping_a_disk_answers_what_is_in_flight() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, 8 << 20);
    let disk = ImageDisk::open(&ImageOptions::new(path, ImageFormat::Qcow2)).expect("an image");
    let data = vec![7; 1 << 16];
    let replies: Vec<_> = (0..100)
        .map(|index| submit(&disk, DiskRequest::Write { sector: index * 128, data: data.clone() }))
        .collect();

    drop(disk);

    assert!(replies.into_iter().all(|reply| reply.try_recv() == Ok(done())));
}

#[test]
fn read_only_image_refuses_every_change() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Raw, 1 << 20);
    let options = ImageOptions::new(&path, ImageFormat::Raw);
    let asked = ImageOptions { read_only: true, ..options.clone() };
    fs::set_permissions(&path, Permissions::from_mode(0o444)).expect("an own file");

    for options in [options, asked] {
        let disk = open_again(&options);
        assert!(disk.shape().read_only);
        let write = DiskRequest::Write { sector: 0, data: vec![1; 512] };
        let zero = DiskRequest::WriteZeroes { sector: 0, sectors: 1, unmap: false };
        assert_eq!(ask(&disk, write), DiskReply::Failed);
        assert_eq!(ask(&disk, zero), DiskReply::Failed);
        let discard = DiskRequest::Discard { sector: 0, sectors: 1 };
        assert_eq!(ask(&disk, discard), DiskReply::Unsupported);
        assert_eq!(ask(&disk, DiskRequest::Flush), done());
        let read = DiskRequest::Read { sector: 0, bytes: 512 };
        assert_eq!(ask(&disk, read), DiskReply::Done(vec![0; 512]));
    }
    assert!(fs::read(&path).expect("the file").iter().all(|byte| *byte == 0));
}

#[test]
fn image_that_cannot_be_used_is_refused_with_its_reason() {
    let folder = Folder::new();
    let open = |path: PathBuf, format| ImageDisk::open(&ImageOptions::new(path, format));
    let raw = folder.image(ImageFormat::Raw, 1 << 20);

    let missing = open(folder.0.join("nothing"), ImageFormat::Raw);
    assert!(matches!(missing, Err(ImageError::Missing(_))), "{missing:?}");
    let kind = open(folder.0.clone(), ImageFormat::Raw);
    assert!(matches!(kind, Err(ImageError::Kind(_))), "{kind:?}");
    let format = open(raw.clone(), ImageFormat::Qcow2);
    assert!(matches!(format, Err(ImageError::Format { .. })), "{format:?}");
    for bytes in [0, 1000, 4096 + 100, 65_536 - 1] {
        let odd = folder.0.join("odd");
        File::create(&odd).and_then(|file| file.set_len(bytes)).expect("a file");
        let size = open(odd, ImageFormat::Raw);
        assert!(matches!(size, Err(ImageError::Size { bytes: said, .. }) if said == bytes));
        let after = fs::metadata(folder.0.join("odd")).expect("the file").len();
        assert_eq!(after, bytes, "looking at a file does not change it");
    }
    let small = folder.0.join("small");
    File::create(&small).and_then(|file| file.set_len(1536)).expect("a file");
    drop(open(small.clone(), ImageFormat::Raw).expect("three sectors"));
    assert_eq!(fs::metadata(small).expect("the file").len(), 1536);
    let first = open(raw.clone(), ImageFormat::Raw).expect("a good image");
    let second = open(raw.clone(), ImageFormat::Raw);
    assert!(matches!(second, Err(ImageError::Locked { writable: true, .. })), "{second:?}");
    drop(first);
    open_again(&ImageOptions::new(raw, ImageFormat::Raw));
}

#[test]
fn image_that_is_open_already_is_named_by_its_path() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Raw, 1 << 20);
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("the image");
    let at = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Nothing is at its path any more.
    let options =
        ImageOptions { at: Some(at.into()), ..ImageOptions::new(&path, ImageFormat::Raw) };
    fs::remove_file(&path).expect("the image");

    let _first = ImageDisk::open(&options).expect("the open file");
    let refused = ImageDisk::open(&options).map(drop).map_err(|error| error.to_string());

    let expected = format!("open image {}: it is in use", path.display());
    assert_eq!(refused, Err(expected));
}

#[test]
fn readers_share_an_image_and_keep_writers_out() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Raw, 1 << 20);
    let writer = ImageOptions::new(&path, ImageFormat::Raw);
    let reader = ImageOptions { read_only: true, ..writer.clone() };

    let _one = ImageDisk::open(&reader).expect("a reader");
    let _two = ImageDisk::open(&reader).expect("another reader");
    let refused = ImageDisk::open(&writer);

    assert!(matches!(refused, Err(ImageError::Locked { writable: true, .. })), "{refused:?}");
}

#[test]
fn backing_image_is_opened_only_when_permitted() {
    for ring in [true, false] {
        let folder = Folder::new();
        fs::write(folder.0.join("below"), vec![5; 1 << 20]).expect("a file");
        let path = folder.image_over(ImageFormat::Qcow2, 1 << 20, Some("below"));
        let denied = ImageOptions { ring, ..ImageOptions::new(&path, ImageFormat::Qcow2) };
        let refused = ImageDisk::open(&denied);
        assert!(matches!(refused, Err(ImageError::Format { .. })), "{refused:?}");

        let permitted = ImageOptions { other_files: true, ..denied };
        let disk = open_again(&permitted);
        let read = ask(&disk, DiskRequest::Read { sector: 9, bytes: 1024 });
        assert_eq!(read, DiskReply::Done(vec![5; 1024]));
        let write = DiskRequest::Write { sector: 9, data: vec![6; 512] };
        assert_eq!(ask(&disk, write), done());
        let read = ask(&disk, DiskRequest::Read { sector: 9, bytes: 1024 });
        assert_eq!(read, DiskReply::Done([[6; 512], [5; 512]].concat()));
        drop(disk);
        let below = fs::read(folder.0.join("below")).expect("the file below");
        assert!(below.iter().all(|byte| *byte == 5), "nothing is written there");
    }
}

#[test]
fn ring_and_direct_access_are_used_where_the_host_has_them() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Raw, 1 << 20);
    let options = ImageOptions::new(&path, ImageFormat::Raw);
    let plain = ImageOptions { ring: false, direct: false, ..options.clone() };

    let disk = ImageDisk::open(&options).expect("an image");
    assert_eq!(disk.has_ring(), io_uring::IoUring::new(8).is_ok());
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&options.path);
    assert_eq!(disk.is_direct(), direct.is_ok());
    assert_eq!(&disk.shape().id[..9], b"Raw.img\0\0");
    drop(disk);
    let disk = open_again(&plain);
    assert!(!disk.has_ring() && !disk.is_direct());
}

#[test]
fn nothing_is_written_once_the_fence_is_over() {
    for (format, ring) in [ImageFormat::Raw, ImageFormat::Qcow2]
        .into_iter()
        .flat_map(|format| [(format, true), (format, false)])
    {
        let folder = Folder::new();
        let path = folder.image(format, SECTORS * SECTOR_BYTES);
        let options = ImageOptions { ring, ..ImageOptions::new(&path, format) };
        let disk = ImageDisk::open(&options).unwrap();
        let write = |fill| DiskRequest::Write { sector: 8, data: vec![fill; 512] };
        assert_eq!(ask(&disk, write(1)), done());
        assert_eq!(ask(&disk, DiskRequest::Flush), done());
        let before = fs::read(&path).unwrap();

        options.fence.shut();

        for request in [write(2), DiskRequest::Flush] {
            assert_eq!(ask(&disk, request.clone()), DiskReply::Failed, "{format:?} {request:?}");
        }
        // Of these qcow2 only makes a note, which it cannot write any more.
        for unmap in [false, true] {
            ask(&disk, DiskRequest::WriteZeroes { sector: 8, sectors: 8, unmap });
        }
        ask(&disk, DiskRequest::Discard { sector: 8, sectors: 8 });
        // Its last flush writes nothing either.
        drop(disk);
        assert_eq!(fs::read(&path).unwrap(), before, "{format:?}, ring {ring}");
    }
}

#[test]
fn queued_writes_of_a_slice_that_was_stopped_for_its_lease_are_not_finished() {
    for ring in [true, false] {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Raw, SECTORS * SECTOR_BYTES);
        let options = ImageOptions { ring, ..ImageOptions::new(&path, ImageFormat::Raw) };
        let disk = ImageDisk::open(&options).unwrap();
        // Nobody renews it: as after SIGSTOP, when the engine has not run yet.
        let lease = Duration::from_millis(50);
        options.fence.take_lease(Fence::now() - 25_000_001, lease);
        let replies: Vec<_> = (0..64)
            .map(|at| submit(&disk, DiskRequest::Write { sector: at, data: vec![1; 512] }))
            .collect();
        for reply in replies {
            assert_eq!(reply.recv(), Ok(DiskReply::Failed));
        }
        assert!(!options.fence.renew(Fence::now()));
        drop(disk);
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "ring {ring}");
    }
}

#[test]
fn writes_wait_while_the_fence_is_late_and_reads_do_not() {
    for ring in [true, false] {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Raw, SECTORS * SECTOR_BYTES);
        let options = ImageOptions { ring, ..ImageOptions::new(&path, ImageFormat::Raw) };
        let disk = ImageDisk::open(&options).unwrap();
        // For half a minute.
        options.fence.take_lease(Fence::now() - 30_000_000_001, Duration::from_secs(60));
        let writes: Vec<_> = (0..3)
            .map(|at| submit(&disk, DiskRequest::Write { sector: at, data: vec![1; 512] }))
            .collect();
        let read = DiskRequest::Read { sector: 0, bytes: 512 };
        assert_eq!(ask(&disk, read), DiskReply::Done(vec![0; 512]));
        // A slice is lost.
        options.fence.shut();
        for reply in writes {
            assert_eq!(reply.recv(), Ok(DiskReply::Failed));
        }
        drop(disk);
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "ring {ring}");
    }
}
