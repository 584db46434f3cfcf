//! What control frames say, and between whom they may go.

use super::change::OrderedChange;
use super::checkpoint::CheckpointMessage;
use super::cut::CutMessage;
use super::handover::{VcpuFrame, VcpuMessage};
use crate::{Epoch, SliceId, VcpuId};

/// The most bytes of the state of a queue that moves.
pub const QUEUE_STATE_BYTES_MAX: usize = 60 * 1024;

/// The most bytes of what a slice must know that is to coordinate.
pub const COORDINATOR_STATE_BYTES_MAX: usize = 60 * 1024;

/// The most bytes of what a slice needs to call one that is to join.
pub const SUMMONS_BYTES_MAX: usize = 64;

/// The most bytes of what the next place of a device's real part must know.
pub const CLOSED_DEVICE_BYTES_MAX: usize = 16 * 1024;

/// An access to a device that lives on another slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCall {
    /// Chosen by the caller; the answer repeats it.
    pub id: u64,
    /// Ports or memory-mapped registers.
    pub space: Space,
    /// Read, or write of `data`.
    pub write: bool,
    /// Port or guest-physical address.
    pub address: u64,
    /// Bytes: 1, 2, 4 or 8.
    pub length: u8,
    /// What is written, little endian.
    pub data: u64,
}

/// Where a device register lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// I/O ports.
    Port,
    /// Guest-physical addresses.
    Memory,
}

/// Why a VM ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// The guest powered off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest's kernel panicked.
    GuestPanic,
    /// A slice cannot go on, or is lost.
    Failure,
    /// The user's time limit was reached.
    TimeLimit,
    /// It was asked to stop, and the guest was not waited for any more.
    Stopped,
    /// It is in a checkpoint, and was to end then.
    Saved,
    /// A later life of it has its disks: it goes on elsewhere.
    Overtaken,
}

/// What the vCPUs of a slice have done since its start, added up, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceLoad {
    /// They ran.
    pub run_us: u64,
    /// They were ready to run, and waited for a processor.
    pub delayed_us: u64,
    /// They waited for pages.
    pub waited_us: u64,
}

