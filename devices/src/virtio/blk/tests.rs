use super::super::testing::{Buffer, Driver, Guest, MEMORY_BYTES};
use super::*;
use crate::back_end::DiskDone;
use crate::virtio::{F_EVENT_IDX, StopTimeout, Used, UsedMemory, WorkerThread};
use proptest::prelude::*;
use std::sync::Mutex;
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const BASE: u64 = 0x10_0000;
const HEADER: u64 = 0x20_0000;
const DATA: u64 = 0x30_0000;
const STATUS: u64 = 0x2f_0000;
const SECTORS: u64 = 64;

/// What a test's disk does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    AtOnce,
    Keep,
    Forget,
}

/// A disk in memory that remembers what it was asked.
struct FakeDisk {
    shape: DiskShape,
    manner: Manner,
    bytes: Mutex<Vec<u8>>,
    asked: Mutex<Vec<DiskRequest>>,
    kept: Mutex<Vec<(DiskRequest, DiskDone)>>,
}

impl fmt::Debug for FakeDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeDisk")
    }
}

impl FakeDisk {
    fn new(manner: Manner, read_only: bool) -> Arc<Self> {
        Self::of(manner, read_only, SECTORS)
    }

    fn of(manner: Manner, read_only: bool, sectors: u64) -> Arc<Self> {
        let id = *b"tessera-test-disk-01";
        let shape = DiskShape { sectors, block_bytes: 512, read_only, discard: true, id };
        let size = usize::try_from(sectors * SECTOR_BYTES).unwrap();
        let bytes = (0..size).map(|at| (at / 512).to_le_bytes()[0]).collect();
        Arc::new(Self {
            shape,
            manner,
            bytes: Mutex::new(bytes),
            asked: Mutex::default(),
            kept: Mutex::default(),
        })
    }

    fn run(&self, request: DiskRequest) -> DiskReply {
        let mut bytes = self.bytes.lock().unwrap();
        let range = |sector: u64, length: usize| {
            let start = usize::try_from(sector * SECTOR_BYTES).unwrap();
            start..start + length
        };
        match request {
            DiskRequest::Read { sector, bytes: length } => {
                DiskReply::Done(bytes[range(sector, usize::try_from(length).unwrap())].to_vec())
            }
            DiskRequest::Write { sector, data } => {
                bytes[range(sector, data.len())].copy_from_slice(&data);
                DiskReply::Done(Vec::new())
            }
            DiskRequest::Discard { .. } => DiskReply::Unsupported,
            DiskRequest::WriteZeroes { sector, sectors, .. } => {
                bytes[range(sector, usize::try_from(sectors * SECTOR_BYTES).unwrap())].fill(0);
                DiskReply::Done(Vec::new())
            }
            DiskRequest::Flush => DiskReply::Done(Vec::new()),
        }
    }

    /// Answers the newest request that was kept.
    fn answer_newest(&self) {
        let (request, done) = self.kept.lock().unwrap().pop().unwrap();
        done(self.run(request));
    }
}

impl Disk for FakeDisk {
    fn shape(&self) -> DiskShape {
        self.shape.clone()
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        self.asked.lock().unwrap().push(request.clone());
        match self.manner {
            Manner::AtOnce => done(self.run(request)),
            Manner::Keep => self.kept.lock().unwrap().push((request, done)),
            Manner::Forget => drop(done),
        }
    }
}

struct Bench {
    guest: Guest,
    driver: Driver,
    disk: Arc<FakeDisk>,
    queue: DiskQueue,
}

impl Bench {
    fn new(manner: Manner, read_only: bool, features: u64) -> Self {
        Self::with(FakeDisk::new(manner, read_only), features)
    }

    fn with(disk: Arc<FakeDisk>, features: u64) -> Self {
        let guest = Guest::new();
        let driver = Driver::new(&guest, BASE, 64);
        let bell = Doorbell::new().unwrap();
        let (setup, back) = (driver.setup(), disk.clone());
        let features = Driver::FEATURES | 1 << VIRTIO_BLK_F_FLUSH | features;
        let queue = DiskQueue::new(&guest.context, features, &setup, back, bell).unwrap();
        Self { guest, driver, disk, queue }
    }

