//! What the one that decides about cuts says: what it does not do, what follows, and how the cut stands.

use super::{DeviceMove, Message, Step};
use thiserror::Error;
use wire::SliceId;

/// Why a cut was not begun. Nothing has happened then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// One cut at a time.
    #[error("the VM is at rest already, or comes to rest, or has not gone on yet")]
    Busy,
    /// The coordinator's own slice, or one that is none of the VM.
    #[error("{0} cannot leave")]
    Stays(SliceId),
    /// The coordinator's own slice, or one that is none of the VM.
    #[error("{0} cannot be given the coordination")]
    NotToThat(SliceId),
    /// It is there already, or one of its places is none of the VM.
    #[error("device {} cannot go from {} to {}", .0.device, .0.from, .0.to)]
    NoMove(DeviceMove),
    /// Another slice coordinates.
    #[error("{0} coordinates: ask there")]
    Elsewhere(SliceId),
    /// It is a slice of the VM.
    #[error("{0} is a member already")]
    Member(SliceId),
}

/// What follows from an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Messages in their order, each with its receiver; some to the coordinator's own slice.
    pub messages: Vec<(SliceId, Message)>,
    /// How the cut stands now, if that is news.
    pub news: Option<News>,
}

/// News of a cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum News {
    /// All slices are at rest, and nothing is on its way.
    AtRest,
    /// The cut was given up, because of this; slices go on.
    GivenUp(String),
    /// A slice has left. The others are still at rest.
    Parted(SliceId),
    /// A slice has joined. All are still at rest, and it is too.
    Joined(SliceId),
    /// For all slices another one coordinates, which begins the next cut. They are still at rest.
    HandedOver(SliceId),
    /// For all slices a device has its real part there. They are still at rest.
    Moved(DeviceMove),
    /// All slices have their forms for the checkpoint of this number. They are still at rest.
    Captured(u64),
    /// Some slices have taken a step from which there is no way back, and some cannot: the VM must end.
    Broken(String),
    /// All slices run.
    Runs,
}

/// What a slice cannot do that fails a step.
pub(super) fn failure(step: Step) -> String {
    match step {
        Step::MayPart(leaver) | Step::Part(leaver) => format!("cannot do without {leaver}"),
        Step::MayCoordinate(next) | Step::Coordinate(next) => {
            format!("cannot have {next} coordinate")
        }
        Step::MayMove(moved) | Step::DeviceMoved(moved) => {
            format!("cannot have device {} at {}", moved.device, moved.to)
        }
        Step::MayJoin(newcomer) | Step::Join(newcomer) => format!("cannot have {newcomer} join"),
        Step::Capture(_) => "cannot begin its part of the checkpoint".to_owned(),
        Step::Begin => "cannot begin".to_owned(),
        Step::CloseDevice(moved) => format!("cannot close device {}", moved.device),
        Step::OpenDevice(moved) => format!("cannot open device {}", moved.device),
        step => format!("cannot bring {step} to rest"),
    }
}
