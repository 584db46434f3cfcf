//! Two engines in one process, joined by shared memory, with real userfaultfd. Threads of the tests play
//! the vCPUs.

use std::ptr::with_exposed_provenance;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;
use tessera_dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HomeRange, HomeTable, Memory, NodeConfig,
    RamError, Replicate, Tracing, Uplink, Watch, check_host,
};
use transport::{Class, Config, Transport, shm};
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

/// One engine and its memory.
pub(crate) struct Slice {
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) handle: Handle,
    pub(crate) thread: JoinHandle<Watch>,
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

/// Slice 0 is home of the first half of so many frames, slice 1 of the second. `None` where the machine
/// cannot run this.
pub(crate) fn start(
    frames: u64,
    memory: Memory,
    replicate: Replicate,
    uplink: impl Fn(u16) -> Box<dyn Uplink>,
) -> Option<[Slice; 2]> {
    start_over(frames, memory, replicate, uplink, |_| {
        let mesh = shm::mesh(2, &Config::default()).unwrap();
        mesh.into_iter().map(|transport| Box::new(transport) as Box<dyn Transport>).collect()
    })
}

/// The same over transports of the caller's, made for the slices' memory.
pub(crate) fn start_over(
    frames: u64,
    memory: Memory,
    replicate: Replicate,
    uplink: impl Fn(u16) -> Box<dyn Uplink>,
    mesh: impl FnOnce(&[Arc<GuestRam>]) -> Vec<Box<dyn Transport>>,
) -> Option<[Slice; 2]> {
    if let Err(error) = check_host() {
        println!("skipped: {error}");
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
                println!("skipped: {error}");
                return None;
            }
            ram => Arc::new(ram.unwrap()),
        });
    }
    let mut started = Vec::new();
    for ((id, transport), ram) in (0u16..).zip(mesh(&rams)).zip(rams) {
        let mut node = NodeConfig::new(SliceId(id), slices.clone(), homes.clone(), Epoch(1));
        node.replicate = replicate;
        let config = EngineConfig {
            bystanders: Vec::new(),
            core: None,
            fetch_ahead: true,
            node,
            ram: Arc::clone(&ram),
            transport,
            uplink: uplink(id),
            trace: Tracing::On,
        };
        let (handle, thread) = Engine::start(config).unwrap();
        started.push(Slice { guest: ram.slots()[0].1, ram, handle, thread });
    }
    started.try_into().ok()
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
