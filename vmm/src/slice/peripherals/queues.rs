//! The queues that are at home on this slice, and the threads that serve them.
//!
//! ```text
//!   idle --Activated--> front end started, workers run --Reset--> front end stopped, workers stopped --> idle
//!                                     |        ^
//!                                    rest    resume
//!                                     v        |
//!                                    workers at rest
//!
//!   of one queue: worker runs --hand_over--> at rest, stopped --MovingQueue--> take_over at another slice: worker runs
//! ```
//! Every slice does this for every device, also where none of its queues are: a back end may have to hear of it.

use super::lock;
use super::model::{FrontEnd, Starting};
use super::move_error::MoveError;
use super::saved::{DeviceStart, MovingQueue, ServedQueue};
use crate::guest_memory::GuestMemory;
use devices::msix::MsixView;
use devices::pci::DeviceId;
use devices::virtio::{
    Activation, DeviceFaults, Doorbell, QueueContext, QueueIndex, QueueWorker, RestError,
    RingError, StopTimeout, WorkerState, WorkerThread,
};
use migrate::Saved;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wire::SliceId;

/// A worker that has not stopped by then waits for a page of a slice that hangs, or for a disk that does.
const STOP_WITHIN: Duration = Duration::from_secs(45);

/// A device on this slice.
#[derive(Debug)]
pub(super) struct Slot {
    /// The doorbell of each queue that is here. Held while one is rung: who has rung has done so before the bell went.
    bells: Mutex<Vec<Option<Doorbell>>>,
    pub(super) front_end: Arc<dyn FrontEnd>,
    pub(super) msix: Arc<MsixView>,
}

impl Slot {
    pub(super) fn new(
        local: SliceId,
        homes: &[SliceId],
        front_end: Arc<dyn FrontEnd>,
        msix: Arc<MsixView>,
    ) -> io::Result<Self> {
        let slot = Self { bells: Mutex::new(vec![None; homes.len()]), front_end, msix };
        let mut here = (0..).map(QueueIndex).zip(homes).filter(|(_, home)| **home == local);
        here.try_for_each(|(queue, _)| slot.add_bell(queue))?;
        Ok(slot)
    }

    /// Makes the doorbell of a queue that is here from now on. Those of the queues before come before.
    pub(super) fn add_bell(&self, queue: QueueIndex) -> io::Result<()> {
        let mut bells = lock(&self.bells);
        let at = usize::from(queue.0);
        let Some((before, rest)) = bells.split_at_mut_checked(at) else { return Ok(()) };
        if let Some(place) = rest.first_mut() {
            *place = Some(match self.front_end.bell(at, before) {
                Some(bell) => bell,
                None => Doorbell::new()?,
            });
        }
        Ok(())
    }

    /// These queues are not here any more. Who has rung for them has been heard by their workers.
    pub(super) fn remove_bells(&self, queues: &[QueueIndex]) {
        let mut bells = lock(&self.bells);
        for queue in queues {
            if let Some(place) = bells.get_mut(usize::from(queue.0)) {
                *place = None;
            }
        }
    }

    /// Rings for a queue; false when it is not here.
    pub(super) fn ring(&self, queue: QueueIndex) -> bool {
        let bells = lock(&self.bells);
        let bell = bells.get(usize::from(queue.0)).and_then(Option::as_ref);
        bell.map(Doorbell::ring).is_some()
    }

    /// The doorbell of a queue, if it is here.
    pub(super) fn bell(&self, queue: QueueIndex) -> Option<Doorbell> {
        lock(&self.bells).get(usize::from(queue.0))?.clone()
    }
}

/// All workers of this slice.
pub(super) struct Queues {
    memory: GuestMemory,
    faults: Arc<dyn DeviceFaults>,
    running: BTreeMap<DeviceId, Vec<(QueueIndex, WorkerThread)>>,
}

impl Queues {
    pub(super) fn new(memory: GuestMemory, faults: Arc<dyn DeviceFaults>) -> Self {
        Self { memory, faults, running: BTreeMap::new() }
    }

    fn context(&self, device: DeviceId, slot: &Slot) -> QueueContext {
        QueueContext {
            device,
            memory: Arc::clone(&self.memory.memory),
            used: Arc::new(self.memory.used_by(device.0)),
            msix: Arc::clone(&slot.msix),
            faults: Arc::clone(&self.faults),
        }
    }

