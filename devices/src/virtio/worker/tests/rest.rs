//! Workers that are brought to rest, told to go on, and moved to where a process goes on with their state.

use super::{Counting, LONG, STATE};
use crate::back_end::{DISK_ID_BYTES, Disk, DiskDone, DiskReply, DiskRequest, DiskShape};
use crate::saved::testing::{damage, through_bytes};
use crate::virtio::blk::DiskQueue;
use crate::virtio::testing::{Driver, Guest};
use crate::virtio::{
    Doorbell, NetPairState, QUEUE_SIZE_MAX, QueueState, QueueWorker, RestError, WorkerState,
    WorkerThread,
};
use migrate::Invalid;
use proptest::prelude::*;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;

const BASE: u64 = 0x10_0000;
const HEADER: u64 = 0x20_0000;
const STATUS: u64 = 0x2f_0000;
const DATA: u64 = 0x30_0000;
const SHORT: Duration = Duration::from_millis(10);

/// A disk that keeps requests until somebody has them answered.
#[derive(Default)]
struct KeepingDisk {
    kept: Mutex<Vec<(DiskRequest, DiskDone)>>,
    asked: AtomicUsize,
    /// Sectors written, in order.
    written: Mutex<Vec<u64>>,
}

impl fmt::Debug for KeepingDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepingDisk")
    }
}

impl Disk for KeepingDisk {
    fn shape(&self) -> DiskShape {
        let id = [0; DISK_ID_BYTES];
        DiskShape { sectors: 1 << 20, block_bytes: 512, read_only: false, discard: false, id }
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        self.kept.lock().unwrap().push((request, done));
        self.asked.fetch_add(1, Ordering::SeqCst);
    }
}

impl KeepingDisk {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Answers what is kept, the newest first.
    fn answer(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        for (request, done) in kept.into_iter().rev() {
            if let DiskRequest::Write { sector, .. } = request {
                self.written.lock().unwrap().push(sector);
            }
            done(DiskReply::Done(Vec::new()));
        }
    }
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "it never comes");
        thread::yield_now();
    }
}

/// A driver, a disk, and the worker between them.
struct Rig {
    guest: Guest,
    driver: Driver,
    disk: Arc<KeepingDisk>,
    bell: Doorbell,
    worker: WorkerThread,
    asked: u64,
    used: Vec<(u32, u32)>,
}

impl Rig {
    fn new() -> Self {
        let guest = Guest::new();
        let driver = Driver::new(&guest, BASE, QUEUE_SIZE_MAX);
        let disk = Arc::<KeepingDisk>::default();
        let (worker, bell) = Self::worker(&guest, &driver, &disk, None);
        Self { guest, driver, disk, bell, worker, asked: 0, used: Vec::new() }
    }

    /// A worker that is made anew, perhaps with the state of another.
    fn worker(
        guest: &Guest,
        driver: &Driver,
        disk: &Arc<KeepingDisk>,
        state: Option<WorkerState>,
    ) -> (WorkerThread, Doorbell) {
        let (bell, disk, setup) = (Doorbell::new().unwrap(), disk.clone(), driver.setup());
        let features = Driver::FEATURES | 1 << VIRTIO_BLK_F_FLUSH;
        let mut queue =
            DiskQueue::new(&guest.context, features, &setup, disk, bell.clone()).unwrap();
        if let Some(state) = state {
            queue.restore(through_bytes(&state)).unwrap();
        }
        (WorkerThread::spawn("disk", Box::new(queue), bell.clone(), LONG).unwrap(), bell)
    }

    /// Asks for so many writes, each of a sector of its own, without ringing.
    fn ask(&mut self, requests: u64) {
        for _ in 0..requests {
            let at = HEADER + 16 * self.asked;
            self.guest.put(at, &[1, 0, 0, 0, 0, 0, 0, 0]);
            self.guest.put(at + 8, &self.asked.to_le_bytes());
            self.guest.put(STATUS + self.asked, &[0xee]);
            let status = STATUS + self.asked;
            self.driver.request(&[(at, 16, false), (DATA, 512, false), (status, 1, true)]);
            self.asked += 1;
        }
    }

