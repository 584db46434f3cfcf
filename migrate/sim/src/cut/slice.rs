//! A slice of the model.

use migrate::cut::{FIRST_CUT, Message, PeerCounts, Step};
use wire::SliceId;

/// Slices of the model.
pub(super) const SLICES: u16 = 3;
/// The one that may leave.
pub(super) const LEAVER: u16 = SLICES - 1;

/// The one that coordinates at the start, and the one that may after it.
pub(super) const FIRST: u16 = 0;
pub(super) const SECOND: u16 = 1;

/// What goes between two slices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    /// For the cut. It is not counted.
    Cut(Message),
    /// What a slice must know that is to coordinate. It is not counted.
    State,
    /// For a vCPU.
    Interrupt,
    /// A vCPU calls a device.
    Call,
    /// It is answered.
    Answer,
    /// A queue was broken.
    Broken,
    /// A change of the devices.
    Change,
    /// It was made.
    Applied,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slice {
    pub(super) id: u16,
    /// Interrupts, calls and broken rings that are still to come from here.
    pub(super) left: [u8; 3],
    /// Its vCPU waits for the answer of a call.
    pub(super) calling: bool,
    /// Steps that it has taken.
    pub(super) vcpus: bool,
    pub(super) queues: bool,
    pub(super) devices: bool,
    /// What it is asked for and by whom, oldest first.
    pub(super) asked: Vec<(u16, Message)>,
    /// Who coordinates, as far as it knows.
    pub(super) coordinator: u16,
    /// It has been sent what it must know to coordinate, and can.
    pub(super) has_state: bool,
    pub(super) cannot_coordinate: bool,
    /// It was sent what only the coordinator is, or got a change from another slice.
    pub(super) misled: bool,
    /// The last slice is no member any more, or not yet, as far as this one knows.
    pub(super) parted: bool,
    /// Frames of this slice reach the last one.
    pub(super) linked: bool,
    /// It cannot have the last one join.
    pub(super) refuses: bool,
    /// Of the last one: it is none of the VM, and has not begun.
    pub(super) absent: bool,
    /// It cannot do without it.
    pub(super) needs_leaver: bool,
    /// It has been told to end.
    pub(super) dismissed: bool,
    /// It has the real part of the device open.
    pub(super) open: bool,
    /// Who has that, as far as it knows.
    pub(super) device_at: u16,
    pub(super) cannot_open: bool,
    /// It has what it had, in a VM that is restored.
    pub(super) begun: bool,
    /// The checkpoint for which it has its form, while it is at rest; 0 for none.
    pub(super) captured: u64,
    /// It has no room for a checkpoint.
    pub(super) full: bool,
    /// What waits for its device thread: the slice to be answered, if there is one.
    pub(super) jobs: Vec<Option<u16>>,
    /// The coordinator brings a change to these, and then answers this slice.
    pub(super) change: Option<(Vec<u16>, Option<u16>)>,
    /// Frames to and from each slice.
    pub(super) sent: [u8; 3],
    pub(super) received: [u8; 3],
}

impl Slice {
    pub(super) fn new(id: u16, left: [u8; 3]) -> Self {
        Self {
            id,
            left,
            calling: false,
            vcpus: false,
            queues: false,
            devices: false,
            asked: Vec::new(),
            coordinator: FIRST,
            has_state: false,
            cannot_coordinate: false,
            misled: false,
            parted: false,
            linked: true,
            refuses: false,
            absent: false,
            needs_leaver: false,
            dismissed: false,
            open: id == FIRST,
            device_at: FIRST,
            cannot_open: false,
            begun: true,
            captured: 0,
            full: false,
            jobs: Vec::new(),
            change: None,
            sent: [0; 3],
            received: [0; 3],
        }
    }

    pub(super) fn runs(&self) -> bool {
        !self.vcpus && !self.queues && !self.devices && self.asked.is_empty()
    }

    fn others(&self) -> Vec<u16> {
        let members = if self.parted { LEAVER } else { SLICES };
        (0..members).filter(|slice| *slice != self.id).collect()
    }

    /// What its vCPU, or a queue, can do now: the number of the kind.
    pub(super) fn can_send(&self, kind: usize) -> bool {
        let free = if kind == 2 { !self.queues } else { !self.vcpus && !self.calling };
        free && !self.absent && self.left[kind] > 0
    }

    /// Its vCPU sends an interrupt or calls, or a queue finds a broken ring.
    pub(super) fn send(&mut self, kind: usize) -> Vec<(u16, Frame)> {
        self.left[kind] -= 1;
        match kind {
            0 => {
                let next = (self.id + 1) % SLICES;
                let to = if self.parted && next == LEAVER { 0 } else { next };
                if to == self.id { Vec::new() } else { vec![(to, Frame::Interrupt)] }
            }
            1 => {
                self.calling = true;
                self.ask_coordinator(Frame::Call)
            }
            _ => self.ask_coordinator(Frame::Broken),
        }
    }

    fn coordinates(&self) -> bool {
        self.coordinator == self.id
    }

    fn ask_coordinator(&mut self, frame: Frame) -> Vec<(u16, Frame)> {
        if !self.coordinates() {
            return vec![(self.coordinator, frame)];
        }
        self.jobs.push((frame == Frame::Call).then_some(self.id));
        Vec::new()
    }