    /// Starts the workers of a device's queues that are here.
    pub(super) fn start(&mut self, device: DeviceId, slot: &Slot, activation: &Activation) {
        let context = self.context(device, slot);
        let mut workers = Vec::new();
        slot.front_end.start(activation.features);
        for (queue, setup) in &activation.queues {
            let Some(bell) = slot.bell(*queue) else { continue };
            let bell = &bell;
            let starting = Starting { context: &context, queue: *queue, setup, bell, activation };
            match slot.front_end.worker(&starting) {
                Ok(Some(worker)) => match spawn(device, *queue, worker, bell) {
                    Some(worker) => workers.push((*queue, worker)),
                    // The driver may reset the device and try again. Else it would wait for ever.
                    None => context.faults.broken(device, RingError::Worker),
                },
                Ok(None) => {}
                Err(cause) => context.faults.broken(device, cause),
            }
        }
        self.running.insert(device, workers);
    }

    /// Starts the workers of a device's queues that are here, of a VM that is restored, where they were.
    ///
    /// # Errors
    /// A state is of another device, or there is no thread for a worker.
    pub(super) fn go_on(
        &mut self,
        (device, slot): (DeviceId, &Slot),
        activation: &Activation,
        mut start: DeviceStart,
    ) -> Result<(), MoveError> {
        let context = self.context(device, slot);
        let here = |(queue, _): &(QueueIndex, _)| slot.bell(*queue).is_some().then_some(*queue);
        let here: Vec<QueueIndex> = activation.queues.iter().filter_map(here).collect();
        slot.front_end.start(activation.features);
        slot.front_end.restore(&here, activation.features, start.front_end)?;
        let mut workers = Vec::new();
        for (queue, setup) in &activation.queues {
            let Some(bell) = slot.bell(*queue) else { continue };
            // One that had no worker was broken, maybe for what its driver has set up, and stays so until the driver resets the device.
            let Some(state) = start.queues.remove(&queue.0) else { continue };
            let starting =
                Starting { context: &context, queue: *queue, setup, bell: &bell, activation };
            let worker = slot.front_end.worker(&starting).map_err(MoveError::Setup)?;
            let Some(mut worker) = worker else { continue };
            worker.restore(state)?;
            // Other slices may have no devices yet: it serves when all slices go on.
            let name = format!("dev{}q{}", device.0, queue.0);
            let limits = (STOP_WITHIN, STOP_WITHIN);
            let thread = WorkerThread::spawn_at_rest(&name, worker, bell.clone(), limits)
                .map_err(|_| MoveError::Thread)?;
            workers.push((*queue, thread));
            // The former place may have had an interrupt that was masked. One too many does no harm.
            let served = slot.front_end.together(queue.0);
            let served = activation.queues.iter().filter(|(number, _)| served.contains(&number.0));
            served.for_each(|(_, setup)| slot.msix.raise(setup.vector));
        }
        self.running.insert(device, workers);
        Ok(())
    }

    /// Brings the workers of these queues to rest and stops them; what goes with each to the next slice, by queue. A queue
    /// without a worker has nothing.
    ///
    /// # Errors
    /// One does not come to rest or stop within this time.
    pub(super) fn hand_over(
        &mut self,
        (device, slot): (DeviceId, &Slot),
        queues: &[QueueIndex],
        features: u64,
        within: Duration,
    ) -> Result<BTreeMap<QueueIndex, MovingQueue>, MoveError> {
        let Some(running) = self.running.get_mut(&device) else { return Ok(BTreeMap::new()) };
        let leaves = |(queue, _): &(QueueIndex, WorkerThread)| queues.contains(queue);
        let threads = running.iter().filter(|it| leaves(it)).map(|(_, worker)| worker);
        let states = WorkerThread::rest_all(&threads.collect::<Vec<_>>(), within)?;
        let (leaving, staying) = std::mem::take(running).into_iter().partition(leaves);
        *running = staying;
        let (leaving, threads): (Vec<_>, Vec<_>) = leaving.into_iter().unzip();
        WorkerThread::stop_all(threads)?;
        let state = |(queue, worker): (QueueIndex, WorkerState)| {
            let front_end = slot.front_end.hand_over(queue, features);
            (queue, MovingQueue { worker: worker.within(MovingQueue::WORKER_BYTES), front_end })
        };
        Ok(leaving.into_iter().zip(states).map(state).collect())
    }

