//! The queues that are at home on this slice, and the threads that serve them.
//!
//! ```text
//!   idle --Activated--> front end started, workers run --Reset--> front end stopped, workers stopped --> idle
//!                                     |        ^
//!                                    rest    resume
//!                                     v        |
//!                                    workers at rest
//! ```
//! Every slice does this for every device, also where none of its queues are: a back end may have to hear of it.

use super::model::{FrontEnd, Starting};
use super::saved::ServedQueue;
use crate::guest_memory::GuestMemory;
use devices::msix::MsixView;
use devices::pci::DeviceId;
use devices::virtio::{
    Activation, DeviceFaults, Doorbell, QueueContext, QueueIndex, QueueWorker, RestError,
    StopTimeout, WorkerThread,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use wire::SliceId;

/// A worker that has not stopped by then waits for a page of a slice that hangs, or for a disk that does.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A device on this slice.
#[derive(Debug)]
pub(super) struct Slot {
    /// The doorbell of each queue that is here.
    bells: Vec<Option<Doorbell>>,
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
        let mut bells: Vec<Option<Doorbell>> = Vec::new();
        for (queue, home) in homes.iter().enumerate() {
            bells.push(match (*home == local, front_end.bell(queue, &bells)) {
                (false, _) => None,
                (true, Some(bell)) => Some(bell),
                (true, None) => Some(Doorbell::new()?),
            });
        }
        Ok(Self { bells, front_end, msix })
    }

    /// The doorbell of a queue, if it is here.
    pub(super) fn bell(&self, queue: QueueIndex) -> Option<&Doorbell> {
        self.bells.get(usize::from(queue.0))?.as_ref()
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

    /// Starts the workers of a device's queues that are here.
    pub(super) fn start(&mut self, device: DeviceId, slot: &Slot, activation: &Activation) {
        let context = QueueContext {
            device,
            memory: Arc::clone(&self.memory.memory),
            used: Arc::new(self.memory.used_by(device.0)),
            msix: Arc::clone(&slot.msix),
            faults: Arc::clone(&self.faults),
        };
        let mut workers = Vec::new();
        slot.front_end.start(activation.features);
        for (queue, setup) in &activation.queues {
            let Some(bell) = slot.bell(*queue) else { continue };
            let starting = Starting { context: &context, queue: *queue, setup, bell, activation };
            match slot.front_end.worker(&starting) {
                Ok(Some(worker)) => {
                    workers.extend(spawn(device, *queue, worker, bell).map(|it| (*queue, it)));
                }
                Ok(None) => {}
                Err(cause) => context.faults.broken(device, cause),
            }
        }
        self.running.insert(device, workers);
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
    use super::*;
    use devices::back_end::{Disk, DiskDone, DiskRequest, DiskShape, NullDisk};
    use devices::virtio::{QueueState, RingError, WorkerState};
    use devices::{InterruptMessage, InterruptSink};
    use dsm::GuestRam;
    use migrate::Invalid;
    use std::slice::from_ref;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

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

    #[test]
    fn reset_is_not_acknowledged_while_a_worker_runs() {
        let ram = Arc::new(GuestRam::new(from_ref(&(0..16))).unwrap());
        let memory = GuestMemory::new(&ram).unwrap();
        let mut queues = Queues::new(memory, Arc::new(Unheard));
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
        let ram = Arc::new(GuestRam::new(from_ref(&(0..16))).unwrap());
        let memory = GuestMemory::new(&ram).unwrap();
        let mut queues = Queues::new(memory, Arc::new(Unheard));
        let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
        let ((go, held), (busy, is_busy)) = (channel(), channel());
        let disk = Arc::new(Full(Mutex::new(vec![go]), AtomicBool::new(true)));
        let front = Arc::new(DiskFront(disk.clone()));
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

    #[test]
    fn only_queues_that_are_here_have_a_bell() {
        let msix = Arc::new(MsixView::new(3, Arc::new(Nowhere)));
        let homes = [SliceId(1), SliceId(0)];
        let slot = Slot::new(SliceId(1), &homes, Arc::new(Rng), msix).unwrap();
        assert!(slot.bell(QueueIndex(0)).is_some() && slot.bell(QueueIndex(1)).is_none());
        assert!(slot.bell(QueueIndex(2)).is_none());
    }
}
