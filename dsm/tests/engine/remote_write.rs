//! Pages that go from memory to memory without a copy: over a stand-in that writes them as an adapter
//! would, and over RDMA where there is a port (`./x lab rdma` insists on one).

use crate::support::{
    LIMIT, Mesh, Silent, Slice, Telling, add_words, boxed, forward_to, over_shm, over_tcp,
    report_of, start_configured, start_over, stop,
};
use needs::Need;
use std::os::fd::BorrowedFd;
use std::ptr::{copy_nonoverlapping, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use tessera_dsm::{GuestRam, Mechanism, Mechanisms, Memory, Replicate, Uplink};
use transport::{Class, Config, Event, PageMemory, SendError, ShmTransport, Transport, rdma, shm};
use wire::{Epoch, SliceId};

const FRAMES: u64 = 2048;

/// Shared memory, and pages written from one alias into the other's.
struct Adapter {
    frames: ShmTransport,
    from: usize,
    to: usize,
    /// Refuses every so many-th page, as an adapter whose queue is full.
    refuses: Option<u64>,
    asked: u64,
    /// The alias of the other slice stays as long as this.
    _keep: PageMemory,
}

impl Transport for Adapter {
    forward_to!(frames);
    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), SendError> {
        self.frames.send(to, class, head, rest)
    }
    fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
        self.frames.take_heard(sink);
    }
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.frames.poll(budget, sink)
    }
    fn has_remote_write(&self, _: SliceId) -> bool {
        true
    }
    fn remote_write(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        at: u64,
        pages: u16,
    ) -> Result<(), SendError> {
        self.asked += 1;
        if self.refuses.is_some_and(|every| self.asked.is_multiple_of(every)) {
            return Err(SendError::Full);
        }
        let at = usize::try_from(at).unwrap();
        let from = with_exposed_provenance::<u8>(self.from + at);
        let bytes = usize::from(pages) * 4096;
        // SAFETY: pages of the other slice's alias, which `_keep` keeps mapped, and of ours.
        unsafe { copy_nonoverlapping(from, with_exposed_provenance_mut(self.to + at), bytes) };
        self.frames.send(to, class, head, &[])
    }
}

fn adapters(rams: &[Arc<GuestRam>], refuses: Option<u64>) -> Mesh {
    let exposed: Vec<_> = rams.iter().map(|ram| ram.remote_writable().unwrap()).collect();
    let mesh = shm::mesh(2, &Config::default()).unwrap();
    let adapter = |(id, frames): (usize, ShmTransport)| {
        let (from, to) = (exposed[id].start(), exposed[1 - id].start());
        Adapter { frames, from, to, refuses, asked: 0, _keep: exposed[1 - id].clone() }
    };
    boxed(mesh.into_iter().enumerate().map(adapter))
}

/// Each slice adds to words of pages of both homes; then slice 1 reads a run of pages of slice 0.
fn add_and_read(slices: &[Slice; 2]) {
    for frame in 100..400 {
        slices[0].word(frame, 5).store(frame, Ordering::Relaxed);
    }
    add_words(slices, [3, FRAMES / 2 + 3, 4, FRAMES - 1]);
    for frame in 100..400 {
        assert_eq!(slices[1].word(frame, 5).load(Ordering::Relaxed), frame);
        assert_eq!(slices[1].word(frame, 6).load(Ordering::Relaxed), 0);
    }
    // A page of zeros travels without contents, over whatever is there.
    slices[1].word(200, 5).store(0, Ordering::Relaxed);
    assert_eq!(slices[0].word(200, 5).load(Ordering::Relaxed), 0);
}

/// Runs it; the pages copied, written remotely and received directly by slice 0 and by slice 1.
fn counted(mesh: impl FnOnce(&[Arc<GuestRam>]) -> Mesh) -> Option<[[u64; 4]; 2]> {
    let memory = Memory::default();
    let slices = start_over(FRAMES, memory, Replicate::Nothing, |_| Box::new(Silent), mesh)?;
    add_and_read(&slices);
    let moves = [0, 1].map(|id: usize| {
        let moves = slices[id].handle.report(LIMIT).unwrap().page_moves;
        [moves.copies, moves.remote_writes_out, moves.remote_writes_in, moves.direct_received]
    });
    stop(slices);
    println!("copies, remote writes out, remote writes in, direct receives: {moves:?}");
    Some(moves)
}

#[test]
fn uffd_pages_written_remotely_are_right_and_no_processor_copies_them() {
    let Some([first, second]) = counted(|rams| adapters(rams, None)) else { return };

    assert_eq!([first[0], second[0]], [0, 0], "pages were copied");
    assert!(first[1] >= 300 && second[1] > 0, "{first:?} {second:?}");
    assert_eq!([first[2], second[2]], [second[1], first[1]]);
}

#[test]
fn uffd_pages_without_room_at_the_adapter_are_copied() {
    let Some([first, second]) = counted(|rams| adapters(rams, Some(3))) else { return };

    assert!(first[0] > 0 && first[1] > 0, "{first:?}");
    assert_eq!([first[2], second[2]], [second[1], first[1]]);
}

#[test]
fn uffd_slices_on_one_machine_write_pages_into_each_others_memory_files() {
    let Some([first, second]) = counted(over_shm) else { return };

    // The first pages may go before the memory files have come.
    assert!(first[1] >= 200 && second[1] > 0, "{first:?} {second:?}");
    assert_eq!([first[2], second[2]], [second[1], first[1]]);
}