    fn rest(&self, within: Duration) -> Result<QueueState, RestError> {
        let states = WorkerThread::rest_all(&[&self.worker], within)?;
        let [WorkerState::Queue(state)] = states[..] else { panic!("one queue: {states:?}") };
        Ok(state)
    }

    /// Stops the worker at rest and lets another go on.
    fn move_over(&mut self, state: QueueState) {
        let state = Some(WorkerState::Queue(state));
        let (worker, bell) = Self::worker(&self.guest, &self.driver, &self.disk, state);
        let old = std::mem::replace(&mut self.worker, worker);
        self.bell = bell;
        assert_eq!(old.stop(), Ok(()));
    }

    fn collect(&mut self) -> usize {
        self.used.extend(self.driver.used());
        self.used.len()
    }

    /// All that was asked has been done once and was answered once.
    fn check_end(&mut self) {
        let mut heads: Vec<u32> = self.used.iter().map(|(head, _)| *head).collect();
        heads.sort_unstable();
        let all = 0..u32::try_from(self.asked).unwrap();
        assert_eq!(heads, all.map(|number| 3 * number).collect::<Vec<_>>());
        let mut written = self.disk.written.lock().unwrap().clone();
        written.sort_unstable();
        assert_eq!(written, (0..self.asked).collect::<Vec<_>>());
        let count = usize::try_from(self.asked).unwrap();
        assert_eq!(self.guest.get(STATUS, count), vec![0; count]);
    }
}

#[test]
fn requests_in_flight_are_finished_before_a_worker_rests() {
    let mut rig = Rig::new();
    rig.ask(3);
    rig.bell.ring();
    wait_until(|| rig.disk.asked() == 3);
    let (disk, resting) = (Arc::clone(&rig.disk), AtomicBool::new(false));
    let state = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(3 * SHORT);
            assert!(!resting.load(Ordering::SeqCst), "nothing is answered yet");
            disk.answer();
        });
        let state = rig.rest(LONG).unwrap();
        resting.store(true, Ordering::SeqCst);
        state
    });
    assert_eq!(state, QueueState { size: 256, next_avail: 3, next_used: 3, broken: false });
    assert_eq!((rig.collect(), rig.guest.interrupts() > 0), (3, true));
    rig.check_end();
}

#[test]
fn rest_that_takes_too_long_is_an_error_and_the_worker_goes_on() {
    let mut rig = Rig::new();
    rig.ask(1);
    rig.bell.ring();
    wait_until(|| rig.disk.asked() == 1);
    let error = rig.rest(SHORT).unwrap_err();
    assert_eq!(error, RestError::InFlight { worker: "disk".into(), within: SHORT });
    rig.ask(2);
    rig.bell.ring();
    wait_until(|| rig.disk.asked() == 3);
    rig.disk.answer();
    wait_until(|| rig.collect() == 3);
    rig.check_end();
}

#[test]
fn what_comes_at_rest_is_served_after_it() {
    for rung in [true, false] {
        let mut rig = Rig::new();
        rig.rest(LONG).unwrap();
        rig.ask(2);
        if rung {
            rig.bell.ring();
        }
        thread::sleep(2 * SHORT);
        assert_eq!(rig.disk.asked(), 0, "it rests");
        // Asked again it is still at rest.
        assert_eq!(rig.rest(LONG).unwrap().next_avail, 0);
        rig.worker.resume();
        wait_until(|| rig.disk.asked() == 2);
        rig.disk.answer();
        wait_until(|| rig.collect() == 2);
        rig.check_end();
    }
}

#[test]
fn all_go_on_when_one_cannot_rest() {
    let mut rigs = [Rig::new(), Rig::new()];
    rigs[1].ask(1);
    rigs[1].bell.ring();
    wait_until(|| rigs[1].disk.asked() == 1);
    let [one, two] = rigs;
    let error = {
        let workers = [one.worker, two.worker];
        let error = WorkerThread::rest_all(&workers.each_ref(), SHORT).unwrap_err();
        let Rig { guest, mut driver, disk, bell, .. } = one;
        guest.put(HEADER, &[1, 0, 0, 0, 0, 0, 0, 0]);
        driver.request(&[(HEADER, 16, false), (DATA, 512, false), (STATUS, 1, true)]);
        bell.ring();
        wait_until(|| disk.asked() == 1);
        disk.answer();
        two.disk.answer();
        assert_eq!(WorkerThread::stop_all(workers.into()), Ok(()));
        error
    };
    assert!(matches!(error, RestError::InFlight { .. }), "{error}");
}