    /// Goes on where another slice has stopped to serve a queue, whose bell is here.
    ///
    /// # Errors
    /// The state is of another queue, or one that the driver does not use.
    pub(super) fn take_over(
        &mut self,
        (device, slot): (DeviceId, &Slot),
        queue: QueueIndex,
        activation: &Activation,
        moving: MovingQueue,
    ) -> Result<(), MoveError> {
        let context = self.context(device, slot);
        let setup = activation.queues.iter().find(|(number, _)| *number == queue);
        let (Some((_, setup)), Some(bell)) = (setup, slot.bell(queue)) else {
            return Err(MoveError::Unused(queue));
        };
        slot.front_end.take_over(queue, activation.features, moving.front_end)?;
        let starting = Starting { context: &context, queue, setup, bell: &bell, activation };
        let worker = slot.front_end.worker(&starting).map_err(MoveError::Setup)?;
        let mut worker = worker.ok_or(MoveError::Unused(queue))?;
        Saved::restore(&mut worker, moving.worker)?;
        let thread = spawn(device, queue, worker, &bell).ok_or(MoveError::Thread)?;
        let running = self.running.entry(device).or_default();
        running.push((queue, thread));
        running.sort_by_key(|(queue, _)| *queue);
        // The former place may have had an interrupt that was masked. One too many does no harm.
        let served = slot.front_end.together(queue.0);
        let served = activation.queues.iter().filter(|(number, _)| served.contains(&number.0));
        served.for_each(|(_, setup)| slot.msix.raise(setup.vector));
        Ok(())
    }

    /// Stops them. Afterwards none touches guest memory, and nothing that they asked of a disk is still to be done.
    ///
    /// # Errors
    /// That is not so: what wanted them stopped must not be acknowledged.
    pub(super) fn stop(&mut self, device: DeviceId, slot: &Slot) -> Result<(), StopTimeout> {
        slot.front_end.stop();
        let workers = self.running.remove(&device).unwrap_or_default();
        WorkerThread::stop_all(workers.into_iter().map(|(_, worker)| worker).collect())
    }

    /// Brings all of them to rest, side by side, and gives how far each has come. Those that are at rest say it again.
    ///
    /// # Errors
    /// One is not at rest within this time. All of them go on then.
    pub(super) fn rest(
        &self,
        within: Duration,
    ) -> Result<BTreeMap<DeviceId, Vec<ServedQueue>>, RestError> {
        let all = self.running.iter().flat_map(|(device, workers)| {
            workers.iter().map(|(queue, worker)| (*device, *queue, worker))
        });
        let threads: Vec<&WorkerThread> = all.clone().map(|(.., worker)| worker).collect();
        let states = WorkerThread::rest_all(&threads, within)?;
        let mut served: BTreeMap<DeviceId, Vec<ServedQueue>> = BTreeMap::new();
        for ((device, queue, _), worker) in all.zip(states) {
            served.entry(device).or_default().push(ServedQueue { queue: queue.0, worker });
        }
        Ok(served)
    }

    /// All of them go on.
    pub(super) fn resume(&self) {
        self.running.values().flatten().for_each(|(_, worker)| worker.resume());
    }
}

fn spawn(
    device: DeviceId,
    queue: QueueIndex,
    worker: Box<dyn QueueWorker>,
    bell: &Doorbell,
) -> Option<WorkerThread> {
    let name = format!("dev{}q{}", device.0, queue.0);
    // What came before the worker was there is to be looked at.
    bell.ring();
    let thread = WorkerThread::spawn(&name, worker, bell.clone(), STOP_WITHIN);
    let failed = |error: &io::Error| tracing::error!("start the thread of a device: {error}");
    thread.inspect_err(failed).ok()
}

#[cfg(test)]
mod tests {
    use super::super::disk::DiskFront;
    use super::super::rng::Rng;
    use super::super::saved::FrontEndState;
    use super::*;
    use devices::back_end::{Disk, DiskDone, DiskRequest, DiskShape, NullDisk, SwitchDisk};
    use devices::saved::NetDeviceState;
    use devices::virtio::{NetPairState, QueueSetup, QueueState};
    use devices::{InterruptMessage, InterruptSink};
    use dsm::GuestRam;
    use migrate::Invalid;
    use std::slice::from_ref;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;
    use vm_memory::{Bytes, GuestAddress};

    struct Nowhere;

