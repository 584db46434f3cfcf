//! Disks of another slice.

use super::{EPOCH, OWNER, World};
use crate::back_end::{Disk, DiskDone, DiskReply, DiskRequest, DiskShape, MemoryDisk};
use crate::delegate::{ExchangeError, QUEUE_REQUESTS_MAX};
use crossbeam_channel::{Receiver, Sender, unbounded};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use wire::device::{DeviceFrame, DiskAsk, DiskStatus, Part};
use wire::{DeviceId, SliceId};

const DISK: DeviceId = DeviceId(7);
const SECTORS: u64 = 96 * 1024;

/// A disk that answers on a thread of its own and in another order.
#[derive(Debug)]
struct LateDisk {
    shape: DiskShape,
    requests: Sender<(DiskRequest, DoneSlot)>,
}

struct DoneSlot(DiskDone);

impl LateDisk {
    fn new(below: Arc<MemoryDisk>) -> Arc<Self> {
        let (requests, queue) = unbounded();
        let shape = below.shape();
        thread::spawn(move || Self::run(&below, &queue));
        Arc::new(Self { shape, requests })
    }

    fn run(below: &MemoryDisk, queue: &Receiver<(DiskRequest, DoneSlot)>) {
        while let Ok(first) = queue.recv() {
            let mut batch = vec![first];
            batch.extend(queue.try_iter());
            // The newest first.
            for (request, done) in batch.into_iter().rev() {
                below.submit(request, done.0);
            }
        }
    }
}

impl Disk for LateDisk {
    fn shape(&self) -> DiskShape {
        self.shape.clone()
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        self.requests.send((request, DoneSlot(done))).expect("the thread lives as long as this");
    }
}

/// Answers in the order of their requests; more than one for a request is seen too.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<Vec<DiskReply>>>>);

impl Answers {
    fn submit(&self, disk: &dyn Disk, request: DiskRequest) {
        let index = {
            let mut all = self.0.lock().unwrap();
            all.push(Vec::new());
            all.len() - 1
        };
        let answers = Arc::clone(&self.0);
        let done = move |reply| answers.lock().unwrap()[index].push(reply);
        disk.submit(request, Box::new(done));
    }

    fn all_in(&self) -> bool {
        self.0.lock().unwrap().iter().all(|answers| !answers.is_empty())
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().iter().map(Vec::len).sum()
    }

    fn take(&self) -> Vec<DiskReply> {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        let only = |answers: Vec<DiskReply>| {
            let [answer] = <[_; 1]>::try_from(answers).expect("exactly one answer");
            answer
        };
        all.into_iter().map(only).collect()
    }
}

/// A world with the disk, and the disk as slices 1 and 2 see it.
fn world(dice: u64) -> (World, Arc<MemoryDisk>, [Arc<dyn Disk>; 2]) {
    let world = World::new(dice);
    let below = Arc::new(MemoryDisk::new(SECTORS));
    let late = LateDisk::new(Arc::clone(&below));
    let shape = late.shape();
    world.slice(OWNER).serve_disk(DISK, late, 8).expect("a thread");
    let remote = [SliceId(1), SliceId(2)]
        .map(|slice| world.slice(slice).remote_disk(DISK, OWNER, shape.clone(), 8));
    (world, below, remote)
}

/// Places and lengths in sectors, one after the other so that none overlap.
fn places(lengths: &[u64]) -> Vec<(u64, usize)> {
    let mut next = 3;
    let place = |length: &u64| {
        let sector = next;
        next += length;
        (sector, usize::try_from(length * 512).expect("below 4 MiB"))
    };
    lengths.iter().map(place).collect()
}

fn contents(sector: u64, bytes: usize) -> Vec<u8> {
    let seed = usize::try_from(sector * 31).expect("a small disk");
    (0..bytes).map(|at| (seed + at * 7 + at / 512).to_le_bytes()[0]).collect()
}

