//! What it costs a guest that its disk is frozen, and to read through images that lie over each other. In the folder for
//! temporary files (`TMPDIR`): on a disk, or in memory, where nothing but the way through the images costs.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use devices::back_end::image::snapshot::{Contents, freeze};
use devices::back_end::image::{ImageDisk, ImageFormat, ImageOptions};
use devices::back_end::{Disk, DiskReply, DiskRequest};
use std::env::temp_dir;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::id;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Of the disk.
const BYTES: u64 = 1 << 30;
/// Of these the guest has written.
const WRITTEN: u64 = 64 << 20;
const CLUSTER: u64 = 1 << 16;
const LIMIT: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = temp_dir().join(format!("tessera-snapshots-{}", id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// An empty qcow2 image: head, table of reference counts, reference counts, table of clusters.
    fn image(&self) -> ImageOptions {
        for entry in fs::read_dir(&self.0).expect("the folder") {
            fs::remove_file(entry.expect("a file").path()).expect("a file");
        }
        let path = self.0.join("disk");
        let file = File::create_new(&path).expect("a file");
        file.set_len(4 * CLUSTER).expect("some room");
        let entries = u32::try_from(BYTES / (CLUSTER * CLUSTER / 8)).expect("a few").max(1);
        let put = |at: u64, value: &[u8]| file.write_all_at(value, at).expect("some room");
        put(0, b"QFI\xfb");
        put(4, &3_u32.to_be_bytes());
        put(20, &16_u32.to_be_bytes());
        put(24, &BYTES.to_be_bytes());
        put(36, &entries.to_be_bytes());
        put(40, &(3 * CLUSTER).to_be_bytes());
        put(48, &CLUSTER.to_be_bytes());
        put(56, &1_u32.to_be_bytes());
        put(96, &4_u32.to_be_bytes());
        put(100, &104_u32.to_be_bytes());
        put(CLUSTER, &(2 * CLUSTER).to_be_bytes());
        put(2 * CLUSTER, &[0, 1, 0, 1, 0, 1, 0, 1]);
        ImageOptions::new(path, ImageFormat::Qcow2)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is in nobody's way.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ask(disk: &ImageDisk, request: DiskRequest) {
    let (told, answer) = channel();
    disk.submit(request, Box::new(move |reply| drop(told.send(reply))));
    assert!(matches!(answer.recv(), Ok(DiskReply::Done(_))));
}

fn fill(disk: &ImageDisk, from: u64, bytes: u64) {
    for at in (from..from + bytes).step_by(1 << 20) {
        let data = vec![7; usize::try_from(bytes.min(1 << 20)).expect("at most a MiB")];
        ask(disk, DiskRequest::Write { sector: at / 512, data });
    }
    ask(disk, DiskRequest::Flush);
}

/// What is timed of a freeze.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Close,
    Freeze,
    Open,
}

/// A disk with so many images, one of which is frozen.
fn frozen(folder: &Folder, images: u32, part: Part) -> Duration {
    let options = folder.image();
    let mut disk = ImageDisk::open(&options).expect("an image");
    fill(&disk, 0, WRITTEN);
    for image in 1..images {
        disk = step(&options, disk, image).3;
    }
    let (close, freeze, open, _) = step(&options, disk, images);
    match part {
        Part::Close => close,
        Part::Freeze => freeze,
        Part::Open => open,
    }
}

fn step(
    options: &ImageOptions,
    disk: ImageDisk,
    number: u32,
) -> (Duration, Duration, Duration, ImageDisk) {
    let start = Instant::now();
    ask(&disk, DiskRequest::Flush);
    let contents = Contents::of(&disk, &[], LIMIT).expect("a sample");
    drop(disk);
    let closed = Instant::now();
    freeze(options, &format!("cp{number}"), &contents).expect("a state");
    let kept = Instant::now();
    let disk = ImageDisk::open(options).expect("the overlay");
    (closed - start, kept - closed, kept.elapsed(), disk)
}

fn freezing(criterion: &mut Criterion) {
    let folder = Folder::new();
    let mut group = criterion.benchmark_group("freeze a disk of 1 GiB");
    for images in [1, 32] {
        for (name, part) in
            [("flush, sample, close", Part::Close), ("freeze", Part::Freeze), ("open", Part::Open)]
        {
            group.bench_function(BenchmarkId::new(name, images), |bencher| {
                bencher
                    .iter_custom(|count| (0..count).map(|_| frozen(&folder, images, part)).sum());
            });
        }
    }
    group.finish();
}

/// All data is in the lowest image, as after many checkpoints of a disk that is read.
fn reading(criterion: &mut Criterion) {
    for (name, bytes) in [("read 4 KiB at random", 4096_u32), ("read 1 MiB in order", 1 << 20)] {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(bytes.into()));
        for images in [1, 8, 32] {
            let folder = Folder::new();
            let options = folder.image();
            let mut disk = ImageDisk::open(&options).expect("an image");
            fill(&disk, 0, WRITTEN);
            for image in 1..images {
                disk = step(&options, disk, image).3;
                // Its tables are there, and say nothing of what is read.
                fill(&disk, BYTES - (1 << 20), 4096);
            }
            let mut at = 0_u64;
            group.bench_function(BenchmarkId::from_parameter(images), |bencher| {
                bencher.iter(|| {
                    let step = if bytes == 4096 { 7919 } else { 1 };
                    at = (at + step * u64::from(bytes)) % WRITTEN;
                    ask(&disk, DiskRequest::Read { sector: at / 512, bytes });
                });
            });
        }
        group.finish();
    }
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000))
        .sample_size(10)
}

criterion_group! { name = snapshots; config = short(); targets = freezing, reading }
criterion_main!(snapshots);