    impl InterruptSink for Nowhere {
        fn deliver(&self, _: InterruptMessage) {}
    }

    struct Unheard;

    impl DeviceFaults for Unheard {
        fn broken(&self, _: DeviceId, _: RingError) {}
    }

    /// Busy until it is let go, as one that waits for a page of a slice that hangs.
    struct Stuck(Sender<()>, Receiver<()>);

    impl QueueWorker for Stuck {
        fn service(&mut self) -> bool {
            let _ = self.0.send(());
            let _ = self.1.recv();
            false
        }

        fn rest(&mut self, _: Instant) -> bool {
            true
        }

        fn save(&self) -> WorkerState {
            WorkerState::Queue(QueueState { size: 1, next_avail: 0, next_used: 0, broken: false })
        }

        fn restore(&mut self, _: WorkerState) -> Result<(), Invalid> {
            Ok(())
        }

        fn stop(&mut self, _: Instant) -> bool {
            true
        }
    }

    fn numbered(workers: Vec<WorkerThread>) -> Vec<(QueueIndex, WorkerThread)> {
        (0..).map(QueueIndex).zip(workers).collect()
    }

    /// Those of a slice on which nothing runs.
    fn none() -> Queues {
        let ram = Arc::new(GuestRam::new(from_ref(&(0..16))).unwrap());
        Queues::new(GuestMemory::new(&ram).unwrap(), Arc::new(Unheard))
    }

    #[test]
    fn reset_is_not_acknowledged_while_a_worker_runs() {
        let mut queues = none();
        let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
        let slot = Slot::new(SliceId(0), &[SliceId(0)], Arc::new(Rng), msix).unwrap();
        let worker = |within| {
            let ((go, held), (busy, is_busy)) = (channel(), channel());
            let bell = Doorbell::new().unwrap();
            let thread = WorkerThread::spawn("stuck", Box::new(Stuck(busy, held)), bell, within);
            let thread = thread.unwrap();
            is_busy.recv().unwrap();
            (thread, go)
        };
        let (hangs, go) = worker(Duration::from_millis(20));
        let (ends, gone) = worker(STOP_WITHIN);
        drop(gone);
        queues.running.insert(DeviceId(0), numbered(vec![hangs, ends]));
        assert_eq!(queues.stop(DeviceId(0), &slot), Err(StopTimeout));
        drop(go);

        let (ends, gone) = worker(STOP_WITHIN);
        drop(gone);
        queues.running.insert(DeviceId(0), numbered(vec![ends]));
        assert_eq!(queues.stop(DeviceId(0), &slot), Ok(()));
        assert_eq!(queues.stop(DeviceId(0), &slot), Ok(()), "nothing runs");
    }

    /// Answers when it must not wait any more, as a disk on a full file system.
    #[derive(Debug)]
    struct Full(Mutex<Vec<Sender<()>>>, AtomicBool);

    impl Disk for Full {
        fn shape(&self) -> DiskShape {
            NullDisk::new(8).shape()
        }

        fn submit(&self, _: DiskRequest, _: DiskDone) {}

        fn may_wait(&self, may: bool) {
            self.1.store(may, Ordering::Release);
            if !may {
                self.0.lock().unwrap().clear();
            }
        }
    }

    #[test]
    fn disk_that_waits_for_room_does_not_stop_a_reset() {
        let mut queues = none();
        let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
        let ((go, held), (busy, is_busy)) = (channel(), channel());
        let disk = Arc::new(Full(Mutex::new(vec![go]), AtomicBool::new(true)));
        let switch = SwitchDisk::new(disk.shape(), disk.clone());
        let front = Arc::new(DiskFront(Arc::new(switch)));
        let slot = Slot::new(SliceId(0), &[SliceId(0)], front, msix).unwrap();
        let bell = Doorbell::new().unwrap();
        let stuck = Box::new(Stuck(busy, held));
        let worker = WorkerThread::spawn("waits", stuck, bell, STOP_WITHIN).unwrap();
        is_busy.recv().unwrap();
        queues.running.insert(DeviceId(0), numbered(vec![worker]));

        assert_eq!(queues.stop(DeviceId(0), &slot), Ok(()));
        assert!(!disk.1.load(Ordering::Acquire));
        queues.start(DeviceId(0), &slot, &Activation { features: 0, queues: Vec::new() });
        assert!(disk.1.load(Ordering::Acquire), "the next driver's requests may wait");
    }