/// Lengths in sectors: mostly small, some above one frame and some above many.
fn lengths() -> impl Strategy<Value = Vec<u64>> {
    let length = prop_oneof![4 => 1..16_u64, 2 => 100..300_u64, 1 => 1000..3000_u64];
    vec(length, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_request_is_answered_once_with_the_right_data(
        lengths in lengths(),
        dice in any::<u64>(),
    ) {
        let (mut world, below, disks) = world(dice);
        let places = places(&lengths);
        let answers = Answers::default();
        for (index, (sector, bytes)) in places.iter().enumerate() {
            let data = contents(*sector, *bytes);
            answers.submit(&*disks[index % 2], DiskRequest::Write { sector: *sector, data });
            // Some are answered before others are asked.
            if world.roll(3) == 0 {
                world.deliver().expect("honest slices");
            }
        }
        answers.submit(&*disks[0], DiskRequest::Flush);
        world.run_until(|| answers.all_in());
        prop_assert!(answers.take().iter().all(|reply| *reply == DiskReply::Done(Vec::new())));

        // Read on the other slice than the one that wrote.
        for (index, (sector, bytes)) in places.iter().enumerate() {
            let bytes = u32::try_from(*bytes).expect("below 4 MiB");
            answers.submit(&*disks[(index + 1) % 2], DiskRequest::Read { sector: *sector, bytes });
        }
        world.run_until(|| answers.all_in());
        let below = below.contents();
        for ((sector, bytes), reply) in places.iter().zip(answers.take()) {
            prop_assert!(reply == DiskReply::Done(contents(*sector, *bytes)));
            let at = usize::try_from(sector * 512).expect("a small disk");
            prop_assert!(below[at..at + bytes] == contents(*sector, *bytes));
        }
        let counts = world.slice(OWNER).counters().counts();
        prop_assert_eq!(counts.disk_served, 2 * places.len() as u64 + 1);
    }

    #[test]
    fn loss_at_any_point_answers_everything_once(
        lengths in lengths(),
        before in 0..400_usize,
        dice in any::<u64>(),
    ) {
        let (mut world, _, disks) = world(dice);
        let answers = Answers::default();
        for (index, (sector, bytes)) in places(&lengths).into_iter().enumerate() {
            let data = contents(sector, bytes);
            answers.submit(&*disks[index % 2], DiskRequest::Write { sector, data });
            let bytes = u32::try_from(bytes).expect("below 4 MiB");
            answers.submit(&*disks[index % 2], DiskRequest::Read { sector, bytes });
        }
        for _ in 0..before {
            world.deliver().expect("honest slices");
        }
        let early = answers.count();
        world.lose_owner();
        prop_assert!(answers.all_in(), "nothing waits for a lost slice");
        let replies = answers.take();
        let failed = replies.iter().filter(|reply| **reply == DiskReply::Failed).count();
        prop_assert_eq!(failed, replies.len() - early);

        // What is asked later fails at once, and late frames change nothing.
        answers.submit(&*disks[0], DiskRequest::Flush);
        answers.submit(&*disks[1], DiskRequest::Read { sector: 0, bytes: 512 });
        prop_assert_eq!(answers.take(), vec![DiskReply::Failed; 2]);
    }
}

#[test]
fn request_that_the_shape_forbids_never_leaves() {
    let (world, _, disks) = world(1);
    let answers = Answers::default();

    answers.submit(&*disks[0], DiskRequest::Read { sector: SECTORS, bytes: 512 });
    answers.submit(&*disks[0], DiskRequest::Write { sector: u64::MAX, data: vec![0; 512] });

    assert_eq!(answers.take(), [DiskReply::Failed, DiskReply::Failed]);
    assert_eq!(world.slice(SliceId(1)).counters().counts().frames_sent, 0);
}

/// What slice 1 says to the slice with the disk, and what comes of it.
fn say(world: &World, frame: &DeviceFrame<'_>) -> Result<(), ExchangeError> {
    world.slice(OWNER).frame(SliceId(1), &frame.encode(EPOCH))
}

#[test]
fn server_checks_ranges_again() {
    let (mut world, _, _) = world(1);
    let ask = DiskAsk::Read { sector: u64::MAX - 1 };
    let part = Part { device: DISK, tag: 9, total: 1024, ..Part::default() };

    say(&world, &DeviceFrame::DiskRequest { part, ask, bytes: &[] }).expect("a good frame");
    let post = Arc::clone(&world.post);
    let way = (OWNER, SliceId(1));
    let came = || post.ways.lock().unwrap().get(&way).is_some_and(|way| !way.is_empty());
    while !came() {
        thread::yield_now();
    }
    // The server has answered; nobody here asked, which the exchange of slice 1 says.
    let wrong = ExchangeError::Answer { device: DISK, from: OWNER };
    assert_eq!(world.deliver(), Err(wrong));
}

/// What a front end would never send, because it knows that the disk is read-only.
#[test]
fn server_of_a_read_only_disk_has_nothing_changed() {
    #[derive(Debug)]
    struct Fixed(AtomicBool);
    impl Disk for Fixed {
        fn shape(&self) -> DiskShape {
            DiskShape { read_only: true, ..MemoryDisk::new(SECTORS).shape() }
        }

        fn submit(&self, request: DiskRequest, done: DiskDone) {
            let changes = !matches!(request, DiskRequest::Read { .. } | DiskRequest::Flush);
            self.0.fetch_or(changes, Ordering::Relaxed);
            done(DiskReply::Failed);
        }
    }
    let world = World::new(1);
    let disk = Arc::new(Fixed(AtomicBool::new(false)));
    world.slice(OWNER).serve_disk(DISK, disk.clone(), 1).expect("a thread");
    let data = [7; 512];
    let asks = [
        (DiskAsk::Write { sector: 0 }, &data[..]),
        (DiskAsk::Discard { sector: 0, sectors: 1 }, &[]),
        (DiskAsk::WriteZeroes { sector: 0, sectors: 1, unmap: true }, &[]),
        (DiskAsk::WriteZeroes { sector: 0, sectors: 1, unmap: false }, &[]),
    ];
    for (tag, (ask, bytes)) in (0..).zip(asks) {
        let total = u32::try_from(bytes.len()).unwrap();
        let part = Part { device: DISK, tag, total, ..Part::default() };
        say(&world, &DeviceFrame::DiskRequest { part, ask, bytes }).expect("a good frame");
    }
    let way = (OWNER, SliceId(1));
    let answered = || world.post.ways.lock().unwrap().get(&way).map_or(0, |way| way.len());
    while answered() < asks.len() {
        thread::yield_now();
    }
    assert!(!disk.0.load(Ordering::Relaxed), "the disk was asked to change");
    for bytes in &world.post.ways.lock().unwrap()[&way] {
        let reply = DeviceFrame::decode(EPOCH, bytes);
        let refused = matches!(
            reply,
            Ok(DeviceFrame::DiskReply { status: DiskStatus::Failed | DiskStatus::Unsupported, .. })
        );
        assert!(refused, "{reply:?}");
    }
}

/// A disk that never answers.
#[derive(Debug)]
struct StuckDisk(Mutex<Vec<StuckDone>>);

struct StuckDone(#[expect(dead_code, reason = "kept so that it is not dropped")] DiskDone);

impl fmt::Debug for StuckDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StuckDone")
    }
}

