//! The queues that are at home on this slice, and the threads that serve them.
//!
//! ```text
//!   idle --Activated--> workers run --Reset--> network disconnected, workers stopped --> idle
//!                                              disk must not wait
//! ```
//! Every slice does this for every device. So the slice with the real disk has requests that wait for room fail, also those of
//! queues on other slices, which wait for their answers meanwhile.

use super::terminal::Terminal;
use crate::guest_memory::GuestMemory;
use devices::back_end::Disk;
use devices::pci::{Activation, DeviceId, MsixView, QueueIndex, QueueSetup};
use devices::virtio::blk::DiskQueue;
use devices::virtio::console::{ConsoleReceive, ConsoleTransmit};
use devices::virtio::net::{NetControl, NetDevice, NetPair, NetQueue};
use devices::virtio::rng::RngQueue;
use devices::virtio::{
    DeviceFaults, Doorbell, QueueContext, QueueWorker, RingError, StopTimeout, WorkerThread,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use wire::SliceId;

/// A worker that has not stopped by then waits for a page of a slice that hangs, or for a disk that does.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// The way from a front end to what does the work.
#[derive(Clone, Debug)]
pub(super) enum Way {
    Disk(Arc<dyn Disk>),
    Nic {
        device: Arc<NetDevice>,
        pairs: u16,
    },
    Rng,
    /// None where its queues are not.
    Console(Option<Arc<Terminal>>),
}

/// A device on this slice.
#[derive(Debug)]
pub(super) struct Slot {
    /// The doorbell of each queue that is here. Those of a network pair are one.
    bells: Vec<Option<Doorbell>>,
    way: Way,
    pub(super) msix: Arc<MsixView>,
}

impl Slot {
    pub(super) fn new(
        local: SliceId,
        homes: &[SliceId],
        way: Way,
        msix: Arc<MsixView>,
    ) -> io::Result<Self> {
        let mut bells: Vec<Option<Doorbell>> = Vec::new();
        for (queue, home) in homes.iter().enumerate() {
            bells.push(match (*home == local, &way, queue) {
                (false, ..) => None,
                (true, Way::Nic { .. }, queue) if queue % 2 == 1 => bells[queue - 1].clone(),
                // Rung by the driver and by input alike.
                (true, Way::Console(Some(terminal)), 0) => Some(terminal.doorbell.clone()),
                (true, ..) => Some(Doorbell::new()?),
            });
        }
        Ok(Self { bells, way, msix })
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
    running: BTreeMap<DeviceId, Vec<WorkerThread>>,
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
        match &slot.way {
            Way::Nic { device, .. } => device.connect(activation.features),
            // Everywhere the reset before this is in effect: nothing from before it waits any more.
            Way::Disk(disk) => disk.may_wait(true),
            Way::Rng | Way::Console(_) => {}
        }
        for (queue, setup) in &activation.queues {
            let Some(bell) = slot.bell(*queue) else { continue };
            match worker(&context, slot, activation, (*queue, setup), bell) {
                Ok(Some(worker)) => workers.extend(spawn(device, *queue, worker, bell)),
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
        match &slot.way {
            Way::Nic { device, .. } => device.disconnect(),
            Way::Disk(disk) => disk.may_wait(false),
            Way::Rng | Way::Console(_) => {}
        }
        WorkerThread::stop_all(self.running.remove(&device).unwrap_or_default())
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

/// The worker of a queue; none for a queue that another's worker serves too, or nobody needs.
fn worker(
    context: &QueueContext,
    slot: &Slot,
    activation: &Activation,
    (queue, setup): (QueueIndex, &QueueSetup),
    bell: &Doorbell,
) -> Result<Option<Box<dyn QueueWorker>>, RingError> {
    let features = activation.features;
    Ok(match &slot.way {
        Way::Disk(disk) => {
            let disk = Arc::clone(disk);
            Some(Box::new(DiskQueue::new(context, features, setup, disk, bell.clone())?))
        }
        Way::Nic { device, pairs } => match NetQueue::of(queue, *pairs, features) {
            Some(NetQueue::Receive(pair)) => {
                let transmit = QueueIndex(queue.0 + 1);
                let transmit = activation.queues.iter().find(|(queue, _)| *queue == transmit);
                let (_, transmit) = transmit.ok_or(RingError::Setup)?;
                let device = (Arc::clone(device), pair);
                let rings = (setup, transmit);
                Some(Box::new(NetPair::new(context, features, rings, device, bell.clone())?))
            }
            Some(NetQueue::Control) => {
                Some(Box::new(NetControl::new(context, features, setup, Arc::clone(device))?))
            }
            Some(NetQueue::Transmit(_)) | None => None,
        },
        Way::Rng => {
            let source = Arc::new(|bytes: &mut [u8]| fill_random(bytes));
            Some(Box::new(RngQueue::new(context, features, setup, source)?))
        }
        Way::Console(None) => None,
        Way::Console(Some(terminal)) if queue == QueueIndex(0) => {
            let input = terminal.input.clone();
            Some(Box::new(ConsoleReceive::new(context, features, setup, input)?))
        }
        Way::Console(Some(terminal)) => {
            let output = terminal.output();
            Some(Box::new(ConsoleTransmit::new(context, features, setup, output)?))
        }
    })
}

/// The host's randomness.
fn fill_random(mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => bytes = &mut bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!("the host gives no randomness: {error}");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::spec::ConsoleEnd;
    use devices::back_end::{DiskDone, DiskRequest, DiskShape, NullDisk};
    use devices::virtio::{QueueState, WorkerState};
    use devices::{InterruptMessage, InterruptSink};
    use dsm::GuestRam;
    use migrate::Invalid;
    use std::os::fd::AsRawFd;
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

    #[test]
    fn reset_is_not_acknowledged_while_a_worker_runs() {
        let ram = Arc::new(GuestRam::new(from_ref(&(0..16))).unwrap());
        let memory = GuestMemory::new(&ram).unwrap();
        let mut queues = Queues::new(memory, Arc::new(Unheard));
        let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
        let slot = Slot::new(SliceId(0), &[SliceId(0)], Way::Rng, msix).unwrap();
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
        queues.running.insert(DeviceId(0), vec![hangs, ends]);
        assert_eq!(queues.stop(DeviceId(0), &slot), Err(StopTimeout));
        drop(go);

        let (ends, gone) = worker(STOP_WITHIN);
        drop(gone);
        queues.running.insert(DeviceId(0), vec![ends]);
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
        let way = Way::Disk(disk.clone());
        let slot = Slot::new(SliceId(0), &[SliceId(0)], way, msix).unwrap();
        let bell = Doorbell::new().unwrap();
        let stuck = Box::new(Stuck(busy, held));
        let worker = WorkerThread::spawn("waits", stuck, bell, STOP_WITHIN).unwrap();
        is_busy.recv().unwrap();
        queues.running.insert(DeviceId(0), vec![worker]);

        assert_eq!(queues.stop(DeviceId(0), &slot), Ok(()));
        assert!(!disk.1.load(Ordering::Acquire));
        queues.start(DeviceId(0), &slot, &Activation { features: 0, queues: Vec::new() });
        assert!(disk.1.load(Ordering::Acquire), "the next driver's requests may wait");
    }

    #[test]
    fn input_of_a_console_and_its_driver_ring_the_same_bell() {
        let terminal = Arc::new(Terminal::open(&ConsoleEnd::Stdio, None, Arc::default()).unwrap());
        let slot = |home| {
            let way = Way::Console(Some(Arc::clone(&terminal)));
            let msix = Arc::new(MsixView::new(3, Arc::new(Nowhere)));
            Slot::new(SliceId(1), &[home; 2], way, msix).unwrap()
        };
        let here = slot(SliceId(1));
        let bell = |queue| here.bell(QueueIndex(queue)).map(AsRawFd::as_raw_fd);
        assert_eq!(bell(0), Some(terminal.doorbell.as_raw_fd()));
        assert!(bell(1).is_some() && bell(1) != bell(0) && bell(2).is_none());
        assert!(slot(SliceId(0)).bell(QueueIndex(0)).is_none());
    }
}