    /// Another worker serves the queue.
    fn begin_anew(&mut self, context: &QueueContext, features: u64) {
        let (setup, disk) = (self.driver.setup(), self.disk.clone());
        let bell = Doorbell::new().unwrap();
        self.queue = DiskQueue::new(context, features, &setup, disk, bell).unwrap();
    }

    /// From now on the guest changes its memory while the device works; the last change comes first.
    fn betray(&mut self, changes: Vec<(u64, Vec<u8>)>) {
        let memory = Arc::clone(&self.guest.memory);
        let used = Arc::new(Treacherous { memory, changes: Mutex::default() });
        let context = QueueContext { used: used.clone(), ..self.guest.context.clone() };
        self.begin_anew(&context, Driver::FEATURES);
        *used.changes.lock().unwrap() = changes;
    }

    /// Sets header `number` and asks with these data buffers in between.
    fn ask(&mut self, number: u64, kind: u32, sector: u64, data: &[Buffer]) -> u16 {
        let at = HEADER + 16 * number;
        self.guest.put(at, &[kind.to_le_bytes(), [0; 4]].concat());
        self.guest.put(at + 8, &sector.to_le_bytes());
        self.guest.put(STATUS + number, &[0xee]);
        let mut buffers = vec![(at, 16, false)];
        buffers.extend(data);
        buffers.push((STATUS + number, 1, true));
        self.driver.request(&buffers)
    }

    fn status(&self, number: u64) -> u8 {
        self.guest.get(STATUS + number, 1)[0]
    }