impl Disk for StuckDisk {
    fn shape(&self) -> DiskShape {
        MemoryDisk::new(SECTORS).shape()
    }

    fn submit(&self, _: DiskRequest, done: DiskDone) {
        self.0.lock().unwrap().push(StuckDone(done));
    }
}

#[test]
fn peer_that_overruns_its_bounds_is_an_error() {
    let world = World::new(1);
    let stuck = Arc::new(StuckDisk(Mutex::default()));
    world.slice(OWNER).serve_disk(DISK, stuck, 2).expect("a thread");
    let overrun = ExchangeError::Overrun { device: DISK, from: SliceId(1) };
    let request = |total| DeviceFrame::DiskRequest {
        part: Part { device: DISK, total, ..Part::default() },
        ask: DiskAsk::Read { sector: 0 },
        bytes: &[],
    };

    // By bytes: two queues of 4 MiB.
    assert_eq!(say(&world, &request(4 << 20)), Ok(()));
    assert_eq!(say(&world, &request(4 << 20)), Ok(()));
    assert_eq!(say(&world, &request(512)), Err(overrun));
    // By number; the other slice has bounds of its own.
    let flush = DeviceFrame::DiskRequest {
        part: Part { device: DISK, ..Part::default() },
        ask: DiskAsk::Flush,
        bytes: &[],
    };
    let bytes = flush.encode(EPOCH);
    let said = |_| world.slice(OWNER).frame(SliceId(2), &bytes);
    let good = (0..=2 * QUEUE_REQUESTS_MAX).map(said).take_while(Result::is_ok).count();
    assert_eq!(good, 2 * QUEUE_REQUESTS_MAX as usize);
}

#[test]
fn front_end_that_asks_for_too_much_is_answered_at_once() {
    let world = World::new(1);
    let shape = MemoryDisk::new(SECTORS).shape();
    let disk = world.slice(SliceId(1)).remote_disk(DISK, OWNER, shape, 1);
    let answers = Answers::default();

    answers.submit(&*disk, DiskRequest::Read { sector: 0, bytes: 4 << 20 });
    answers.submit(&*disk, DiskRequest::Read { sector: 0, bytes: 512 });

    assert_eq!(answers.count(), 1);
    assert_eq!(world.slice(SliceId(1)).counters().counts().refused, 1);
    world.lose_owner();
    assert_eq!(answers.take(), [DiskReply::Failed, DiskReply::Failed]);
}

#[test]
fn frame_for_a_part_that_is_not_here_is_refused() {
    let (world, _, _) = world(1);
    let part = Part { device: DISK, ..Part::default() };
    let wrong = ExchangeError::Device { device: DISK, from: SliceId(1) };
    let stranger = SliceId(9);

    let reply = DeviceFrame::DiskReply { part, status: DiskStatus::Failed, bytes: &[] };
    assert_eq!(say(&world, &reply), Err(wrong));
    let flush = DeviceFrame::DiskRequest { part, ask: DiskAsk::Flush, bytes: &[] };
    let bytes = flush.encode(EPOCH);
    let refused = world.slice(OWNER).frame(stranger, &bytes);
    assert_eq!(refused, Err(ExchangeError::Stranger(stranger)));
    // A reply from a slice that does not have the disk.
    let refused = world.slice(SliceId(1)).frame(SliceId(2), &reply.encode(EPOCH));
    let wrong = ExchangeError::Device { device: DISK, from: SliceId(2) };
    assert_eq!(refused, Err(wrong));
}
