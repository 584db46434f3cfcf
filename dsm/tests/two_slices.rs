//! Two engines in one process, joined by shared memory, with real userfaultfd. Threads of the test
//! play the vCPUs: they touch the guest mappings.
#![expect(unsafe_code, reason = "the test touches guest memory as a vCPU would")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
// UNSAFETY: guest memory is reached by address, as KVM reaches it.

use std::ptr::with_exposed_provenance;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{JoinHandle, scope};
use std::time::Duration;
use tessera_dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HomeRange, HomeTable, NodeConfig, Uplink,
    check_host,
};
use transport::{Class, Config, shm};
use wire::{Epoch, SliceId};

const FRAMES: u64 = 1024;
const LIMIT: Duration = Duration::from_secs(60);

struct Silent;

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

struct Slice {
    handle: Handle,
    thread: JoinHandle<()>,
    guest: usize,
}

impl Slice {
    fn word(&self, frame: u64, index: usize) -> &AtomicU64 {
        let offset = usize::try_from(frame).unwrap() * 4096 + index * 8;
        // SAFETY: inside the guest mapping, which lives until the engine is joined; aligned.
        unsafe { &*with_exposed_provenance::<AtomicU64>(self.guest + offset) }
    }
}

/// Slice 0 is home of the first half of memory, slice 1 of the second. `None` where the machine
/// permits no userfaultfd.
fn two_slices() -> Option<Vec<Slice>> {
    if let Err(error) = check_host() {
        println!("skipped: {error}");
        return None;
    }
    let half = |frames, home| HomeRange { frames, home: SliceId(home) };
    let homes = HomeTable::new(vec![half(0..FRAMES / 2, 0), half(FRAMES / 2..FRAMES, 1)]).unwrap();
    let slices = vec![SliceId(0), SliceId(1)];
    let start = |(id, transport): (u16, transport::ShmTransport)| {
        let ram = Arc::new(GuestRam::new(std::slice::from_ref(&(0..FRAMES))).unwrap());
        let guest = ram.slots()[0].1;
        let node = NodeConfig::new(SliceId(id), slices.clone(), homes.clone(), Epoch(1));
        let (transport, uplink) = (Box::new(transport), Box::new(Silent));
        let (handle, thread) =
            Engine::start(EngineConfig { node, ram, transport, uplink }).unwrap();
        Slice { handle, thread, guest }
    };
    let mesh = shm::mesh(2, &Config::default()).unwrap();
    Some((0u16..).zip(mesh).map(start).collect())
}

fn stop(slices: Vec<Slice>) {
    for slice in &slices {
        slice.handle.stop();
    }
    for slice in slices {
        slice.thread.join().unwrap();
    }
}

#[test]
fn uffd_counters_of_two_slices_are_exact() {
    let Some(slices) = two_slices() else { return };
    let frames = [3, FRAMES / 2 + 3, 4, FRAMES - 1];
    const ROUNDS: u64 = 200;

    scope(|threads| {
        for slice in &slices {
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    for frame in frames {
                        slice.word(frame, 7).fetch_add(round, Ordering::SeqCst);
                    }
                }
            });
        }
    });

    for slice in &slices {
        for frame in frames {
            let bytes = slice.handle.read(frame * 4096 + 56, 8, LIMIT).unwrap();
            let total = u64::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(total, ROUNDS * (ROUNDS - 1), "frame {frame}");
        }
    }
    let report = slices[1].handle.report(LIMIT).unwrap();
    assert!(report.faults.write + report.faults.upgrade > 0, "slice 1 had to ask: {report:?}");
    stop(slices);
}

#[test]
fn uffd_messages_through_memory_arrive_in_order() {
    let Some(slices) = two_slices() else { return };
    let (writer, reader) = (&slices[0], &slices[1]);
    const LAST: u64 = 300;

    // Message passing over two pages: whoever sees the flag must see the data behind it.
    scope(|threads| {
        threads.spawn(|| {
            for value in 1..=LAST {
                writer.word(10, 0).store(value, Ordering::Release);
                writer.word(FRAMES - 10, 0).store(value, Ordering::Release);
            }
        });
        threads.spawn(|| {
            loop {
                let flag = reader.word(FRAMES - 10, 0).load(Ordering::Acquire);
                let data = reader.word(10, 0).load(Ordering::Acquire);
                assert!(data >= flag, "flag {flag} came before data {data}");
                if flag == LAST {
                    return;
                }
            }
        });
    });
    stop(slices);
}

#[test]
fn uffd_copies_of_the_vmm_are_coherent() {
    let Some(slices) = two_slices() else { return };
    let text: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
    let address = (FRAMES / 2 - 4) * 4096 + 100;

    // Across both homes, written by one slice, then seen by the other's vCPU and VMM.
    slices[0].handle.write(address, text.clone(), LIMIT).unwrap();
    let read = slices[1].handle.read(address, text.len(), LIMIT).unwrap();

    assert_eq!(read, text);
    assert_eq!(slices[1].word(FRAMES / 2 - 4, 13).load(Ordering::SeqCst), 2 << 32 | 1);
    let beyond = slices[0].handle.write(FRAMES * 4096 - 2, vec![1; 4], LIMIT);
    assert!(beyond.is_err(), "the last two bytes have no memory");
    stop(slices);
}
