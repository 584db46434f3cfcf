//! What the fence lets through, when it changes after an operation has passed it above.

use super::super::fenced::Fenced;
use super::super::file::Opened;
use super::super::guard::Guard;
use super::super::ring_file::RingFile;
use super::*;
use imago::Storage;
use imago::io_buffers::{IoVector, IoVectorMut};
use std::env;
use std::fs::{self, File, remove_file};
use std::path::PathBuf;
use std::pin::pin;
use std::process;
use std::thread::yield_now;
use std::time::Duration;

const BYTES: usize = 8192;

/// A file of zeros behind a fence.
struct Bench {
    path: PathBuf,
    fence: Arc<Fence>,
    ring: Arc<Ring>,
    storage: Fenced<RingFile>,
}

impl Bench {
    /// None where there is no `io_uring`.
    fn new(name: &str) -> Option<Self> {
        let fence = Arc::<Fence>::default();
        let guard = Arc::new(Guard::new(&fence, None));
        let Ok(ring) = Ring::new(Arc::clone(&guard)) else {
            needs::skip("the kernel has no io_uring");
            return None;
        };
        let path = env::temp_dir().join(format!("tessera-ring-{}-{name}", process::id()));
        fs::write(&path, [0; BYTES]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let opened = Opened { file, path: path.clone(), writable: true, direct: false };
        let ring = Arc::new(ring);
        let storage = RingFile::new(Arc::clone(&ring), opened).unwrap();
        let storage = Fenced::new(storage, guard);
        Some(Self { path, fence, ring, storage })
    }

    /// Late, and for half a minute.
    fn late(&self) {
        self.fence.take_lease(Fence::now() - 30_000_000_001, Duration::from_secs(60));
        assert_eq!(self.fence.look(Fence::now()), Standing::Late);
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    async fn write(&self) -> io::Result<()> {
        let data = [1; 512];
        // SAFETY: nobody else uses this part of the file.
        unsafe { self.storage.pure_writev(IoVector::from(&data[..]), 0) }.await
    }

    /// Polls until the kernel is done; nothing is submitted.
    fn finish<T>(&self, mut future: Pin<&mut impl Future<Output = T>>) -> T {
        loop {
            if let Poll::Ready(result) = poll(future.as_mut()) {
                return result;
            }
            self.ring.lock().reap();
            yield_now();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = remove_file(&self.path);
    }
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn is_over(result: &io::Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.get_ref().is_some_and(|error| error.is::<Over>()))
}

#[test]
fn write_that_passed_the_fence_waits_for_it_again_and_reads_do_not() {
    for goes_on in [true, false] {
        let Some(bench) = Bench::new(if goes_on { "on" } else { "over" }) else { return };
        let mut write = pin!(bench.write());
        assert!(poll(write.as_mut()).is_pending());
        bench.late();
        assert!(!bench.ring.submit().unwrap(), "it waits");

        let mut data = [7; 512];
        // SAFETY: nobody else uses this buffer.
        let read = unsafe { bench.storage.pure_readv(IoVectorMut::from(&mut data[..]), 4096) };
        {
            let mut read = pin!(read);
            assert!(poll(read.as_mut()).is_pending());
            assert!(!bench.ring.submit().unwrap(), "the write still waits");
            assert!(bench.finish(read).is_ok());
        }
        assert_eq!(data, [0; 512]);
        assert!(poll(write.as_mut()).is_pending());
        assert_eq!(bench.bytes(), [0; BYTES]);

        if goes_on {
            bench.fence.hear(Fence::now());
            assert!(bench.fence.renew(Fence::now()));
        } else {
            bench.fence.shut();
        }
        assert!(bench.ring.submit().unwrap());
        let result = bench.finish(write);
        assert_eq!(is_over(&result), !goes_on, "{result:?}");
        assert_eq!(bench.bytes()[..512], [u8::from(goes_on); 512]);
    }
}

#[test]
fn each_part_of_an_operation_is_looked_at() {
    let Some(bench) = Bench::new("parts") else { return };
    // Zeros across the end: a hole, and then a new end.
    // SAFETY: nobody else uses the file.
    let mut zeros = pin!(unsafe { bench.storage.pure_write_zeroes(4096, BYTES as u64) });
    assert!(poll(zeros.as_mut()).is_pending());
    assert!(bench.ring.submit().unwrap());
    while !bench.ring.lock().slots.iter().any(|slot| matches!(slot, Slot::Done(_))) {
        bench.ring.lock().reap();
        yield_now();
    }
    bench.fence.shut();
    match poll(zeros.as_mut()) {
        Poll::Ready(result)
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Unsupported) =>
        {
            needs::skip("the file system of temporary files has no holes");
        }
        Poll::Ready(result) => panic!("{result:?}"),
        Poll::Pending => {
            assert!(bench.ring.submit().unwrap());
            let result = bench.finish(zeros);
            assert!(is_over(&result), "{result:?}");
        }
    }
    assert_eq!(bench.bytes(), [0; BYTES]);
}

#[test]
fn operation_that_is_dropped_before_it_is_submitted_never_is() {
    let Some(bench) = Bench::new("dropped") else { return };
    {
        let mut write = pin!(bench.write());
        assert!(poll(write.as_mut()).is_pending());
    }
    assert!(bench.ring.submit().unwrap());
    assert_eq!(bench.ring.lock().free.len(), 1);
    assert_eq!(bench.bytes(), [0; BYTES]);
}

#[test]
fn more_than_the_ring_holds_is_submitted() {
    let Some(bench) = Bench::new("many") else { return };
    let count = 2 * ENTRIES as usize + 7;
    let mut writes: Vec<_> = (0..count).map(|_| Box::pin(bench.write())).collect();
    assert!(writes.iter_mut().all(|write| poll(write.as_mut()).is_pending()));
    assert!(bench.ring.submit().unwrap());
    for write in &mut writes {
        bench.finish(write.as_mut()).unwrap();
    }
    assert_eq!(bench.ring.lock().free.len(), count);
}