    /// Status and length of one request, served to its end.
    fn serve(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> (u8, u32) {
        let head = self.ask(0, kind, sector, data);
        while self.queue.service() {}
        let used = self.driver.used();
        assert_eq!((used.len(), used[0].0), (1, u32::from(head)));
        (self.status(0), used[0].1)
    }
}

#[test]
fn reads_and_writes_move_scattered_data() {
    let mut bench = Bench::new(Manner::AtOnce, false, 0);
    // Data cut where no sector ends.
    let read = [(DATA, 100, true), (DATA + 0x1000, 924, true)];
    assert_eq!(bench.serve(VIRTIO_BLK_T_IN, 3, &read), (0, 1025));
    assert_eq!(bench.guest.get(DATA, 101), [vec![3; 100], vec![0]].concat());
    let second = bench.guest.get(DATA + 0x1000, 924);
    assert_eq!((second[411], second[412], second[923]), (3, 4, 4));
    bench.guest.put(DATA, &[0xab; 512]);
    let write = [(DATA, 500, false), (DATA + 500, 12, false)];
    assert_eq!(bench.serve(VIRTIO_BLK_T_OUT, 63, &write), (0, 1));
    assert_eq!(bench.disk.bytes.lock().unwrap()[63 * 512..], [0xab; 512]);
    assert_eq!(bench.guest.interrupts(), 2);
}

#[test]
fn small_requests_are_answered() {
    let mut bench = Bench::new(Manner::AtOnce, false, 0);
    assert_eq!(bench.serve(VIRTIO_BLK_T_FLUSH, 0, &[]), (0, 1));
    assert_eq!(bench.serve(VIRTIO_BLK_T_GET_ID, 0, &[(DATA, 20, true)]), (0, 21));
    assert_eq!(bench.guest.get(DATA, 20), b"tessera-test-disk-01");
    assert_eq!(bench.serve(VIRTIO_BLK_T_GET_ID, 0, &[(DATA, 19, true)]).0, 1, "too short");
    assert_eq!(bench.serve(77, 0, &[]), (2, 1), "unknown");
    assert_eq!(*bench.disk.asked.lock().unwrap(), [DiskRequest::Flush]);
}

#[test]
fn ranges_are_checked_before_they_are_asked() {
    let mut bench = Bench::new(Manner::AtOnce, false, 0);
    let mut range = |kind: u32, sector: u64, count: u32, flags: u32, bytes: u32| {
        bench.guest.put(DATA, &sector.to_le_bytes());
        bench.guest.put(DATA + 8, &[count.to_le_bytes(), flags.to_le_bytes()].concat());
        bench.serve(kind, 0, &[(DATA, bytes, false)]).0
    };
    let (discard, zeroes) = (VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES);
    assert_eq!(range(zeroes, 8, 8, 1, 16), 0);
    assert_eq!(range(discard, 0, 64, 0, 16), 2, "the disk's own answer");
    assert_eq!(range(discard, 0, 1, 1, 16), 2, "unmap means nothing here");
    assert_eq!(range(zeroes, 0, 1, 2, 16), 2, "unknown flag");
    assert_eq!(range(zeroes, 60, 5, 0, 16), 1);
    assert_eq!(range(zeroes, u64::MAX, 2, 0, 16), 1);
    assert_eq!(range(zeroes, 0, 0, 0, 16), 1);
    assert_eq!(range(zeroes, 0, 1, 0, 32), 1, "two ranges");
    let asked = [
        DiskRequest::WriteZeroes { sector: 8, sectors: 8, unmap: true },
        DiskRequest::Discard { sector: 0, sectors: 64 },
    ];
    assert_eq!(*bench.disk.asked.lock().unwrap(), asked);
}

#[test]
fn transfers_out_of_range_or_to_a_read_only_disk_fail_untouched() {
    let mut bench = Bench::new(Manner::AtOnce, true, 0);
    for (kind, sector, bytes) in [
        (VIRTIO_BLK_T_IN, SECTORS, 512),
        (VIRTIO_BLK_T_IN, SECTORS - 1, 1024),
        (VIRTIO_BLK_T_IN, u64::MAX, 512),
        (VIRTIO_BLK_T_IN, 0, 511),
        (VIRTIO_BLK_T_IN, 0, 5 << 20),
    ] {
        assert_eq!(bench.serve(kind, sector, &[(DATA, bytes, true)]), (1, 0));
    }
    assert_eq!(bench.serve(VIRTIO_BLK_T_IN, 0, &[]), (1, 1), "nothing to read");
    assert_eq!(bench.serve(VIRTIO_BLK_T_OUT, 0, &[(DATA, 512, false)]), (1, 1));
    bench.guest.put(DATA, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bench.serve(VIRTIO_BLK_T_WRITE_ZEROES, 0, &[(DATA, 16, false)]).0, 1);
    assert!(bench.disk.asked.lock().unwrap().is_empty());
}

#[test]
fn replies_may_come_in_any_order_and_only_then_bring_interrupts() {
    let mut bench = Bench::new(Manner::Keep, false, 0);
    let heads: Vec<u16> = (0..3)
        .map(|n| bench.ask(n, VIRTIO_BLK_T_IN, n, &[(DATA + 0x1000 * n, 512, true)]))
        .collect();
    assert!(!bench.queue.service());
    assert!(bench.driver.used().is_empty() && bench.guest.interrupts() == 0);
    for n in [2, 1, 0] {
        bench.disk.answer_newest();
        bench.queue.service();
        assert_eq!(bench.driver.used(), [(u32::from(heads[n]), 513)]);
        assert_eq!(bench.guest.interrupts(), 3 - n);
        assert_eq!(bench.guest.get(DATA + 0x1000 * n as u64, 1)[0], n.to_le_bytes()[0]);
    }
}

#[test]
fn answers_with_the_wrong_length_or_never_given_are_failures() {
    let mut bench = Bench::new(Manner::Forget, false, 0);
    assert_eq!(bench.serve(VIRTIO_BLK_T_IN, 0, &[(DATA, 512, true)]), (1, 0));
    let mut bench = Bench::new(Manner::Keep, false, 0);
    bench.ask(0, VIRTIO_BLK_T_IN, 0, &[(DATA, 512, true)]);
    bench.queue.service();
    let (_, done) = bench.disk.kept.lock().unwrap().pop().unwrap();
    done(DiskReply::Done(vec![1; 511]));
    bench.queue.service();
    assert_eq!((bench.status(0), bench.guest.get(DATA, 1)[0]), (1, 0));
}

#[test]
fn requests_wait_while_too_many_bytes_are_in_flight() {
    let mut bench = Bench::with(FakeDisk::of(Manner::Keep, false, 8192), 0);
    let bytes = 3 << 19;
    assert!((2 * bytes..3 * bytes).contains(&(IN_FLIGHT_BYTES as u64)));
    for n in 0..4 {
        bench.ask(n, VIRTIO_BLK_T_IN, 0, &[(DATA, u32::try_from(bytes).unwrap(), true)]);
    }
    while bench.queue.service() {}
    // Three would be more.
    assert_eq!(bench.disk.asked.lock().unwrap().len(), 2);
    for asked in 3..=4 {
        bench.disk.answer_newest();
        while bench.queue.service() {}
        assert_eq!(bench.disk.asked.lock().unwrap().len(), asked);
    }
}

#[test]
fn write_that_cannot_be_made_stable_has_failed() {
    let mut bench = Bench::new(Manner::Keep, false, 0);
    bench.begin_anew(&bench.guest.context.clone(), Driver::FEATURES);
    bench.ask(0, VIRTIO_BLK_T_OUT, 5, &[(DATA, 512, false)]);
    bench.queue.service();
    bench.disk.answer_newest();
    bench.queue.service();
    let (request, done) = bench.disk.kept.lock().unwrap().pop().unwrap();
    assert_eq!(request, DiskRequest::Flush);
    done(DiskReply::Failed);
    // A worker that comes to rest meanwhile takes it in.
    assert!(bench.queue.rest(Instant::now() + Duration::from_secs(60)));
    assert_eq!((bench.status(0), bench.driver.used().len()), (1, 1));
}

/// 5.2.6.2: it has no other way to make them so.
#[test]
fn writes_of_a_driver_that_does_not_flush_are_stable_when_they_are_given_back() {
    for flushes in [false, true] {
        let mut bench = Bench::new(Manner::Keep, false, 0);
        let features = Driver::FEATURES | u64::from(flushes) << VIRTIO_BLK_F_FLUSH;
        bench.begin_anew(&bench.guest.context.clone(), features);
        bench.ask(0, VIRTIO_BLK_T_OUT, 5, &[(DATA, 512, false)]);
        bench.queue.service();
        bench.disk.answer_newest();
        bench.queue.service();
        assert_eq!(bench.driver.used().is_empty(), !flushes);
        if !flushes {
            assert_eq!(*bench.disk.asked.lock().unwrap().last().unwrap(), DiskRequest::Flush);
            bench.disk.answer_newest();
            bench.queue.service();
        }
        assert_eq!((bench.status(0), bench.guest.fault()), (0, None));
        // What it has only read is as stable as before.
        bench.ask(1, VIRTIO_BLK_T_IN, 5, &[(DATA, 512, true)]);
        bench.queue.service();
        bench.disk.answer_newest();
        bench.queue.service();
        assert_eq!(bench.status(1), 0);
    }
}

#[test]
fn requests_in_flight_are_no_more_than_the_queue_has_entries() {
    let mut bench = Bench::new(Manner::Keep, false, 0);
    for _ in 0..70 {
        // The driver uses descriptors again that are under way: that is its own affair.
        bench.ask(0, VIRTIO_BLK_T_FLUSH, 0, &[]);
        while bench.queue.service() {}
    }
    assert_eq!(bench.disk.asked.lock().unwrap().len(), 64);
    bench.disk.answer_newest();
    while bench.queue.service() {}
    assert_eq!((bench.disk.asked.lock().unwrap().len(), bench.guest.fault()), (65, None));
}

#[test]
fn stop_waits_for_answers_and_leaves_memory_alone() {
    let mut bench = Bench::new(Manner::Keep, false, 0);
    bench.ask(0, VIRTIO_BLK_T_IN, 5, &[(DATA, 512, true)]);
    bench.queue.service();
    assert!(!bench.queue.stop(Instant::now()), "one is under way");
    bench.disk.answer_newest();
    assert!(bench.queue.stop(Instant::now() + Duration::from_secs(60)));
    assert_eq!((bench.status(0), bench.guest.get(DATA, 1)[0]), (0xee, 0));
    assert!(bench.driver.used().is_empty());
}

#[test]
fn driver_that_wants_few_interrupts_gets_few() {
    let mut bench = Bench::new(Manner::AtOnce, false, F_EVENT_IDX);
    bench.driver.want_interrupt_at(9);
    for n in 0..10 {
        assert_eq!(bench.guest.interrupts(), 0);
        bench.serve(VIRTIO_BLK_T_FLUSH, n, &[]);
    }
    assert_eq!(bench.guest.interrupts(), 1);
    assert_eq!(bench.driver.told_at(), 10, "rings for the next request");
}

#[test]
fn broken_ring_is_told_once_and_not_touched_again() {
    for buffers in [&[(HEADER, 15, false), (STATUS, 1, true)][..], &[(HEADER, 16, false)]] {
        let mut bench = Bench::new(Manner::AtOnce, false, 0);
        bench.driver.request(buffers);
        assert!(!bench.queue.service());
        bench.ask(0, VIRTIO_BLK_T_FLUSH, 0, &[]);
        assert!(!bench.queue.service());
        assert_eq!(*bench.guest.outside.faults.lock().unwrap(), [RingError::Request]);
        assert!(bench.driver.used().is_empty() && bench.guest.interrupts() == 0);
    }
}

#[test]
fn shape_is_told_by_features_and_configuration() {
    let disk = FakeDisk::new(Manner::AtOnce, false).shape();
    let bits = features(&disk, 4);
    let has = |features: u64, bit: u32| features >> bit & 1 != 0;
    assert!(has(bits, VIRTIO_BLK_F_DISCARD) && has(bits, VIRTIO_BLK_F_MQ));
    assert!(!has(bits, VIRTIO_BLK_F_RO) && !has(features(&disk, 1), VIRTIO_BLK_F_MQ));
    let fixed = features(&DiskShape { read_only: true, ..disk.clone() }, 1);
    assert!(has(fixed, VIRTIO_BLK_F_RO) && !has(fixed, VIRTIO_BLK_F_DISCARD));
    assert!(!has(fixed, VIRTIO_BLK_F_WRITE_ZEROES) && has(fixed, VIRTIO_BLK_F_FLUSH));
    let config = config(&disk, 4, QUEUE_SIZE_MAX);
    assert_eq!((&config[..8], config[34]), (&SECTORS.to_le_bytes()[..], 4));
    assert_eq!(config[8..16], [0, 0x40, 0, 0, 254, 0, 0, 0]);
}

/// A guest that changes its memory each time that the device has looked at a descriptor, and before the
/// device looks at what that describes.
struct Treacherous {
    memory: Arc<GuestMemoryMmap>,
    changes: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl UsedMemory for Treacherous {
    fn used(&self, _: u64, _: u64, _: Used) {
        if let Some((address, bytes)) = self.changes.lock().unwrap().pop() {
            self.memory.write_slice(&bytes, GuestAddress(address)).unwrap();
        }
    }
}

#[test]
fn header_is_read_once_after_its_place_was_checked() {
    let mut bench = Bench::new(Manner::AtOnce, true, 0);
    bench.betray(vec![(HEADER, VIRTIO_BLK_T_OUT.to_le_bytes().to_vec())]);
    // It becomes a write while its buffers are checked: refused as one, and not half of each.
    assert_eq!(bench.serve(VIRTIO_BLK_T_IN, 0, &[(DATA, 512, true)]), (1, 0));
    assert!(bench.disk.asked.lock().unwrap().is_empty());
}

proptest! {
    #[test]
    fn guest_that_changes_memory_between_check_and_use_gets_no_more_than_any_other(
        requests in prop::collection::vec(
            (prop_oneof![Just(0_u32), Just(1), Just(11), Just(13)], 0_u64..70,
             prop::collection::vec((DATA..DATA + 4096, prop_oneof![Just(512_u32), Just(1024), Just(16)],
                any::<bool>()), 0..3)),
            1..12,
        ),
        changes in prop::collection::vec(
            (prop_oneof![HEADER..HEADER + 192, BASE..BASE + 1024, BASE + 0x1_0000..BASE + 0x1_0040,
                BASE + 0x2_0000..BASE + 0x2_0040, DATA..DATA + 64, STATUS..STATUS + 12],
             prop::collection::vec(any::<u8>(), 1..17)),
            0..40,
        ),
        read_only in any::<bool>(),
    ) {
        let mut bench = Bench::new(Manner::AtOnce, read_only, 0);
        let before = bench.disk.bytes.lock().unwrap().clone();
        bench.betray(changes);
        for (number, (kind, sector, mut data)) in (0..).zip(requests) {
            data.sort_by_key(|buffer| buffer.2);
            bench.ask(number, kind, sector, &data);
            for _ in 0..1000 {
                if !bench.queue.service() {
                    break;
                }
            }
        }
        for request in &*bench.disk.asked.lock().unwrap() {
            prop_assert_eq!(bench.disk.shape.refusal(request), None);
        }
        if read_only {
            prop_assert!(*bench.disk.bytes.lock().unwrap() == before);
        }
    }

    #[test]
    fn any_requests_end_once_each_or_break_the_device(
        requests in prop::collection::vec(
            (prop_oneof![Just(0_u32), Just(1), Just(4), Just(8), Just(11), Just(13), any::<u32>()],
             prop_oneof![0_u64..70, any::<u64>()],
             prop::collection::vec(
                (prop_oneof![4 => DATA..DATA + 4096, 1 => MEMORY_BYTES - 1024..MEMORY_BYTES + 512],
                 prop_oneof![0_u32..3000, Just(512), Just(16)], any::<bool>()), 0..4)),
            1..15,
        ),
        manner in prop::sample::select(vec![Manner::AtOnce, Manner::Keep]),
    ) {
        let mut bench = Bench::new(manner, false, 0);
        let mut heads = Vec::new();
        for (number, (kind, sector, mut data)) in (0..).zip(requests) {
            data.sort_by_key(|buffer| buffer.2);
            heads.push(u32::from(bench.ask(number, kind, sector, &data)));
            while bench.queue.service() {}
        }
        while !bench.disk.kept.lock().unwrap().is_empty() {
            bench.disk.answer_newest();
            while bench.queue.service() {}
        }
        let mut used: Vec<u32> = bench.driver.used().iter().map(|used| used.0).collect();
        match bench.guest.fault() {
            Some(_) => prop_assert!(used.len() < heads.len()),
            None => {
                used.sort_unstable();
                heads.sort_unstable();
                prop_assert_eq!(used, heads);
            }
        }
    }
}

/// After a reset the driver may write the same sectors anew, and flush. What it asked for before must not come behind that.
#[test]
fn queue_with_a_write_in_flight_has_not_stopped() {
    for answered in [false, true] {
        let mut bench = Bench::new(Manner::Keep, false, 0);
        bench.ask(0, VIRTIO_BLK_T_OUT, 8, &[(DATA, 512, false)]);
        while bench.queue.service() {}
        assert_eq!(bench.disk.kept.lock().unwrap().len(), 1);
        if answered {
            bench.disk.answer_newest();
        }
        let Bench { queue, disk, guest: _guest, .. } = bench;
        let within = Duration::from_secs(if answered { 60 } else { 0 });
        let bell = Doorbell::new().unwrap();
        let worker = WorkerThread::spawn("reset", Box::new(queue), bell, within).unwrap();
        let stopped = worker.stop();
        assert_eq!(stopped, if answered { Ok(()) } else { Err(StopTimeout) });
        assert_eq!(disk.kept.lock().unwrap().is_empty(), answered);
    }
}