    /// A frame is taken to its place.
    pub(super) fn take(&mut self, from: u16, frame: &Frame) -> Vec<(u16, Frame)> {
        if *frame != Frame::State {
            self.received[usize::from(from)] += 1;
        }
        self.misled |= match frame {
            Frame::Call | Frame::Broken | Frame::Applied => !self.coordinates(),
            Frame::Change | Frame::Answer => from != self.coordinator,
            Frame::Interrupt | Frame::State | Frame::Cut(_) => false,
        };
        match frame {
            Frame::State => self.has_state = true,
            Frame::Interrupt => {}
            Frame::Call => self.jobs.push(Some(from)),
            Frame::Broken | Frame::Change => self.jobs.push(None),
            Frame::Answer => self.calling = false,
            Frame::Applied => {
                if let Some((waiting, _)) = &mut self.change {
                    waiting.retain(|slice| *slice != from);
                }
                return self.end_change();
            }
            Frame::Cut(_) => {}
        }
        Vec::new()
    }

    pub(super) fn can_work(&self) -> bool {
        !self.devices && self.change.is_none() && !self.jobs.is_empty()
    }

    /// The device thread takes the next job.
    pub(super) fn work(&mut self) -> Vec<(u16, Frame)> {
        let answer = self.jobs.remove(0);
        if !self.coordinates() {
            return vec![(self.coordinator, Frame::Applied)];
        }
        self.change = Some((self.others(), answer));
        self.others().into_iter().map(|slice| (slice, Frame::Change)).collect()
    }

    fn end_change(&mut self) -> Vec<(u16, Frame)> {
        let answer = match &self.change {
            Some((waiting, answer)) if waiting.is_empty() => *answer,
            _ => return Vec::new(),
        };
        self.change = None;
        match answer {
            Some(slice) if slice == self.id => self.calling = false,
            Some(slice) => return vec![(slice, Frame::Answer)],
            None => {}
        }
        Vec::new()
    }

    /// Whether the oldest thing that it is asked for can be done now.
    pub(super) fn can_act(&self) -> bool {
        match self.asked.first().map(|(_, message)| message) {
            Some(Message::Take(_, Step::Vcpus)) => !self.calling,
            // The device thread takes jobs in order, and a change to its end.
            Some(Message::Take(_, Step::Devices)) => {
                self.change.is_none() && (self.devices || self.jobs.is_empty())
            }
            Some(_) => true,
            None => false,
        }
    }

    /// Does it.
    pub(super) fn act(&mut self) -> Vec<(u16, Frame)> {
        let (from, message) = self.asked.remove(0);
        let mut sent = Vec::new();
        let answer = match message {
            Message::Take(number, Step::Count) => Message::Counted(number, self.count()),
            Message::Take(number, step) if self.fails(step) => {
                Message::Failed(number, String::new())
            }
            Message::Take(_, Step::Devices) if self.devices && !self.jobs.is_empty() => {
                // It goes on, and rests behind what has come.
                self.devices = false;
                self.asked.insert(0, (from, message));
                return sent;
            }
            Message::Take(number, step) => {
                match step {
                    Step::Vcpus => self.vcpus = true,
                    Step::Queues => self.queues = true,
                    Step::Devices => self.devices = true,
                    Step::Memory | Step::Count | Step::MayPart(_) => {}
                    Step::Part(_) => self.parted = true,
                    Step::MayJoin(slice) if slice.0 == self.id => self.begin(from),
                    Step::MayJoin(_) => self.linked = true,
                    Step::Join(_) => self.parted = false,
                    Step::MayCoordinate(to) if to.0 != self.id => sent.push((to.0, Frame::State)),
                    Step::MayCoordinate(_) => {}
                    Step::Coordinate(to) => self.coordinator = to.0,
                    Step::MayMove(_) => {}
                    Step::CloseDevice(_) => self.open = false,
                    Step::OpenDevice(_) => self.open = true,
                    Step::DeviceMoved(moved) => self.device_at = moved.to.0,
                    Step::Capture(of) => self.captured = of,
                    // Nobody asks for it.
                    Step::Begin => {}
                }
                Message::Taken(number, step)
            }
            Message::GoOn(number) => {
                (self.vcpus, self.queues, self.devices) = (false, false, false);
                self.captured = 0;
                // One that was to join and has not.
                self.linked &= !self.parted;
                // Closed again, or opened again, whatever has been given up.
                self.open = self.device_at == self.id;
                Message::GoesOn(number)
            }
            _ => {
                self.dismissed |= matches!(message, Message::Dismiss(_));
                return sent;
            }
        };
        sent.push((from, Frame::Cut(answer)));
        sent
    }

    /// A newcomer begins, at rest, and knows who coordinates.
    fn begin(&mut self, coordinator: u16) {
        self.coordinator = coordinator;
        (self.vcpus, self.queues, self.devices) = (true, true, true);
        self.absent = false;
    }

    /// A slice of a VM that is restored has all that it had, and says so.
    pub(super) fn say_begun(&mut self) -> Vec<(u16, Frame)> {
        self.begun = true;
        vec![(self.coordinator, Frame::Cut(Message::Taken(FIRST_CUT, Step::Begin)))]
    }

    fn fails(&self, step: Step) -> bool {
        match step {
            Step::Capture(_) => self.full,
            Step::MayPart(leaver) => self.needs_leaver || self.device_at == leaver.0,
            Step::MayJoin(_) => self.refuses,
            Step::OpenDevice(_) => self.cannot_open,
            Step::MayCoordinate(to) if to.0 == self.id => self.cannot_coordinate || !self.has_state,
            _ => false,
        }
    }

    fn count(&self) -> Option<Vec<PeerCounts>> {
        let count = |peer: u16| PeerCounts {
            peer: SliceId(peer),
            sent: [self.sent[usize::from(peer)].into(), 0],
            received: [self.received[usize::from(peer)].into(), 0],
        };
        self.jobs.is_empty().then(|| self.others().into_iter().map(count).collect())
    }
}
