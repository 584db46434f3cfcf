//! A sync that fails, once.
#![expect(unsafe_code, reason = "imago's storage functions are unsafe")]
// UNSAFETY: nothing here is: memory is copied by safe functions of imago.

use super::{ask, done, submit};
use crate::back_end::image::access::Gate;
use crate::back_end::image::engine::Engine;
use crate::back_end::image::guard::Guard;
use crate::back_end::image::{ImageDisk, ImageFormat, ImageOptions, OnFull};
use crate::back_end::{DiskReply, DiskRequest, DiskShape, SECTOR_BYTES};
use imago::Storage;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::task::yield_now;

/// A storage that writes back late and finds no room then, once: as a page cache over a thin volume, or a file of a
/// network. The kernel tells it to one fsync, and takes the pages for clean (fsync(2)).
#[derive(Debug, Default)]
struct Cached {
    state: Arc<Mutex<CacheState>>,
    helper: CommonStorageHelper,
}

#[derive(Debug, Default)]
struct CacheState {
    cache: Vec<u8>,
    medium: Vec<u8>,
    is_dirty: bool,
    syncs: u32,
    fails_with: i32,
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cached")
    }
}

impl Storage for Cached {
    fn size(&self) -> io::Result<u64> {
        Ok(self.state.lock().unwrap().cache.len() as u64)
    }

    async unsafe fn pure_readv(&self, mut to: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let end = start + usize::try_from(to.len()).unwrap();
        to.copy_from_slice(&state.cache[start..end]);
        Ok(())
    }

    async unsafe fn pure_writev(&self, from: IoVector<'_>, offset: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let end = start + usize::try_from(from.len()).unwrap();
        from.copy_into_slice(&mut state.cache[start..end]);
        state.is_dirty = true;
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        // Others may come meanwhile.
        yield_now().await;
        let mut state = self.state.lock().unwrap();
        state.syncs += 1;
        let is_dirty = std::mem::take(&mut state.is_dirty);
        if state.syncs == 1 {
            return Err(io::Error::from_raw_os_error(state.fails_with));
        }
        if is_dirty {
            state.medium = state.cache.clone();
        }
        Ok(())
    }

    async unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }

    async fn resize(&self, _: u64, _: PreallocateMode) -> io::Result<()> {
        Ok(())
    }
}

fn disk(fails_with: i32) -> (ImageDisk, Arc<Mutex<CacheState>>) {
    let storage = Cached::default();
    let state = Arc::clone(&storage.state);
    let (cache, medium) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    *state.lock().unwrap() = CacheState { cache, medium, fails_with, ..CacheState::default() };
    let options = ImageOptions::new("cached", ImageFormat::Raw);
    let options = ImageOptions { on_full: OnFull::Pause, ..options };
    let gate = Gate::new(&options, &Arc::new(Guard::new(&options.fence, None)), |_| {
        Err(io::ErrorKind::NotFound.into())
    });
    let (engine, facts) = Engine::with_threads(&options, storage, true, gate).expect("an image");
    let shape = DiskShape {
        sectors: facts.bytes / SECTOR_BYTES,
        block_bytes: facts.block_bytes,
        read_only: false,
        discard: true,
        id: [0; 20],
    };
    (ImageDisk { shape, engine, direct: false }, state)
}

fn write() -> DiskRequest {
    DiskRequest::Write { sector: 8, data: vec![7; 4096] }
}

#[test]
fn no_flush_succeeds_once_the_kernel_may_have_lost_data() {
    for fails_with in [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EOPNOTSUPP] {
        let (disk, state) = disk(fails_with);
        assert_eq!(ask(&disk, write()), done());
        assert_eq!(ask(&disk, DiskRequest::Flush), DiskReply::Failed, "{fails_with}");
        // Written and flushed anew, but what was lost may be elsewhere.
        assert_eq!(ask(&disk, write()), done());
        assert_eq!(ask(&disk, DiskRequest::Flush), DiskReply::Failed, "{fails_with}");
        assert_eq!(state.lock().unwrap().syncs, 1, "nothing is tried again");
        assert!(state.lock().unwrap().medium.iter().all(|byte| *byte == 0));
        let read = DiskRequest::Read { sector: 8, bytes: 4096 };
        assert_eq!(ask(&disk, read), DiskReply::Done(vec![7; 4096]));
    }
}

#[test]
fn failure_that_one_flush_hears_of_fails_those_beside_it() {
    for _ in 0..20 {
        let (disk, _) = disk(libc::EIO);
        assert_eq!(ask(&disk, write()), done());
        let flushes: Vec<_> = (0..8).map(|_| submit(&disk, DiskRequest::Flush)).collect();
        assert!(flushes.iter().all(|reply| reply.recv() == Ok(DiskReply::Failed)));
    }
}
