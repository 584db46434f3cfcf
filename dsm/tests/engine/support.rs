//! Two engines in one process, joined by shared memory, with real userfaultfd. Threads of the tests play
//! the vCPUs.

use dsm_protocol::saved::{NodeState, check_all};
use needs::Need;
use std::ops::Range;
use std::ptr::with_exposed_provenance;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, scope, sleep};
use std::time::{Duration, Instant};
use tessera_dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HoldPolicy, HomeRange, HomeTable, Memory,
    NodeConfig, RamError, Replicate, Report, Tracing, Uplink, check_host,
};
use transport::{Class, Config, Transport, shm, tcp};
use wire::{Epoch, SliceId};

/// No engine takes longer to answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A VMM that only tells what goes wrong.
pub(crate) struct Silent;

impl Uplink for Silent {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn lost(&mut self, peer: SliceId, cause: String) {
        eprintln!("{peer} is lost: {cause}");
    }
    fn fatal(&mut self, error: EngineError) {
        panic!("the engine failed: {error:?}");
    }
    fn sample_roots(&mut self) {}
}

/// A VMM that passes on why an engine cannot go on.
pub(crate) struct Telling(Mutex<Sender<String>>);

impl Telling {
    pub(crate) fn new(to: &Sender<String>) -> Self {
        Self(Mutex::new(to.clone()))
    }
}

impl Uplink for Telling {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn lost(&mut self, _: SliceId, _: String) {}
    fn fatal(&mut self, error: EngineError) {
        let _ = self.0.lock().unwrap().send(error.to_string());
    }
    fn sample_roots(&mut self) {}
}

/// What a transport of the tests leaves to the one that it is made of.
macro_rules! forward_to {
    ($inner:tt) => {
        fn local(&self) -> SliceId {
            self.$inner.local()
        }
        fn peers(&self) -> &[SliceId] {
            self.$inner.peers()
        }
        fn cork(&mut self, on: bool) {
            self.$inner.cork(on);
        }
        fn readiness(&self) -> BorrowedFd<'_> {
            self.$inner.readiness()
        }
    };
}
pub(crate) use forward_to;

/// One engine and its memory.
pub(crate) struct Slice {
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) handle: Handle,
    pub(crate) thread: JoinHandle<()>,
    /// First address of the guest's mapping.
    pub(crate) guest: usize,
}

impl Slice {
    /// A word of the guest's mapping.
    pub(crate) fn word(&self, frame: u64, index: usize) -> &AtomicU64 {
        let offset = usize::try_from(frame).unwrap() * 4096 + index * 8;
        // SAFETY: inside the guest mapping, which lives until the engine is joined; aligned.
        unsafe { &*with_exposed_provenance::<AtomicU64>(self.guest + offset) }
    }
}

/// Slices of which one's threads never stop storing to pages, while the other takes some of them away.
pub(crate) struct Contest<'a> {
    pub(crate) hammered: &'a Slice,
    pub(crate) taker: &'a Slice,
    pub(crate) pages: Range<u64>,
    /// To which of them the threads store, in words 3 and 4.
    pub(crate) stored_to: fn(u64) -> bool,
}

impl Contest<'_> {
    /// Carries it out, with 40 rounds of pages that the other one takes to raise their words 5; then both
    /// slices must see all stores.
    pub(crate) fn loses_no_store(&self, memory: Memory, taken: impl Fn(u64) -> [u64; 3]) {
        let over = AtomicBool::new(false);
        let (stored, theirs) = scope(|threads| {
            let hammers = [3, 4].map(|index| {
                let over = &over;
                threads.spawn(move || {
                    let mut stored = 0;
                    while !over.load(Ordering::Relaxed) {
                        for page in self.pages.clone().filter(|page| (self.stored_to)(*page)) {
                            // Not atomic on purpose: of this word there is one writer.
                            let word = self.hammered.word(page, index);
                            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                            stored += 1;
                        }
                    }
                    stored
                })
            });
            sleep(Duration::from_millis(30));
            let mut theirs = 0;
            for page in (0..40).flat_map(taken) {
                self.taker.word(page, 5).fetch_add(1, Ordering::SeqCst);
                theirs += 1;
            }
            over.store(true, Ordering::Relaxed);
            (hammers.map(|hammer| hammer.join().unwrap()), theirs)
        });
        for slice in [self.hammered, self.taker] {
            assert_eq!([self.sum(slice, 3), self.sum(slice, 4)], stored, "{memory}");
            assert_eq!(self.sum(slice, 5), theirs, "{memory}");
        }
    }

    fn sum(&self, slice: &Slice, index: usize) -> u64 {
        self.pages.clone().map(|page| slice.word(page, index).load(Ordering::SeqCst)).sum()
    }
}

/// What an engine reports.
pub(crate) fn report_of(slice: &Slice) -> Report {
    slice.handle.report(LIMIT).unwrap()
}

/// Slice 0 is home of the first half of so many frames, slice 1 of the second. `None` where the machine
/// cannot run this.
pub(crate) fn start(
    frames: u64,
    memory: Memory,
    replicate: Replicate,
    uplink: impl Fn(u16) -> Box<dyn Uplink>,
) -> Option<[Slice; 2]> {
    start_over(frames, memory, replicate, uplink, over_shm)
}

pub(crate) fn boxed(mesh: impl IntoIterator<Item = impl Transport + 'static>) -> Mesh {
    mesh.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect()
}