    /// Its driver has set it up so, and the VM ran on without it: so it does after a checkpoint.
    #[test]
    fn restored_vm_goes_on_without_a_queue_that_makes_no_sense() {
        let mut queues = none();
        let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
        let slot = Slot::new(SliceId(0), &[SliceId(0)], Arc::new(Rng), msix).unwrap();
        let beyond = 1 << 40;
        let setup = QueueSetup {
            size: 8,
            descriptors: beyond,
            driver_area: beyond,
            device_area: beyond,
            vector: None,
        };
        let queues_of = vec![(QueueIndex(0), setup)];
        let activation = Activation { features: 1 << 32, queues: queues_of };
        queues.start(DeviceId(0), &slot, &activation);
        assert_eq!(queues.running[&DeviceId(0)].len(), 0, "it is broken");
        queues.stop(DeviceId(0), &slot).unwrap();
        let start = DeviceStart {
            front_end: FrontEndState::Nothing,
            raised: Vec::new(),
            queues: BTreeMap::new(),
        };
        queues.go_on((DeviceId(0), &slot), &activation, start).unwrap();
        assert_eq!(queues.running[&DeviceId(0)].len(), 0, "and stays so");
    }

    #[test]
    fn only_queues_that_are_here_have_a_bell() {
        let msix = Arc::new(MsixView::new(3, Arc::new(Nowhere)));
        let homes = [SliceId(1), SliceId(0)];
        let slot = Slot::new(SliceId(1), &homes, Arc::new(Rng), msix).unwrap();
        assert!(slot.bell(QueueIndex(0)).is_some() && slot.bell(QueueIndex(1)).is_none());
        assert!(slot.bell(QueueIndex(2)).is_none());
    }

    /// Two slices that can see the same memory, and a driver of a source of randomness there.
    struct Pair {
        memory: GuestMemory,
        slices: [(Slot, Queues); 2],
        activation: Activation,
        asked: u16,
    }

    const ENTRIES: u16 = 8;
    const AVAILABLE: u64 = 0x2000;
    const USED: u64 = 0x3000;
    const ID: DeviceId = DeviceId(0);
    const FIRST: QueueIndex = QueueIndex(0);

    impl Pair {
        /// The queue is at the first.
        fn new() -> Self {
            let ram = Arc::new(GuestRam::new(from_ref(&(0..16))).unwrap());
            let memory = GuestMemory::new(&ram).unwrap();
            let slices = [0, 1].map(SliceId).map(|local| {
                let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
                let slot = Slot::new(local, &[SliceId(0)], Arc::new(Rng), msix).unwrap();
                (slot, Queues::new(memory.clone(), Arc::new(Unheard)))
            });
            let (descriptors, driver_area, device_area) = (0x1000, AVAILABLE, USED);
            let size = ENTRIES;
            let setup = QueueSetup { size, descriptors, driver_area, device_area, vector: None };
            let features = devices::virtio::F_VERSION_1;
            let activation = Activation { features, queues: vec![(FIRST, setup)] };
            let mut pair = Self { memory, slices, activation, asked: 0 };
            for entry in 0..u64::from(ENTRIES) {
                pair.put(0x1000 + 16 * entry, &(0x4000 + 16 * entry).to_le_bytes());
                pair.put(0x1008 + 16 * entry, &[16, 0, 0, 0, 2, 0, 0, 0]);
            }
            for (slot, queues) in &mut pair.slices {
                queues.start(ID, slot, &pair.activation);
            }
            pair
        }

        fn put(&self, at: u64, bytes: &[u8]) {
            self.memory.memory.write_slice(bytes, GuestAddress(at)).unwrap();
        }

        fn used(&self) -> u16 {
            let at = GuestAddress(USED + 2);
            u16::from_le(self.memory.memory.load(at, Ordering::SeqCst).unwrap())
        }

        /// Waits until at most so many requests are under way.
        fn wait_for(&self, left: u16) {
            let start = Instant::now();
            while self.asked.wrapping_sub(self.used()) > left {
                assert!(start.elapsed() < Duration::from_secs(60), "a request is lost");
                std::thread::yield_now();
            }
        }

