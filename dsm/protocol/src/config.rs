//! What a node is told when it is made.

use crate::hold::HoldPolicy;
use crate::homes::HomeTable;
use crate::mechanisms::Mechanisms;
use crate::tables::Replicate;
use wire::{Epoch, SliceId};

/// Default number of vCPUs.
const VCPUS: u32 = 256;

/// What a node is told when it is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// This slice.
    pub local: SliceId,
    /// All slices, this one too, ascending. At most 64.
    pub slices: Vec<SliceId>,
    /// Who is home of what.
    pub homes: HomeTable,
    /// The epoch. Messages of another are refused.
    pub epoch: Epoch,
    /// The hold window.
    pub hold: HoldPolicy,
    /// Which optional mechanisms this slice uses.
    pub mechanisms: Mechanisms,
    /// Which page-table pages become replicas.
    pub replicate: Replicate,
    /// vCPUs of the VM; a peer that names another breaks the protocol.
    pub vcpus: u32,
    /// A bug to plant.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<crate::planted::PlantedBug>,
}

impl Config {
    /// A configuration of `epoch` without hold window and without replicated tables.
    #[must_use]
    pub fn new(local: SliceId, slices: Vec<SliceId>, homes: HomeTable, epoch: Epoch) -> Self {
        Self {
            local,
            slices,
            homes,
            epoch,
            hold: HoldPolicy::NONE,
            mechanisms: Mechanisms::ALL,
            replicate: Replicate::Nothing,
            vcpus: VCPUS,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}
