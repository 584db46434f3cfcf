//! A slice of the model.

use migrate::cut::{Message, PeerCounts, Step};
use wire::SliceId;

/// Slices of the model.
pub(super) const SLICES: u16 = 3;
/// The one that may leave.
pub(super) const LEAVER: u16 = SLICES - 1;

/// What goes between two slices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    /// For the cut. It is not counted.
    Cut(Message),
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
    /// What it is asked for, oldest first.
    pub(super) asked: Vec<Message>,
    /// The last slice is no member any more, as far as this one knows.
    pub(super) parted: bool,
    /// It cannot do without it.
    pub(super) needs_leaver: bool,
    /// It has been told to end.
    pub(super) dismissed: bool,
    /// What waits for its device thread: the slice to be answered, if there is one.
    pub(super) jobs: Vec<Option<u16>>,
    /// The first slice brings a change to these, and then answers this slice.
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
            parted: false,
            needs_leaver: false,
            dismissed: false,
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
        free && self.left[kind] > 0
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
                self.ask_first(Frame::Call)
            }
            _ => self.ask_first(Frame::Broken),
        }
    }

    fn ask_first(&mut self, frame: Frame) -> Vec<(u16, Frame)> {
        if self.id != 0 {
            return vec![(0, frame)];
        }
        self.jobs.push((frame == Frame::Call).then_some(0));
        Vec::new()
    }

    /// A frame is taken to its place.
    pub(super) fn take(&mut self, from: u16, frame: &Frame) -> Vec<(u16, Frame)> {
        self.received[usize::from(from)] += 1;
        match frame {
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
        if self.id != 0 {
            return vec![(0, Frame::Applied)];
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
            Some(0) => self.calling = false,
            Some(slice) => return vec![(slice, Frame::Answer)],
            None => {}
        }
        Vec::new()
    }

    /// Whether the oldest thing that it is asked for can be done now.
    pub(super) fn can_act(&self) -> bool {
        match self.asked.first() {
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
    pub(super) fn act(&mut self) -> Option<Message> {
        let message = self.asked.remove(0);
        Some(match message {
            Message::Take(number, Step::Count) => Message::Counted(number, self.count()),
            Message::Take(number, Step::MayPart(_)) if self.needs_leaver => {
                Message::Failed(number, String::new())
            }
            Message::Take(number, step) => {
                match step {
                    Step::Vcpus => self.vcpus = true,
                    Step::Queues => self.queues = true,
                    Step::Devices if self.devices && !self.jobs.is_empty() => {
                        // It goes on, and rests behind what has come.
                        self.devices = false;
                        self.asked.insert(0, message);
                        return None;
                    }
                    Step::Devices => self.devices = true,
                    Step::Memory | Step::Count | Step::MayPart(_) => {}
                    Step::Part(_) => self.parted = true,
                }
                Message::Taken(number, step)
            }
            Message::GoOn(number) => {
                (self.vcpus, self.queues, self.devices) = (false, false, false);
                Message::GoesOn(number)
            }
            Message::Dismiss(_) => {
                self.dismissed = true;
                return None;
            }
            _ => return None,
        })
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