        /// The driver asks, and rings where it believes the queue to be.
        fn ask(&mut self, ring_at: usize) {
            let place = AVAILABLE + 4 + 2 * u64::from(self.asked % ENTRIES);
            self.put(place, &(self.asked % ENTRIES).to_le_bytes());
            self.asked = self.asked.wrapping_add(1);
            let at = GuestAddress(AVAILABLE + 2);
            self.memory.memory.store(self.asked.to_le(), at, Ordering::SeqCst).unwrap();
            if !self.slices[ring_at].0.ring(FIRST) {
                self.slices[1 - ring_at].0.ring(FIRST);
            }
        }

        fn leave(&mut self, from: usize) -> Option<MovingQueue> {
            let (slot, queues) = &mut self.slices[from];
            slot.remove_bells(&[FIRST]);
            let states = queues.hand_over((ID, slot), &[FIRST], 0, STOP_WITHIN);
            states.unwrap().remove(&FIRST)
        }

        fn come(&mut self, to: usize, state: MovingQueue) -> Result<(), MoveError> {
            let (slot, queues) = &mut self.slices[to];
            slot.add_bell(FIRST).unwrap();
            queues.take_over((ID, slot), FIRST, &self.activation, state)
        }
    }

    #[test]
    fn no_request_is_lost_or_doubled_however_often_a_queue_moves() {
        let mut pair = Pair::new();
        for number in 0..400_usize {
            // Nobody serves the queue while it is on its way, and two more requests are made.
            pair.wait_for(ENTRIES - 2);
            // Now and then rung for where the queue is not, or while it is nowhere.
            pair.ask(number % 3 % 2);
            let from = number % 2;
            let state = pair.leave(from).unwrap();
            assert_eq!(pair.slices[from].1.rest(STOP_WITHIN), Ok(BTreeMap::new()));
            pair.ask(number % 5 % 2);
            pair.come(1 - from, state).unwrap();
        }
        pair.wait_for(0);
        let last = pair.leave(0).unwrap();
        let WorkerState::Queue(state) = last.worker else { panic!("one queue") };
        assert_eq!((state.next_avail, state.next_used), (pair.asked, pair.asked));
        assert_eq!(pair.used(), pair.asked);
    }

    #[test]
    fn state_that_does_not_fit_is_refused() {
        let mut pair = Pair::new();
        let good = pair.leave(0).unwrap();
        assert_eq!(pair.leave(0), None, "nobody serves it any more");
        let WorkerState::Queue(state) = good.worker else { panic!("one queue") };
        let of = |worker| MovingQueue { worker, ..good.clone() };
        let receive = QueueState { size: 16, ..state };
        let net = NetPairState { receive, transmit: receive, packets: Vec::new() };
        for bad in [
            of(WorkerState::Queue(receive)),
            of(WorkerState::Pair(net)),
            MovingQueue {
                front_end: FrontEndState::Net(NetDeviceState { pairs_in_use: 1 }),
                ..good.clone()
            },
        ] {
            assert!(matches!(pair.come(1, bad), Err(MoveError::Unfit(_))));
        }
        let activation = std::mem::take(&mut pair.activation.queues);
        assert_eq!(pair.come(1, good.clone()), Err(MoveError::Unused(FIRST)));
        pair.activation.queues = activation;
        pair.come(1, good.clone()).unwrap();
        assert_eq!(pair.leave(1), Some(good));
    }

    #[test]
    fn ring_that_was_heard_came_before_the_bell_went() {
        let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
        let slot = Slot::new(SliceId(0), &[SliceId(0)], Arc::new(Rng), msix).unwrap();
        for _ in 0..50 {
            slot.add_bell(FIRST).unwrap();
            // What a driver has put into the queue.
            let (index, begun) = (AtomicU64::new(0), AtomicBool::new(false));
            let drive = || {
                let mut heard = 0;
                loop {
                    let put = index.fetch_add(1, Ordering::SeqCst) + 1;
                    if !slot.ring(FIRST) {
                        return heard;
                    }
                    heard = put;
                    begun.store(true, Ordering::SeqCst);
                }
            };
            let (heard, seen) = std::thread::scope(|scope| {
                let driver = scope.spawn(drive);
                while !begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                slot.remove_bells(&[FIRST]);
                // The look of the worker at the new place is later still.
                let seen = index.load(Ordering::SeqCst);
                (driver.join().unwrap(), seen)
            });
            assert!(heard > 0 && heard <= seen, "{heard} was heard, {seen} seen");
            assert!(!slot.ring(FIRST));
        }
    }
}
