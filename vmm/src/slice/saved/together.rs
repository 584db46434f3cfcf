//! What the forms of all slices can be asked together.

use super::SliceState;
use migrate::{Invalid, SavedState};
use thiserror::Error;
use wire::SliceId;

/// Why the forms of slices are not a cut of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Disagreement {
    /// One of them contradicts itself.
    #[error("{slice}: {source}")]
    Invalid {
        /// Whose form it is.
        slice: SliceId,
        /// What is wrong with it.
        source: Invalid,
    },
    /// Not one form for each member.
    #[error("there is not one form for each slice of the VM, but for {found:?}")]
    Members {
        /// The slices that have one.
        found: Vec<SliceId>,
    },
    /// They are of different VMs, or of different moments of one.
    #[error("{one} and {other} do not say the same of: {what}")]
    Shape {
        /// A slice.
        one: SliceId,
        /// Another.
        other: SliceId,
        /// The field.
        what: &'static str,
    },
    /// A frame has not come when the form was made, or the forms are of different moments.
    #[error("{from} has sent {sent} frames with state of the guest to {to}, which has {received}")]
    OnItsWay {
        /// The sender.
        from: SliceId,
        /// The receiver.
        to: SliceId,
        /// Frames sent.
        sent: u64,
        /// Frames received.
        received: u64,
    },
    /// The memory.
    #[error(transparent)]
    Memory(#[from] dsm::saved::Disagreement),
}

/// Checks that the forms of all slices, in any order, are of one VM at one moment: the same placement, devices and order of
/// changes, and nothing on its way between any two. Where vCPUs and queues are follows: each form has those that the
/// placement gives its slice.
///
/// # Errors
/// The first thing that cannot be.
pub(crate) fn check_together(states: &[SliceState]) -> Result<(), Disagreement> {
    for state in states {
        let slice = state.slice;
        state.check().map_err(|source| Disagreement::Invalid { slice, source })?;
    }
    let mut states: Vec<&SliceState> = states.iter().collect();
    states.sort_by_key(|state| state.slice);
    let found: Vec<SliceId> = states.iter().map(|state| state.slice).collect();
    let placed = |first: &&SliceState| first.placement.members == found;
    let Some(first) = states.first().copied().filter(placed) else {
        return Err(Disagreement::Members { found });
    };
    for other in &states[1..] {
        same(first, other)?;
    }
    frames(&states)?;
    // A slice with devices only has an engine, which is none of those that share memory.
    let coordinator = states.iter().find(|state| state.chipset.is_some());
    let sharing = coordinator.and_then(|state| state.memory.as_ref()).map(|it| &it.slices);
    let shares = |state: &&&SliceState| sharing.is_some_and(|all| all.contains(&state.slice));
    let memory: Vec<_> =
        states.iter().filter(shares).filter_map(|state| state.memory.clone()).collect();
    if !memory.is_empty() {
        dsm::saved::check_all(&memory)?;
    }
    Ok(())
}

fn same(one: &SliceState, other: &SliceState) -> Result<(), Disagreement> {
    let bus = |state: &SliceState| state.devices.as_ref().map(|devices| devices.bus.clone());
    let fields = [
        ("placement", one.placement == other.placement),
        ("order", one.order == other.order),
        ("devices", bus(one) == bus(other)),
    ];
    match fields.into_iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(Disagreement::Shape { one: one.slice, other: other.slice, what }),
        None => Ok(()),
    }
}

/// The number of frames is that of the receiver, for each pair and way.
fn frames(states: &[&SliceState]) -> Result<(), Disagreement> {
    let counts = |state: &SliceState, peer: SliceId| {
        let found = state.frames.iter().find(|counts| counts.peer == peer);
        found.map_or((0, 0), |counts| (counts.sent, counts.received))
    };
    for from in states {
        for to in states.iter().filter(|to| to.slice != from.slice) {
            let (sent, received) = (counts(from, to.slice).0, counts(to, from.slice).1);
            if sent != received {
                let (from, to) = (from.slice, to.slice);
                return Err(Disagreement::OnItsWay { from, to, sent, received });
            }
        }
    }
    Ok(())
}