#[test]
fn worker_that_does_not_come_back_from_serving_is_busy_and_never_rests_later() {
    let (served, calls) = channel();
    let (open, gate) = sync_channel(0);
    let stopped = Arc::new(AtomicUsize::new(0));
    let worker =
        Counting { served, count: 0, again: 0, stopped: Arc::clone(&stopped), gate: Some(gate) };
    let bell = Doorbell::new().unwrap();
    let thread = WorkerThread::spawn("busy", Box::new(worker), bell.clone(), LONG).unwrap();
    assert_eq!(calls.recv_timeout(LONG), Ok(1));
    let error = WorkerThread::rest_all(&[&thread], SHORT).unwrap_err();
    assert_eq!(error, RestError::Busy { worker: "busy".into(), within: SHORT });
    drop(open);
    let next = calls.recv_timeout(LONG).unwrap();
    bell.ring();
    assert!(calls.recv_timeout(LONG).unwrap() > next);
    // Dropped at rest, it ends.
    assert_eq!(WorkerThread::rest_all(&[&thread], LONG), Ok(vec![WorkerState::Queue(STATE)]));
    drop(thread);
    wait_until(|| stopped.load(Ordering::SeqCst) == 1);
}

/// One wait of the bell takes the rings of all of them.
#[test]
fn orders_that_came_while_a_worker_was_busy_are_all_taken() {
    let (served, calls) = channel();
    let (open, gate) = sync_channel(0);
    let stopped = Arc::new(AtomicUsize::new(0));
    let worker =
        Counting { served, count: 0, again: 0, stopped: Arc::clone(&stopped), gate: Some(gate) };
    let bell = Doorbell::new().unwrap();
    let thread = WorkerThread::spawn("busy", Box::new(worker), bell, LONG).unwrap();
    assert_eq!(calls.recv_timeout(LONG), Ok(1));
    for _ in 0..3 {
        assert!(WorkerThread::rest_all(&[&thread], SHORT).is_err());
    }
    drop(open);
    assert_eq!(WorkerThread::rest_all(&[&thread], LONG), Ok(vec![WorkerState::Queue(STATE)]));
    assert_eq!(WorkerThread::stop_all(vec![thread]), Ok(()));
    assert_eq!(stopped.load(Ordering::SeqCst), 1);
}

/// Dies at its first service; what it holds is dropped then.
struct Dying {
    _alive: Sender<()>,
}

impl QueueWorker for Dying {
    fn service(&mut self) -> bool {
        panic!("on purpose");
    }

    fn rest(&mut self, _deadline: Instant) -> bool {
        true
    }

    fn save(&self) -> WorkerState {
        WorkerState::Queue(STATE)
    }

    fn restore(&mut self, _state: WorkerState) -> Result<(), Invalid> {
        Ok(())
    }

    fn stop(&mut self, _deadline: Instant) -> bool {
        true
    }
}