/// The ends of the slices.
pub(crate) type Mesh = Vec<Box<dyn Transport>>;

pub(crate) fn over_shm(_: &[Arc<GuestRam>]) -> Mesh {
    boxed(shm::mesh(2, &Config::default()).unwrap())
}

pub(crate) fn over_tcp(_: &[Arc<GuestRam>]) -> Mesh {
    boxed(tcp::mesh(2, &Config::default()).unwrap())
}

/// Both slices add to words of these pages, and in the end both see all sums.
pub(crate) fn add_words(slices: &[Slice; 2], frames: [u64; 4]) {
    const ROUNDS: u64 = 200;
    scope(|threads| {
        for slice in slices {
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    for frame in frames {
                        slice.word(frame, 7).fetch_add(round, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    for slice in slices {
        for frame in frames {
            let bytes = slice.handle.read(frame * 4096 + 56, 8, LIMIT).unwrap();
            let total = u64::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(total, ROUNDS * (ROUNDS - 1), "frame {frame}");
        }
    }
}

/// The same with engines that measure how long a page is on its way, for windows that are over at once.
pub(crate) fn start_measuring(frames: u64) -> Option<[Slice; 2]> {
    let config = |node: &mut NodeConfig| node.hold = HoldPolicy::fixed(1);
    start_configured(frames, Memory::default(), config, |_| Box::new(Silent), over_shm)
}

/// The same over transports of the caller's, made for the slices' memory.
pub(crate) fn start_over(
    frames: u64,
    memory: Memory,
    replicate: Replicate,
    uplink: impl Fn(u16) -> Box<dyn Uplink>,
    mesh: impl FnOnce(&[Arc<GuestRam>]) -> Mesh,
) -> Option<[Slice; 2]> {
    start_configured(frames, memory, |node| node.replicate = replicate, uplink, mesh)
}

/// The same with nodes configured by the caller.
pub(crate) fn start_configured(
    frames: u64,
    memory: Memory,
    configure: impl Fn(&mut NodeConfig),
    uplink: impl Fn(u16) -> Box<dyn Uplink>,
    mesh: impl FnOnce(&[Arc<GuestRam>]) -> Mesh,
) -> Option<[Slice; 2]> {
    start_from(frames, memory, configure, uplink, mesh, None)
}

/// Saved nodes, and what writes the contents of the pages that one has.
pub(crate) type Saved<'a> = (&'a [NodeState], &'a dyn Fn(&GuestRam, &NodeState));

/// The same from saved nodes, if they are given, with the contents of pages that each has.
pub(crate) fn start_from(
    frames: u64,
    memory: Memory,
    configure: impl Fn(&mut NodeConfig),
    uplink: impl Fn(u16) -> Box<dyn Uplink>,
    mesh: impl FnOnce(&[Arc<GuestRam>]) -> Mesh,
    saved: Option<Saved<'_>>,
) -> Option<[Slice; 2]> {
    if !needs::has(Need::Uffd, check_host()) {
        return None;
    }
    let halves = [0..frames / 2, frames / 2..frames];
    let homes = halves.clone().into_iter().zip([SliceId(0), SliceId(1)]);
    let homes = homes.map(|(frames, home)| HomeRange { frames, home }).collect();
    let homes = HomeTable::new(homes).unwrap();
    let slices = vec![SliceId(0), SliceId(1)];
    let mut rams = Vec::new();
    for own in &halves {
        rams.push(match GuestRam::with_memory(from_ref(&(0..frames)), from_ref(own), memory) {
            Err(error @ RamError::HugePages { .. }) => {
                needs::leave_out(&error.to_string());
                return None;
            }
            ram => Arc::new(ram.unwrap()),
        });
    }
    let mut started = Vec::new();
    for ((id, transport), ram) in (0u16..).zip(mesh(&rams)).zip(rams) {
        let mut node = NodeConfig::new(SliceId(id), slices.clone(), homes.clone(), Epoch(1));
        configure(&mut node);
        let config = EngineConfig {
            bystanders: Vec::new(),
            core: None,
            wait_limit: LIMIT,
            node,
            ram: Arc::clone(&ram),
            transport,
            uplink: uplink(id),
            trace: Tracing::On,
        };
        let started_engine = match saved {
            None => Engine::start(config),
            Some((states, fill)) => {
                let state = &states[usize::from(id)];
                fill(&ram, state);
                Engine::restore(config, state)
            }
        };
        let (handle, thread) = started_engine.unwrap();
        started.push(Slice { guest: ram.slots()[0].1, ram, handle, thread });
    }
    started.try_into().ok()
}

/// Brings both to rest and saves both, again while a message of one has not come to the other.
pub(crate) fn saved(slices: &[Slice; 2]) -> Vec<NodeState> {
    for slice in slices {
        slice.handle.rest(LIMIT).unwrap();
    }
    let end = Instant::now() + LIMIT;
    loop {
        let states = slices.iter().map(|slice| slice.handle.save(LIMIT).unwrap());
        let states: Vec<NodeState> = states.collect();
        match check_all(&states) {
            Ok(()) => return states,
            Err(disagreement) => assert!(Instant::now() < end, "{disagreement}"),
        }
    }
}

/// Ends both.
pub(crate) fn stop(slices: [Slice; 2]) {
    for slice in &slices {
        slice.handle.stop();
    }
    for slice in slices {
        slice.thread.join().unwrap();
    }
}
