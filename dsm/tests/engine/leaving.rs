//! A slice leaves that shares memory with another. Two engines in one process, real userfaultfd, threads of the test in
//! the role of vCPUs.

use crate::support::{LIMIT, Mesh, Slice, over_shm, over_tcp, report_of, saved, start_over, stop};
use dsm_protocol::CannotLeave;
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::Duration;
use tessera_dsm::{EngineError, GuestRam, LeaveError, Memory, Replicate, Uplink};
use transport::Class;
use wire::{Epoch, Gfn, SliceId, VcpuId};

const CHUNK: u64 = 512;
/// Four chunks and a bit for each slice: one chunk has pages of both homes, and the last one is no whole chunk.
pub(crate) const FRAMES: u64 = 8 * CHUNK + 200;
pub(crate) const HALF: u64 = FRAMES / 2;
const LEAVER: SliceId = SliceId(1);
pub(crate) const ROOT: u64 = 3;
/// Entries that make the pages `BELOW` tables.
pub(crate) const ENTRIES: [u64; 2] = [8 << 12 | 0x63, 9 << 12 | 0x63];
const BELOW: [u64; 2] = [8, 9];
/// How long it is watched that nothing happens. What is wrong happens at once.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

/// A VMM that passes on what goes wrong, and whose slice it was.
pub(crate) struct Told(pub(crate) u16, pub(crate) Mutex<Sender<(u16, String)>>);

impl Told {
    fn tell(&self, what: String) {
        // The test may be over.
        let _ = self.1.lock().unwrap().send((self.0, what));
    }
}

impl Uplink for Told {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {
        self.tell("a frame came".into());
    }
    fn lost(&mut self, peer: SliceId, cause: String) {
        self.tell(format!("{peer} is lost: {cause}"));
    }
    fn fatal(&mut self, error: EngineError) {
        self.tell(format!("the engine failed: {error:?}"));
    }
    fn sample_roots(&mut self) {}
}

pub(crate) type Troubles = Receiver<(u16, String)>;

fn two_slices(
    memory: Memory,
    mesh: fn(&[Arc<GuestRam>]) -> Mesh,
) -> Option<([Slice; 2], Troubles)> {
    let (sender, troubles) = channel();
    let uplink = |id| Box::new(Told(id, Mutex::new(sender.clone()))) as Box<dyn Uplink>;
    let slices = start_over(FRAMES, memory, Replicate::KernelTables, uplink, mesh)?;
    Some((slices, troubles))
}

/// Parts of a slice's guest mapping that userfaultfd watches (`um`, `uw`, `ui` in `/proc/self/smaps`).
pub(crate) fn watched_parts(slice: &Slice) -> usize {
    let end = slice.guest + usize::try_from(FRAMES).unwrap() * 4096;
    let mut inside = false;
    let mut watched = 0;
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let start = range.and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
        if let Some(start) = start {
            inside = (slice.guest..end).contains(&start);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            let is_watch = |flag: &str| matches!(flag, "um" | "uw" | "ui");
            watched += usize::from(flags.split_whitespace().any(is_watch));
        }
    }
    watched
}

/// Counters are no entries: bits 5 and 6 of what stands in a table are each slice's own.
fn is_data(page: &u64) -> bool {
    *page != ROOT && !BELOW.contains(page)
}

/// Raises word 1 or 2 of all pages but the tables, in order and far from each other, until it is told to stop.
pub(crate) fn add(slice: &Slice, word: usize, over: &AtomicBool) -> u64 {
    let mut added = 0;
    for round in 0_u64.. {
        for page in (0..200).map(|n| (round * 200 + n) % FRAMES).filter(is_data) {
            slice.word(page, word).fetch_add(1, Ordering::SeqCst);
            added += 1;
        }
        for page in (0..50).map(|n| (round + n) * 977 % FRAMES).filter(is_data) {
            slice.word(page, word).fetch_add(1, Ordering::SeqCst);
            added += 1;
        }
        if over.load(Ordering::SeqCst) {
            break;
        }
    }
    added
}

/// Both slices use all of memory, and a table is replicated; then the slice that leaves gives up its homes and pages.
fn use_and_empty(slices: &[Slice; 2]) -> [u64; 2] {
    let [stays, leaves] = slices;
    for (vcpu, slice) in (0..).zip(slices) {
        slice.handle.set_root(VcpuId(vcpu), Gfn(ROOT));
    }
    let _ = leaves.word(ROOT, 301).load(Ordering::SeqCst);
    stays.word(ROOT, 301).store(ENTRIES[0], Ordering::SeqCst);
    leaves.word(ROOT, 302).store(ENTRIES[1], Ordering::SeqCst);
    let over = AtomicBool::new(false);
    scope(|threads| {
        let over = &over;
        let [one, two] = [(stays, 1), (leaves, 2)]
            .map(|(slice, word)| threads.spawn(move || add(slice, word, over)));
        sleep(Duration::from_millis(100));
        stays.handle.move_home(HALF..FRAMES, SliceId(0), Epoch(2), LIMIT).unwrap();
        over.store(true, Ordering::SeqCst);
        let added = [one, two].map(|adder| adder.join().unwrap());
        stays.handle.pull_home(0..FRAMES, LEAVER, LIMIT).unwrap();
        added
    })
}

pub(crate) fn sum(slice: &Slice, word: usize, pages: Range<u64>) -> u64 {
    let pages = pages.filter(is_data);
    pages.map(|page| slice.word(page, word).load(Ordering::SeqCst)).sum()
}

