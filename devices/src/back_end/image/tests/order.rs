//! A flush is a barrier: it is answered when what was answered before it was asked for is on the storage for
//! good. Over a storage that keeps a log, and whose syncs take their time.
#![expect(unsafe_code, reason = "imago's storage functions are unsafe")]
// UNSAFETY: nothing here is: memory is copied by safe functions of imago.

use super::{SECTORS, done, submit};
use crate::back_end::image::access::Gate;
use crate::back_end::image::engine::Engine;
use crate::back_end::image::guard::Guard;
use crate::back_end::image::{ImageDisk, ImageFormat, ImageOptions};
use crate::back_end::{DiskReply, DiskRequest, DiskShape, SECTOR_BYTES};
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::qcow2::Qcow2;
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;
use imago::{FormatCreateBuilder, Storage};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::runtime::Builder;
use tokio::task::yield_now;

/// What reached the storage, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// First byte of what was written; each write of the test has its own.
    Written([u8; 8]),
    /// A sync has begun: it covers what was written before.
    Sync(usize),
    /// That sync has ended.
    Synced(usize),
}

#[derive(Debug, Default)]
struct Log {
    bytes: Mutex<Vec<u8>>,
    entries: Mutex<Vec<Entry>>,
    syncs: AtomicUsize,
}

impl Log {
    /// What a power cut would leave for certain: written before a sync began that has ended.
    fn safe(&self) -> Vec<Entry> {
        let mut entries = self.entries.lock().unwrap().clone();
        let ended =
            |entry: &Entry| matches!(entry, Entry::Sync(n) if entries.contains(&Entry::Synced(*n)));
        let end = entries.iter().rposition(ended).unwrap_or(0);
        entries.truncate(end);
        entries
    }
}

#[derive(Debug, Default)]
struct LoggingStorage {
    log: Arc<Log>,
    helper: CommonStorageHelper,
}

impl fmt::Display for LoggingStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("log")
    }
}

impl Storage for LoggingStorage {
    fn size(&self) -> io::Result<u64> {
        Ok(self.log.bytes.lock().unwrap().len() as u64)
    }

    async unsafe fn pure_readv(&self, mut to: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        let mut copy = vec![0; usize::try_from(to.len()).unwrap()];
        let bytes = self.log.bytes.lock().unwrap();
        let start = usize::try_from(offset).unwrap().min(bytes.len());
        let end = (start + copy.len()).min(bytes.len());
        copy[..end - start].copy_from_slice(&bytes[start..end]);
        to.copy_from_slice(&copy);
        Ok(())
    }

    async unsafe fn pure_writev(&self, from: IoVector<'_>, offset: u64) -> io::Result<()> {
        let mut copy = vec![0; usize::try_from(from.len()).unwrap()];
        from.copy_into_slice(&mut copy);
        let start = usize::try_from(offset).unwrap();
        let mut bytes = self.log.bytes.lock().unwrap();
        let end = bytes.len().max(start + copy.len());
        bytes.resize(end, 0);
        bytes[start..start + copy.len()].copy_from_slice(&copy);
        let head = copy.first_chunk().copied().unwrap_or_default();
        self.log.entries.lock().unwrap().push(Entry::Written(head));
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        let number = self.log.syncs.fetch_add(1, Ordering::Relaxed);
        self.log.entries.lock().unwrap().push(Entry::Sync(number));
        // Others get ahead meanwhile: who answers a flush too early is found.
        for _ in 0..3 {
            thread::yield_now();
            yield_now().await;
        }
        self.log.entries.lock().unwrap().push(Entry::Synced(number));
        Ok(())
    }

    async unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }

    async fn resize(&self, bytes: u64, _: PreallocateMode) -> io::Result<()> {
        self.log.bytes.lock().unwrap().resize(usize::try_from(bytes).unwrap(), 0);
        Ok(())
    }
}