#[test]
fn worker_that_has_ended_does_not_rest() {
    let bell = Doorbell::new().unwrap();
    let (alive, dead) = channel();
    let dying = Box::new(Dying { _alive: alive });
    let thread = WorkerThread::spawn("dying", dying, bell, LONG).unwrap();
    assert_eq!(dead.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    let error = WorkerThread::rest_all(&[&thread], LONG).unwrap_err();
    assert_eq!(error, RestError::Ended { worker: "dying".into() });
}

#[test]
fn states_of_other_queues_are_refused() {
    let rig = Rig::new();
    let setup = rig.driver.setup();
    let features = Driver::FEATURES | 1 << VIRTIO_BLK_F_FLUSH;
    let bell = Doorbell::new().unwrap();
    let queue = DiskQueue::new(&rig.guest.context, features, &setup, rig.disk.clone(), bell);
    let mut worker: Box<dyn QueueWorker> = Box::new(queue.unwrap());
    let fresh = worker.save();
    let state = QueueState { size: 256, next_avail: 7, next_used: 7, broken: false };
    let bad = [
        QueueState { size: 128, ..state },
        QueueState { size: 0, ..state },
        QueueState { size: 300, ..state },
        QueueState { size: 512, ..state },
        QueueState { next_used: 6, ..state },
    ];
    for bad in bad {
        migrate::Saved::restore(&mut worker, WorkerState::Queue(bad)).unwrap_err();
        assert_eq!(worker.save(), fresh, "nothing has changed");
    }
    let pair = NetPairState { receive: state, transmit: state, packets: vec![] };
    migrate::Saved::restore(&mut worker, WorkerState::Pair(pair)).unwrap_err();
    damage(&fresh, 0x01, |state| drop(worker.restore(state)));
    let broken = QueueState { next_used: 6, broken: true, ..state };
    migrate::Saved::restore(&mut worker, WorkerState::Queue(broken)).unwrap();
    assert!(!worker.service(), "a broken queue is not served");
    assert_eq!(worker.save(), WorkerState::Queue(broken));
}

/// What happens to a worker: requests, a ring, a rest, going on, and going on elsewhere.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u64, bool),
    Rest,
    Resume,
    Move,
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u64..5, any::<bool>()).prop_map(|(requests, ring)| Step::Ask(requests, ring)),
        2 => Just(Step::Rest),
        1 => Just(Step::Resume),
        2 => Just(Step::Move),
        1 => Just(Step::Pause),
    ]
}

/// Runs the steps; the disk is answered by another thread.
fn live(rig: &mut Rig, steps: &[Step]) {
    let mut at_rest: Option<(QueueState, usize)> = None;
    for step in steps {
        match step {
            Step::Ask(requests, ring) => {
                rig.ask(*requests);
                if *ring {
                    rig.bell.ring();
                }
            }
            Step::Rest | Step::Move if at_rest.is_none() => {
                let state = rig.rest(LONG).unwrap();
                let asked = rig.disk.asked();
                assert!(rig.disk.kept.lock().unwrap().is_empty(), "nothing is under way");
                assert_eq!((rig.collect(), usize::from(state.next_used)), (asked, asked));
                at_rest = Some((state, asked));
            }
            Step::Rest => {}
            Step::Pause => thread::sleep(Duration::from_micros(300)),
            Step::Resume | Step::Move => {
                let Some((state, asked)) = at_rest.take() else { continue };
                assert_eq!(rig.disk.asked(), asked, "nothing was begun at rest");
                if matches!(step, Step::Move) { rig.move_over(state) } else { rig.worker.resume() }
            }
        }
    }
    // It looks at its rings whatever has been rung.
    rig.rest(LONG).unwrap();
    rig.worker.resume();
    let all = usize::try_from(rig.asked).unwrap();
    wait_until(|| rig.collect() == all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn nothing_is_lost_or_done_twice_however_often_a_worker_rests_and_moves(
        steps in prop::collection::vec(step(), 0..20),
    ) {
        let mut rig = Rig::new();
        let (disk, over) = (Arc::clone(&rig.disk), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    disk.answer();
                    thread::sleep(Duration::from_micros(100));
                }
            });
            let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(&mut rig, &steps)));
            over.store(true, Ordering::SeqCst);
            if let Err(cause) = lived {
                std::panic::resume_unwind(cause);
            }
        });
        rig.check_end();
        prop_assert_eq!(rig.worker.stop(), Ok(()));
    }
}

/// What a driver has asked for before is served once the worker is told to go on.
#[test]
fn worker_that_begins_at_rest_serves_nothing_before_it_is_told_to() {
    let (served, calls) = channel();
    let counting = Counting { served, count: 0, again: 0, stopped: Arc::default(), gate: None };
    let bell = Doorbell::new().unwrap();
    bell.ring();
    let worker = WorkerThread::spawn_at_rest("rests", Box::new(counting), bell, (LONG, LONG));
    let worker = worker.unwrap();
    let states = WorkerThread::rest_all(&[&worker], LONG).unwrap();
    assert_eq!(states, [WorkerState::Queue(STATE)]);
    assert!(calls.try_recv().is_err(), "it serves");
    worker.resume();
    assert_eq!(calls.recv_timeout(LONG), Ok(1));
    assert_eq!(worker.stop(), Ok(()));
}
