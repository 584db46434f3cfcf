//! What the forms of all nodes can be asked together.

use super::check::of_replicas;
use super::frames::FrameRuns;
use super::state::{HolderKind, HoldersState, NodeState};
use migrate::{Invalid, SavedState};
use thiserror::Error;
use wire::{Gfn, SliceId};

/// Why forms of nodes do not make one memory.
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
    /// Not one form for each slice.
    #[error("there is not one form for each slice that shares memory, but for {found:?}")]
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
    /// A message has not come when the form was made, or the forms are of different moments.
    #[error("{from} has sent {sent} messages to {to}, which has received {received}")]
    OnItsWay {
        /// The sender.
        from: SliceId,
        /// The receiver.
        to: SliceId,
        /// Messages sent.
        sent: u64,
        /// Messages received.
        received: u64,
    },
    /// A slice has a page otherwise than the page's home says: two owners, a reader beside a writer, a lost copy.
    #[error("{slice} and the home of {gfn} do not agree that it is {held} there")]
    Copy {
        /// The slice.
        slice: SliceId,
        /// The page.
        gfn: Gfn,
        /// How one of them says that it is held.
        held: &'static str,
    },
    /// Two slices have replicas of a page table that are not the same.
    #[error("{one} and {other} have different replicas of {gfn}")]
    Replica {
        /// A slice.
        one: SliceId,
        /// Another.
        other: SliceId,
        /// The page.
        gfn: Gfn,
    },
}

/// Checks that the forms of all slices, in any order, are of one memory at one moment at which nothing was under way:
/// each page is with whom its home says and with nobody else, replicas are the same, and each message has come.
///
/// # Errors
/// The first thing that cannot be.
pub fn check_all(states: &[NodeState]) -> Result<(), Disagreement> {
    for state in states {
        let slice = state.slice;
        state.check().map_err(|source| Disagreement::Invalid { slice, source })?;
    }
    let mut states: Vec<&NodeState> = states.iter().collect();
    states.sort_by_key(|state| state.slice);
    let found: Vec<SliceId> = states.iter().map(|state| state.slice).collect();
    let Some(first) = states.first().filter(|first| first.slices == found) else {
        return Err(Disagreement::Members { found });
    };
    for other in &states {
        same_shape(first, other)?;
        same_replicas(first, other)?;
        copies(&states, other)?;
    }
    messages(&states)
}

fn same_shape(one: &NodeState, other: &NodeState) -> Result<(), Disagreement> {
    let fields = [
        ("epoch", one.epoch == other.epoch),
        ("slices", one.slices == other.slices),
        ("homes", one.homes == other.homes),
        ("vcpus", one.vcpus == other.vcpus),
        ("tables", one.tables == other.tables),
    ];
    match fields.into_iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(Disagreement::Shape { one: one.slice, other: other.slice, what }),
        None => Ok(()),
    }
}

/// Replicas are the same but for what each slice has learnt of them.
fn same_replicas(one: &NodeState, other: &NodeState) -> Result<(), Disagreement> {
    let differ = |gfn| Disagreement::Replica { one: one.slice, other: other.slice, gfn };
    if let Some(gfn) = of_replicas(one).first_difference(&of_replicas(other)) {
        return Err(differ(gfn));
    }
    let mut pairs = one.replicas.iter().zip(&other.replicas);
    let different =
        pairs.find(|(a, b)| (a.page, a.level, a.half, a.hash) != (b.page, b.level, b.half, b.hash));
    different.map_or(Ok(()), |(replica, _)| Err(differ(replica.page)))
}

/// A slice has each page as all homes together say, and no other.
fn copies(states: &[&NodeState], state: &NodeState) -> Result<(), Disagreement> {
    let slice = state.slice;
    let said = |fits: &dyn Fn(&HoldersState) -> bool| {
        let groups = states.iter().flat_map(|home| &home.directory);
        let groups = groups.filter(|holders| fits(holders));
        FrameRuns::of(groups.flat_map(|holders| holders.frames.ranges()).collect())
    };
    let is_shared = |holders: &HoldersState| holders.kind == HolderKind::Shared;
    let shared = said(&|holders| is_shared(holders) && holders.slices.contains(&slice));
    let exclusive = said(&|holders| !is_shared(holders) && holders.slices.contains(&slice));
    let replicated = said(&|holders| holders.kind == HolderKind::Replicated);
    let pairs = [
        ("shared", &state.shared, shared),
        ("exclusive", &state.exclusive, exclusive),
        ("a replica", &of_replicas(state), replicated),
    ];
    for (held, found, said) in pairs {
        if let Some(gfn) = found.first_difference(&said) {
            return Err(Disagreement::Copy { slice, gfn, held });
        }
    }
    Ok(())
}

fn messages(states: &[&NodeState]) -> Result<(), Disagreement> {
    for from in states {
        for to in states.iter().filter(|to| to.slice != from.slice) {
            let sent = from.channel(to.slice).map_or(0, |channel| channel.sent);
            let received = to.channel(from.slice).map_or(0, |channel| channel.received);
            if sent != received {
                let (from, to) = (from.slice, to.slice);
                return Err(Disagreement::OnItsWay { from, to, sent, received });
            }
        }
    }
    Ok(())
}