fn disk(format: ImageFormat) -> (ImageDisk, Arc<Log>) {
    let log = Arc::new(Log::default());
    let storage = || LoggingStorage { log: Arc::clone(&log), ..LoggingStorage::default() };
    match format {
        ImageFormat::Raw => {
            log.bytes.lock().unwrap().resize(usize::try_from(SECTORS * SECTOR_BYTES).unwrap(), 0);
        }
        ImageFormat::Qcow2 => {
            let builder = Qcow2::<LoggingStorage>::create_builder(storage());
            let created = builder.size(SECTORS * SECTOR_BYTES).create();
            Builder::new_current_thread().build().unwrap().block_on(created).unwrap();
        }
    }
    log.entries.lock().unwrap().clear();
    let options = ImageOptions::new("log", format);
    let gate = Gate::new(&options, &Arc::new(Guard::new(&options.fence, None)), |_| {
        Err(io::ErrorKind::NotFound.into())
    });
    let (engine, facts) = Engine::with_threads(&options, storage(), true, gate).expect("an image");
    let shape = DiskShape {
        sectors: facts.bytes / SECTOR_BYTES,
        block_bytes: facts.block_bytes,
        read_only: false,
        discard: true,
        id: [0; 20],
    };
    (ImageDisk { shape, engine, direct: false }, log)
}

/// Four queues write and flush; each flush is checked against all that was answered before it.
fn check(format: ImageFormat) {
    let (disk, log) = disk(format);
    let answered = Mutex::new(Vec::<[u8; 8]>::new());
    let flushes = AtomicUsize::new(0);
    thread::scope(|scope| {
        for queue in 0..4_u64 {
            let (disk, log, answered, flushes) = (&disk, &log, &answered, &flushes);
            scope.spawn(move || {
                for turn in 0..40_u64 {
                    let mark = (0x5445_5353_0000_0000 | queue << 16 | turn).to_le_bytes();
                    let sector = queue * 1000 + turn * 16;
                    let data = mark.repeat(512);
                    let reply = submit(disk, DiskRequest::Write { sector, data });
                    assert_eq!(reply.recv(), Ok(done()));
                    answered.lock().unwrap().push(mark);
                    if turn % 3 != queue % 3 {
                        continue;
                    }
                    let before = answered.lock().unwrap().clone();
                    let reply = submit(disk, DiskRequest::Flush).recv();
                    assert_eq!(reply, Ok(DiskReply::Done(Vec::new())));
                    let safe = log.safe();
                    for mark in before {
                        assert!(safe.contains(&Entry::Written(mark)), "{mark:?} before the sync");
                    }
                    flushes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(flushes.load(Ordering::Relaxed) > 40);
}

#[test]
fn flush_covers_every_write_answered_before_it_in_raw() {
    check(ImageFormat::Raw);
}

#[test]
fn flush_covers_every_write_answered_before_it_in_qcow2() {
    check(ImageFormat::Qcow2);
}

#[test]
fn flushed_qcow2_has_its_tables_in_the_file() {
    let (disk, log) = disk(ImageFormat::Qcow2);
    let data = vec![9; 8192];
    let written = submit(&disk, DiskRequest::Write { sector: 64, data: data.clone() });
    assert_eq!(written.recv(), Ok(done()));
    assert_eq!(submit(&disk, DiskRequest::Flush).recv(), Ok(done()));
    // The host dies here: another process sees only what the file has.
    let bytes = log.bytes.lock().unwrap().clone();
    let after = Arc::new(Log { bytes: Mutex::new(bytes), ..Log::default() });
    let storage = LoggingStorage { log: after, ..LoggingStorage::default() };
    let options = ImageOptions::new("log", ImageFormat::Qcow2);
    let gate = Gate::new(&options, &Arc::new(Guard::new(&options.fence, None)), |_| {
        Err(io::ErrorKind::NotFound.into())
    });
    let (engine, _) = Engine::with_threads(&options, storage, false, gate).expect("the image");
    let shape = DiskShape { read_only: true, ..disk.shape.clone() };
    let survivor = ImageDisk { shape, engine, direct: false };

    let read = submit(&survivor, DiskRequest::Read { sector: 64, bytes: 8192 });

    assert_eq!(read.recv(), Ok(DiskReply::Done(data)));
}