#[test]
fn uffd_slice_leaves_and_the_other_has_all_memory_unwatched() {
    let meshes = [over_shm as fn(&[Arc<GuestRam>]) -> Mesh, over_tcp];
    let cases = [(Memory::Memfd, 0), (Memory::Memfd, 1), (Memory::Anonymous, 0)];
    for (memory, mesh) in cases {
        let Some((slices, troubles)) = two_slices(memory, meshes[mesh]) else { return };
        let added = use_and_empty(&slices);
        let states = saved(&slices);
        assert!(states[0].replicas.iter().any(|replica| replica.page == Gfn(ROOT)));
        let [stays, leaves] = slices;
        assert!(watched_parts(&stays) > 0);

        stays.handle.may_part_with(LEAVER, LIMIT).unwrap();
        stays.handle.part_with(LEAVER, LIMIT).unwrap();
        assert_eq!(watched_parts(&stays), 0, "{memory}");
        let alone = stays.handle.save(LIMIT).unwrap();
        stays.handle.go_on();
        // Its transport is closed with it.
        leaves.handle.stop();
        leaves.thread.join().unwrap();

        assert_eq!((alone.slices.as_slice(), alone.channels.len()), (&[SliceId(0)][..], 0));
        assert_eq!((alone.replicas.len(), alone.exclusive.pages()), (0, FRAMES));
        let before = report_of(&stays);
        assert_eq!([1, 2].map(|word| sum(&stays, word, 0..FRAMES)), added, "{memory}");
        let entries = [301, 302].map(|index| stays.word(ROOT, index).load(Ordering::SeqCst));
        assert_eq!(entries, ENTRIES);
        for page in 0..FRAMES {
            stays.word(page, 5).store(page, Ordering::SeqCst);
        }
        sleep(QUIET);
        let now = report_of(&stays);
        assert_eq!((before.faults, before.faults_local), (now.faults, now.faults_local));
        assert_eq!((now.replica_pages, now.chunks.shared_now), (0, 0), "{:?}", now.chunks);
        // What must not overtake table writes waits for nobody any more.
        assert!(stays.handle.read(5 * 4096 + 40, 8, LIMIT).unwrap() == 5_u64.to_le_bytes());
        assert_eq!(sum(&stays, 5, 0..FRAMES), (0..FRAMES).filter(is_data).sum(), "{memory}");
        let told: Vec<_> = troubles.try_iter().filter(|(slice, _)| *slice == 0).collect();
        assert!(told.is_empty(), "{told:?}");
        stays.handle.stop();
        stays.thread.join().unwrap();
    }
}

/// A VMM that counts how often its engine has looked at what its peers sent.
struct Looks(Arc<AtomicUsize>);

impl Uplink for Looks {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn looked(&mut self) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst);
        true
    }
    fn lost(&mut self, _: SliceId, _: String) {}
    fn fatal(&mut self, _: EngineError) {}
    fn sample_roots(&mut self) {}
}

/// A slice of devices would take it for lost, and so would the one that leaves, which has not been told that it has left.
#[test]
fn uffd_engine_speaks_to_others_while_it_ends_the_watch_over_much_memory() {
    const PIECES: usize = 5;
    let frames = u64::try_from(PIECES - 1).unwrap() * 32768 + 200;
    let looks = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let uplink = |id| Box::new(Looks(Arc::clone(&looks[usize::from(id)]))) as Box<dyn Uplink>;
    let Some(slices) = start_over(frames, Memory::Memfd, Replicate::Nothing, uplink, over_shm)
    else {
        return;
    };
    let stays = &slices[0].handle;
    stays.move_home(frames / 2..frames, SliceId(0), Epoch(2), LIMIT).unwrap();
    stays.pull_home(0..frames, LEAVER, LIMIT).unwrap();
    saved(&slices);
    let before = looks[0].load(Ordering::SeqCst);

    stays.part_with(LEAVER, LIMIT).unwrap();

    let looked = looks[0].load(Ordering::SeqCst) - before;
    assert!(looked >= PIECES, "{looked} times for {PIECES} pieces");
    stop(slices);
}

#[test]
fn uffd_slice_with_a_part_in_memory_does_not_leave() {
    let Some((slices, troubles)) = two_slices(Memory::Memfd, over_shm) else { return };
    let [stays, leaves] = &slices;
    leaves.word(7, 1).store(1, Ordering::SeqCst);
    let ask = || {
        let answers =
            [stays.handle.may_part_with(LEAVER, LIMIT), stays.handle.part_with(LEAVER, LIMIT)];
        assert_eq!(answers[0], answers[1]);
        answers[1]
    };
    assert_eq!(ask(), Err(LeaveError::Runs));

    saved(&slices);
    assert_eq!(ask(), Err(LeaveError::Refused(CannotLeave::Home(LEAVER, Gfn(HALF)))));
    slices.iter().for_each(|slice| slice.handle.go_on());
    stays.handle.move_home(HALF..FRAMES, SliceId(0), Epoch(2), LIMIT).unwrap();

    saved(&slices);
    assert_eq!(ask(), Err(LeaveError::Refused(CannotLeave::OnlyHolder(LEAVER, Gfn(7)))));
    let other = stays.handle.may_part_with(SliceId(2), LIMIT);
    assert_eq!(other, Err(LeaveError::Refused(CannotLeave::NotAMember(SliceId(2)))));
    slices.iter().for_each(|slice| slice.handle.go_on());

    // Both go on as they were.
    assert_eq!(stays.word(7, 1).fetch_add(1, Ordering::SeqCst), 1);
    assert_eq!(leaves.word(7, 1).fetch_add(1, Ordering::SeqCst), 2);
    assert!(troubles.try_iter().next().is_none());
    stop(slices);
}
