//! Why a VM starts nowhere at this moment.

use super::split::{Order, Splitter};
use crate::cluster::{Cluster, HostState};
use crate::ids::VmId;
use crate::resources::Resources;
use crate::spec::Spec;
use crate::validate::{Candidate, of_traits};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a VM starts nowhere at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Error)]
pub enum Refusal {
    /// No open host is what the VM needs, whatever is free there.
    #[error("no open host is what the VM needs")]
    NoHost,
    /// Hosts that would do have too little free altogether.
    #[error("{needs} are wanted, {cores} cores and {} MiB are free altogether", .memory * 2)]
    NoCapacity {
        /// What is wanted.
        needs: Resources,
        /// What is free.
        cores: u64,
        /// In units of 2 MiB.
        memory: u64,
    },
    /// There is room for more slices than the VM may have.
    #[error(
        "no host has room for all of it; split over {needed} hosts it would run, {allowed} are allowed"
    )]
    SpreadNotAllowed {
        /// Hosts that would be needed.
        needed: u16,
        /// Slices that it may have.
        allowed: u16,
    },
    /// There is enough altogether, but not on hosts that may share this VM.
    #[error("enough is free, but not on hosts that may share the VM")]
    Scattered,
    /// It has its turn after this one.
    #[error("it comes after {0}, which nobody passes now")]
    Behind(VmId),
}

/// Slices in the question whether a VM would fit if it could be split further.
const NEEDED_MAX: u16 = 64;

/// Why neither one host nor the allowed split has room.
pub(super) fn refuse(cluster: &Cluster, spec: &Spec) -> Refusal {
    let complete = Candidate::complete(spec, None);
    let slice = Candidate::slice(spec, None);
    let suits = |it: &Candidate<'_>| {
        let hosts = cluster.hosts();
        let sums = cluster.free(|traits| of_traits(traits, it).is_none());
        // Full hosts count too, so ask hosts only if nothing is free.
        let some = sums != (0, 0)
            || hosts.iter().any(|host| {
                host.state() == HostState::Open && of_traits(host.traits(), it).is_none()
            });
        (some, sums)
    };
    let (any_complete, free) = suits(&complete);
    let (any_slice, free_for_slices) = suits(&slice);
    if !any_complete && (!any_slice || spec.slices_max < 2) {
        return Refusal::NoHost;
    }
    let wide = Splitter { cluster, spec, vm: None, slices_max: NEEDED_MAX, is_last_tight: false };
    if let Some(shares) = wide.split(Order::MostFirst) {
        let needed = u16::try_from(shares.len()).unwrap_or(u16::MAX);
        if needed > spec.slices_max {
            return Refusal::SpreadNotAllowed { needed, allowed: spec.slices_max };
        }
    }
    let (cores, memory) = if spec.slices_max < 2 { free } else { free_for_slices };
    let needs = spec.needs;
    if cores < u64::from(needs.cores) || memory < u64::from(needs.memory) {
        return Refusal::NoCapacity { needs, cores, memory };
    }
    Refusal::Scattered
}