/// A frame that is not about coherence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// About one vCPU: what arrives at it, and its hand-over to another slice.
    Vcpu {
        /// The vCPU.
        vcpu: VcpuId,
        /// What is said of it.
        message: VcpuFrame,
    },
    /// To the slice with the devices.
    Call(DeviceCall),
    /// The answer to a call.
    Answer {
        /// The call's number.
        id: u64,
        /// What was read.
        data: u64,
    },
    /// To the slice with the IOAPIC: a level-triggered vector was handled.
    EndOfInterrupt {
        /// The vector.
        vector: u8,
    },
    /// To the coordinator: the guest, or a failure here, wants the VM to end.
    WantEnd(EndCause),
    /// To the coordinator: the sender was asked to stop; the guest is to shut down.
    WantStop,
    /// To the coordinator: the sender has heard that the VM is over.
    EndSeen,
    /// To another slice: what does your guest clock show?
    ClockPing {
        /// The answer repeats it.
        id: u64,
    },
    /// The answer.
    ClockPong {
        /// The question's number.
        id: u64,
        /// The guest's time stamp counter.
        ticks: u64,
        /// Ticks that the sender stepped forward in all, as it was told.
        stepped: u64,
    },
    /// To another slice: step forward until that is so many ticks in all.
    ClockStep {
        /// Since the start.
        sum: u64,
    },
    /// To another slice: send your report.
    AskReport,
    /// The answer: a serialised report.
    Report(Vec<u8>),
    /// To another slice: say what your vCPUs have done.
    AskLoad,
    /// The answer.
    Load(SliceLoad),
    /// To another slice: the VM is over.
    End(EndCause),
    /// To another slice: change what all slices share, after all changes with a lower number.
    Apply {
        /// Counts up from 1, without gaps.
        sequence: u64,
        /// What changes.
        change: OrderedChange,
    },
    /// The answer: the change is in effect on the sender.
    Applied {
        /// Its number.
        sequence: u64,
    },
    /// To the coordinator: the guest's driver has broken a device.
    Broken {
        /// The device.
        device: u16,
    },
    /// To the slice of a queue: there is something in it.
    Doorbell {
        /// The device.
        device: u16,
        /// Its queue.
        queue: u16,
    },
    /// To the next place of a queue: how far it was served at the sender, which serves it no more.
    QueueState {
        /// The device.
        device: u16,
        /// Its queue.
        queue: u16,
        /// Epoch of the placement in which the queue is there.
        placement: Epoch,
        /// Saved state, at most [`QUEUE_STATE_BYTES_MAX`] bytes; none of a queue that nobody served.
        state: Vec<u8>,
    },
    /// About a cut: all slices come to rest, or go on.
    Cut(CutMessage),
    /// About a checkpoint: slices write their parts.
    Checkpoint(CheckpointMessage),
    /// To a home of frames: bring their pages there from another slice.
    Pull {
        /// The answer repeats it.
        id: u64,
        /// The slice that may have pages of them.
        from: SliceId,
        /// Guest frame number of the first.
        first: u64,
        /// How many.
        frames: u64,
    },
    /// The answer.
    Pulled {
        /// Number of the request.
        id: u64,
        /// Why not all have come, for a person; empty if they have. At most [`CAUSE_BYTES_MAX`](super::CAUSE_BYTES_MAX) bytes.
        failure: String,
    },
    /// To the slice that is to coordinate: what it must know, saved, at most [`COORDINATOR_STATE_BYTES_MAX`] bytes.
    CoordinatorState(Vec<u8>),
    /// To the coordinator: the sender, which has coordinated, has nothing of the VM any more and is to leave.
    WantLeave,
    /// The answer, if it stays: why, for a person; at most [`CAUSE_BYTES_MAX`](super::CAUSE_BYTES_MAX) bytes.
    LeaveRefused(String),
    /// To every other slice: call the newcomer.
    Summons {
        /// The answer repeats it.
        id: u64,
        /// What the transport says of the newcomer, at most [`SUMMONS_BYTES_MAX`] bytes.
        bytes: Vec<u8>,
    },
    /// The answer: the sender has a link to it, or has none.
    Met {
        /// Number of the summons.
        id: u64,
        /// The newcomer.
        slice: SliceId,
        /// Why there is none, for a person; empty if there is one. At most [`CAUSE_BYTES_MAX`](super::CAUSE_BYTES_MAX) bytes.
        failure: String,
    },
    /// To the next place of a device's real part: it is closed at the sender.
    ClosedDevice {
        /// The device.
        device: u16,
        /// Number of the cut.
        cut: u64,
        /// What it is, saved, at most [`CLOSED_DEVICE_BYTES_MAX`] bytes.
        state: Vec<u8>,
    },
}

/// Between whom a control frame may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the coordinator to another slice.
    FromCoordinator,
    /// From another slice to the coordinator.
    ToCoordinator,
    /// From any slice to any other.
    Any,
}

impl Way {
    /// Whether a frame that goes this way may come from `from` at `local`. `coordinates` says of a slice whether it
    /// coordinates, or did so before the one that does: what it sent last, and what it was sent, may still come.
    #[must_use]
    pub fn permits(
        self,
        from: SliceId,
        local: SliceId,
        coordinates: impl Fn(SliceId) -> bool,
    ) -> bool {
        from != local
            && match self {
                Self::FromCoordinator => coordinates(from),
                Self::ToCoordinator => coordinates(local),
                Self::Any => true,
            }
    }
}