#[test]
fn uffd_pages_of_a_run_are_received_directly_into_guest_memory() {
    let memory = Memory::default();
    let silent = |_| -> Box<dyn Uplink> { Box::new(Silent) };
    let slices = start_over(FRAMES, memory, Replicate::Nothing, silent, over_tcp);
    let Some(slices) = slices else { return };
    // The first time the pages are new to slice 1's memory file, and go through a buffer.
    for round in 1..=3 {
        for frame in 100..500 {
            slices[0].word(frame, 5).store(frame * round, Ordering::Relaxed);
            slices[0].word(frame, 511).store(frame + round, Ordering::Relaxed);
        }
        for frame in 100..500 {
            assert_eq!(slices[1].word(frame, 5).load(Ordering::Relaxed), frame * round);
            assert_eq!(slices[1].word(frame, 511).load(Ordering::Relaxed), frame + round);
        }
        let direct = slices[1].handle.report(LIMIT).unwrap().page_moves.direct_received;
        assert!(
            (direct > 0) == (round > 1),
            "{direct} pages received directly after round {round}"
        );
    }
    stop(slices);
}

#[test]
fn uffd_slices_share_memory_without_any_optional_mechanism() {
    let none = Mechanism::ALL.iter().copied().fold(Mechanisms::ALL, Mechanisms::without);
    for mesh in [over_shm, over_tcp] {
        let silent = |_| -> Box<dyn Uplink> { Box::new(Silent) };
        let memory = Memory::default();
        let configure = |node: &mut tessera_dsm::NodeConfig| node.mechanisms = none;
        let slices = start_configured(FRAMES, memory, configure, silent, mesh);
        let Some(slices) = slices else { return };
        add_and_read(&slices);
        for report in slices.each_ref().map(report_of) {
            let moves = report.page_moves;
            assert_eq!(report.without.len(), Mechanism::ALL.len());
            assert_eq!((report.prefetches, report.writes_predicted), (0, 0));
            assert_eq!((moves.remote_writes_out, moves.direct_received), (0, 0));
        }
        stop(slices);
    }
}

#[test]
fn uffd_rdma_pages_are_right_and_no_processor_copies_them() {
    if !needs::has(Need::Rdma, rdma::available()) {
        return;
    }
    let moves = counted(|rams| {
        let exposed: Vec<_> = rams.iter().map(|ram| ram.remote_writable().unwrap()).collect();
        boxed(rdma::mesh_exposing(2, &Config::default(), &exposed).unwrap())
    });
    let Some([first, second]) = moves else { return };

    assert_eq!([first[0], second[0]], [0, 0], "pages were copied");
    assert!(first[1] >= 300 && second[1] > 0, "{first:?} {second:?}");
    assert_eq!([first[2], second[2]], [second[1], first[1]]);
}

/// Without exposed memory nobody can have written the page: what is there is old.
#[test]
fn uffd_page_said_to_be_written_into_memory_that_was_not_exposed_is_refused() {
    /// Says of every page that it sends that it was written remotely.
    struct Liar(ShmTransport);
    impl Transport for Liar {
        forward_to!(0);
        fn send(
            &mut self,
            to: SliceId,
            class: Class,
            head: &[u8],
            rest: &[u8],
        ) -> Result<(), SendError> {
            match wire::Message::decode(&[head, rest].concat()) {
                Ok((_, message @ wire::Message::Data { .. }, _)) => {
                    let mut lie = Vec::new();
                    message.encode_remote_written(Epoch(1), &mut lie);
                    self.0.send(to, class, &lie, &[])
                }
                _ => self.0.send(to, class, head, rest),
            }
        }
        fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
            self.0.take_heard(sink);
        }
        fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
            self.0.poll(budget, sink)
        }
    }
    let (sender, told) = channel();
    let uplink = |_| Box::new(Telling::new(&sender)) as Box<dyn Uplink>;
    let memory = Memory::default();
    let slices = start_over(FRAMES, memory, Replicate::Nothing, uplink, |_| {
        let mesh = shm::mesh(2, &Config::default()).unwrap();
        boxed(mesh.into_iter().map(Liar))
    });
    let Some(slices) = slices else { return };
    // The reader waits for the page until the engine has ended, as a vCPU would.
    let address = std::ptr::from_ref(slices[1].word(9, 0)).expose_provenance();
    let read = Arc::new(AtomicBool::new(false));
    let told_of = Arc::clone(&read);
    std::thread::spawn(move || {
        // SAFETY: the mapping outlives this thread: the slices are leaked below.
        let word = unsafe { &*with_exposed_provenance::<AtomicU64>(address) };
        std::hint::black_box(word.load(Ordering::SeqCst));
        told_of.store(true, Ordering::SeqCst);
    });
    let error = told.recv_timeout(Duration::from_secs(30)).unwrap();

    assert!(error.contains("which it cannot reach"), "{error}");
    while !slices[1].thread.is_finished() {
        std::thread::yield_now();
    }
    // Nothing to wait for: that the page never comes can only be seen for a while.
    std::thread::sleep(Duration::from_millis(100));
    assert!(!read.load(Ordering::SeqCst), "who waits goes on without the page");
    std::mem::forget(slices);
}
