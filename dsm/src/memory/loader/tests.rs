#![expect(unsafe_code, reason = "guest memory is read by address")]
// UNSAFETY: words of guest memory, which live as long as the memory.

use super::*;
use crate::kernel::check_host;
use crate::memory::{Give, Memory};
use needs::Need;
use std::slice::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};
use std::thread;
use wire::{Gfn, PAGE_SIZE};

const FRAMES: Range<u64> = 0..4 * 512;
const LONG: Duration = Duration::from_secs(60);

/// Pages that have their number in each word, of chunks that it is told to give; zeros where the number is odd.
#[derive(Debug, Default)]
struct Slow {
    open: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Slow {
    /// From now on a chunk can be read.
    fn open(&self, chunk: u64) {
        self.open.lock().unwrap().push(chunk);
        self.changed.notify_all();
    }
}

impl Source for Slow {
    fn name(&self) -> String {
        "a slow disk".into()
    }

    fn has(&self, _: Range<u64>) -> bool {
        true
    }

    fn read(&self, frames: Range<u64>, give: &mut Give<'_>) -> Result<(), LoadError> {
        let is_shut = |open: &mut Vec<u64>| !open.contains(&(frames.start / 512));
        drop(self.changed.wait_while(self.open.lock().unwrap(), is_shut).unwrap());
        for frame in frames.filter(|frame| frame % 2 == 0) {
            give(frame, &frame.to_ne_bytes().repeat(PAGE_SIZE / 8))?;
        }
        Ok(())
    }
}

fn pace(limit: Duration) -> Pace {
    Pace { limit, pause: Duration::ZERO, prefer: || () }
}

fn word(ram: &GuestRam, frame: u64) -> &AtomicU64 {
    let address = usize::try_from(ram.guest_address(Gfn(frame)).unwrap()).unwrap() + 16;
    // SAFETY: a word of a page of the guest mapping, which lives as long as the memory; nobody uses it otherwise.
    unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(address) }
}

fn kinds() -> Vec<Memory> {
    let mut kinds = vec![Memory::Memfd, Memory::MemfdPrealloc, Memory::Anonymous];
    if Memory::Hugetlbfs.check(from_ref(&FRAMES)).is_ok() {
        kinds.push(Memory::Hugetlbfs);
    } else {
        needs::leave_out("no huge pages are set aside");
    }
    kinds
}

/// A thread that touches the guest's mapping waits, what it wants comes first, and what it stores stays.
#[test]
fn uffd_guest_goes_on_with_memory_that_comes_later() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    for kind in kinds() {
        let frames = from_ref(&FRAMES);
        let ram = Arc::new(GuestRam::with_memory(frames, frames, kind).unwrap());
        let source = Arc::new(Slow::default());
        let loader = Loader::start(&ram, frames, Arc::clone(&source) as _, pace(LONG)).unwrap();
        thread::scope(|threads| {
            let stores = threads.spawn(|| word(&ram, 1100).swap(7, Ordering::Relaxed));
            // The thread that loads all stands at the first chunk.
            source.open(2);
            assert_eq!(stores.join().unwrap(), 1100, "{kind}");
            assert_eq!(word(&ram, 1101).load(Ordering::Relaxed), 0);
            // The guest goes on a moment before it is counted.
            while ram.wait_until_loaded(Duration::ZERO).left == 4 {
                thread::yield_now();
            }
            assert_eq!(ram.loaded().left, 3);
            [0, 1, 3].into_iter().for_each(|chunk| source.open(chunk));
            assert_eq!(ram.wait_until_loaded(LONG).left, 0);
        });
        assert_eq!(word(&ram, 1100).load(Ordering::Relaxed), 7, "{kind}: the store is lost");
        for frame in FRAMES.filter(|frame| *frame != 1100) {
            let expected = if frame % 2 == 0 { frame } else { 0 };
            assert_eq!(word(&ram, frame).load(Ordering::Relaxed), expected, "{kind}");
        }
        assert!(ram.load_failure().is_none());
        drop(loader);
    }
}

/// The engine's thread and those of the VMM do not stand in a file system that hangs for longer than they may.
#[test]
fn uffd_source_that_hangs_is_given_up() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    let (frames, source) = (from_ref(&FRAMES), Arc::new(Slow::default()));
    let ram = Arc::new(GuestRam::new(frames).unwrap());
    let limit = Duration::from_millis(50);
    let loader = Loader::start(&ram, frames, Arc::clone(&source) as _, pace(limit)).unwrap();
    let (told, heard) = channel();
    ram.when_load_fails(move |error| told.send(error.to_string()).unwrap());

    ram.read(Gfn(600), 0, &mut [0; 8]);

    let error = heard.recv_timeout(LONG).unwrap();
    assert!(error.contains("a slow disk has not answered for"), "{error}");
    assert_eq!(ram.load_failure().unwrap().to_string(), error);
    drop(loader);
    (0..4).for_each(|chunk| source.open(chunk));
}

/// With nobody left who loads, who needs memory loads it.
#[test]
fn uffd_memory_is_loaded_without_threads() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    let (frames, source) = (from_ref(&FRAMES), Arc::new(Slow::default()));
    let ram = Arc::new(GuestRam::new(frames).unwrap());
    let loader = Loader::start(&ram, frames, Arc::clone(&source) as _, pace(LONG)).unwrap();
    drop(loader);
    (0..4).for_each(|chunk| source.open(chunk));
    let mut bytes = [0; 8];
    ram.read(Gfn(600), 0, &mut bytes);
    assert_eq!(u64::from_ne_bytes(bytes), 600);
}