impl Control {
    /// Between whom this frame may go, and its name for people. The receiver checks it: who may say
    /// that a VM is over, or what a device answered, is decided here and nowhere else.
    #[must_use]
    pub fn way(&self) -> (Way, &'static str) {
        match self {
            Self::Vcpu { message, .. } if message.is_of_coordinator() => {
                (Way::FromCoordinator, "what is to be done for a hand-over")
            }
            Self::Vcpu { message, .. } if message.is_for_coordinator() => {
                (Way::ToCoordinator, "how far a hand-over has come")
            }
            Self::Vcpu { message: VcpuMessage::Event(_), .. } => (Way::Any, "an interrupt"),
            Self::Vcpu { .. } => (Way::Any, "a part of a hand-over"),
            Self::Doorbell { .. } => (Way::Any, "a doorbell"),
            Self::QueueState { .. } => (Way::Any, "the state of a queue"),
            Self::Answer { .. } => (Way::FromCoordinator, "the answer of a device"),
            Self::AskReport => (Way::FromCoordinator, "a request for the report"),
            Self::End(_) => (Way::FromCoordinator, "the end of the VM"),
            Self::Apply { .. } => (Way::FromCoordinator, "a change of what slices share"),
            Self::Call(_) => (Way::ToCoordinator, "a device call"),
            Self::EndOfInterrupt { .. } => (Way::ToCoordinator, "an end of interrupt"),
            Self::WantEnd(_) => (Way::ToCoordinator, "a wish for the end of the VM"),
            Self::ClockPing { .. } => (Way::FromCoordinator, "a question about the clock"),
            Self::ClockStep { .. } => (Way::FromCoordinator, "a step of the clock"),
            Self::ClockPong { .. } => (Way::ToCoordinator, "an answer about the clock"),
            Self::WantStop => (Way::ToCoordinator, "a wish for an orderly end"),
            Self::EndSeen => (Way::ToCoordinator, "that it has heard of the end"),
            Self::Report(_) => (Way::ToCoordinator, "a report"),
            Self::AskLoad => (Way::FromCoordinator, "a request for what vCPUs have done"),
            Self::Load(_) => (Way::ToCoordinator, "what vCPUs have done"),
            Self::Applied { .. } => (Way::ToCoordinator, "an applied change of what slices share"),
            Self::Broken { .. } => (Way::ToCoordinator, "a broken device"),
            Self::Cut(CutMessage::HandedOver(_)) => {
                (Way::FromCoordinator, "that it is the one who coordinates")
            }
            Self::Cut(message) if message.is_asking() => {
                (Way::FromCoordinator, "a request to come to rest, to go on or to leave")
            }
            Self::Cut(_) => (Way::ToCoordinator, "how far it has come to rest"),
            Self::Checkpoint(message) if message.is_asking() => {
                (Way::FromCoordinator, "a request to write a part of a checkpoint")
            }
            Self::Checkpoint(_) => (Way::ToCoordinator, "how its part of a checkpoint stands"),
            Self::Pull { .. } => (Way::FromCoordinator, "a request to bring pages home"),
            Self::Pulled { .. } => (Way::ToCoordinator, "that pages are at home"),
            Self::CoordinatorState(_) => (Way::FromCoordinator, "what a coordinator must know"),
            Self::WantLeave => (Way::ToCoordinator, "a wish to leave"),
            Self::LeaveRefused(_) => (Way::FromCoordinator, "that it cannot leave"),
            Self::Summons { .. } => (Way::FromCoordinator, "whom to call"),
            Self::Met { .. } => (Way::ToCoordinator, "that it has called a newcomer"),
            Self::ClosedDevice { .. } => (Way::Any, "that a device is closed"),
        }
    }

    /// Whether the guest's state is in the frame while it is on its way: a VM that went on without it would lack something.
    /// Slices count these frames, so that a cut shows that all have come.
    #[must_use]
    pub fn has_guest_state(&self) -> bool {
        match self {
            Self::Vcpu {
                message: VcpuMessage::Event(_) | VcpuMessage::Straggler(..) | VcpuMessage::State(..),
                ..
            }
            | Self::Doorbell { .. }
            | Self::QueueState { .. }
            | Self::Answer { .. }
            | Self::Apply { .. }
            | Self::Call(_)
            | Self::EndOfInterrupt { .. }
            | Self::WantEnd(_)
            | Self::Applied { .. }
            | Self::Broken { .. } => true,
            Self::Vcpu { .. }
            | Self::AskReport
            | Self::End(_)
            | Self::ClockPing { .. }
            | Self::ClockStep { .. }
            | Self::ClockPong { .. }
            | Self::WantStop
            | Self::EndSeen
            | Self::Report(_)
            | Self::AskLoad
            | Self::Load(_)
            | Self::Cut(_)
            | Self::Checkpoint(_)
            | Self::Pull { .. }
            | Self::Pulled { .. }
            | Self::CoordinatorState(_)
            | Self::WantLeave
            | Self::LeaveRefused(_)
            | Self::Summons { .. }
            | Self::Met { .. }
            | Self::ClosedDevice { .. } => false,
        }
    }
}
