//! Why there is no plan, in one line for a person.

use super::SLICES_MAX;
use super::capacity::{Capacity, bytes_of};
use crate::Placement;
use std::fmt::Write;
use thiserror::Error;
use wire::{SliceId, VcpuId};

/// Why there is no plan. Nothing has happened then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The VM has no such slice.
    #[error("{0} is not a member of the VM")]
    Unknown(SliceId),
    /// A VM has at least one slice.
    #[error("{0} is the VM's last slice")]
    LastSlice(SliceId),
    /// A slice that nothing can go to.
    #[error("{slice} cannot be drained to {to}: {why}")]
    NotThere {
        /// The slice that was to leave.
        slice: SliceId,
        /// Where everything was to go.
        to: SliceId,
        /// What speaks against it.
        why: &'static str,
    },
    /// Some parts of a slice have nowhere to go.
    #[error("{slice} cannot be drained: {}", joined(.obstacles))]
    Stuck {
        /// The slice that was to leave.
        slice: SliceId,
        /// All that is in the way.
        obstacles: Vec<Obstacle>,
    },
    /// A slice that would be of no use to the VM.
    #[error("{slice} can take no part of the VM: {why}")]
    Useless {
        /// The slice that was to join.
        slice: SliceId,
        /// What it lacks.
        why: String,
    },
    /// The placement is as it was asked for.
    #[error("nothing to do: {0}")]
    NothingToDo(String),
    /// Too many slices to look at all sets of them.
    #[error("the VM has {0} slices; all sets of them are looked at for up to {SLICES_MAX}")]
    TooMany(usize),
}

/// Parts that have nowhere to go.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// vCPUs for which no slice has a core.
    #[error("no core for {}: {why}", named(.vcpus))]
    Vcpus {
        /// Those that are left over once all room is used.
        vcpus: Vec<VcpuId>,
        /// What each other slice has left, or lacks.
        why: String,
    },
    /// Memory for which no slice has room.
    #[error("no room for {} of memory: {why}", size(*.bytes))]
    Memory {
        /// What is left over once all room is used.
        bytes: u64,
        /// What each other slice has left.
        why: String,
    },
    /// A device whose real part no other host can have.
    #[error("device {device} has its real part there: {why}")]
    Device {
        /// Its number on the bus.
        device: u16,
        /// Who has no path to it.
        why: String,
    },
}

impl Obstacle {
    pub(super) fn vcpus(
        vcpus: &[VcpuId],
        (placement, capacity): (&Placement, &Capacity),
        kept: &[SliceId],
    ) -> Self {
        let why = each(kept, capacity, |slice| {
            let offer = capacity.offers.get(&slice)?;
            let room = capacity.room(placement, slice).vcpus;
            Some(match &offer.lacks[..] {
                [] => format!("{slice} has {room} of {} cores free", offer.vcpus),
                lacks => format!("{slice} lacks {}", lacks.join(", ")),
            })
        });
        Self::Vcpus { vcpus: vcpus.to_vec(), why }
    }

    pub(super) fn memory(
        frames: u64,
        (placement, capacity): (&Placement, &Capacity),
        kept: &[SliceId],
    ) -> Self {
        let why = each(kept, capacity, |slice| {
            let offer = capacity.offers.get(&slice)?;
            let room = bytes_of(capacity.room(placement, slice).frames);
            Some(format!("{slice} has {} of {} left", size(room), size(offer.bytes)))
        });
        Self::Memory { bytes: bytes_of(frames), why }
    }

    pub(super) fn device(device: u16, kept: &[SliceId]) -> Self {
        let slices: Vec<_> = kept.iter().map(SliceId::to_string).collect();
        let have = if kept.len() == 1 { "has" } else { "have" };
        let slices = slices.join(", ");
        let advice = "a disk or network has one where its option says standby=";
        Self::Device { device, why: format!("{slices} {have} no path to it ({advice})") }
    }
}

/// What there is to say of each slice; `say` is asked of those with an offer.
fn each(kept: &[SliceId], capacity: &Capacity, say: impl Fn(SliceId) -> Option<String>) -> String {
    let (with, without): (Vec<SliceId>, Vec<_>) =
        kept.iter().partition(|slice| capacity.offers.contains_key(slice));
    let said = with.into_iter().filter_map(say);
    let said = said.chain(without.iter().map(|slice| format!("{slice} offers nothing")));
    said.collect::<Vec<_>>().join(", ")
}

/// All of them, in one line.
pub(super) fn joined(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(Obstacle::to_string).collect::<Vec<_>>().join("; ")
}

/// vCPUs, ascending, with neighbours in one: `vcpu1, vcpu4 to vcpu7`.
pub(super) fn named(vcpus: &[VcpuId]) -> String {
    let mut text = String::new();
    for run in vcpus.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)) {
        let comma = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = match run {
            [first, .., last] => write!(text, "{comma}{first} to {last}"),
            [only] => write!(text, "{comma}{only}"),
            [] => Ok(()),
        };
    }
    text
}

/// Bytes in the largest unit of which there is one.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", bytes as f64 / f64::from(1 << 10)),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}
