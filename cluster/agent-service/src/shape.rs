//! What the journal and the inventory say, as messages of the API.

use crate::inventory::Inventory;
use crate::names::slice_name;
use crate::order::{bytes, listens};
use agent::decide::{End, Journal, Phase, Slice, SliceName};
use control::v1::host_slice::State;
use control::v1::{Ability, Host, HostNode, HostResources, HostSlice, host_slice};
use scheduler::Resources;

/// What does not change while an agent runs.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    /// hosts/NAME.
    pub(crate) name: String,
    /// Of its journal.
    pub(crate) agent_id: String,
    pub(crate) inventory: Inventory,
    pub(crate) images: String,
    pub(crate) checkpoints: String,
}

fn resources(of: Resources) -> HostResources {
    HostResources { cores: of.cores, memory_bytes: bytes(of) }
}

/// The host at this moment. Its revision is whoever tells of it to say.
pub(crate) fn host(fixed: &Fixed, journal: &Journal, now: u64) -> Host {
    let Fixed { name, agent_id, inventory, images, checkpoints } = fixed;
    let capacity = inventory.capacity();
    let nodes = inventory.nodes.iter();
    let abilities = inventory.abilities.iter();
    let slices = journal.slices.iter();
    Host {
        name: name.clone(),
        boot_id: inventory.boot_id.clone(),
        revision: 0,
        term: journal.term.0,
        capacity: Some(resources(capacity)),
        free: Some(resources(journal.free(capacity, now, |_| true))),
        nodes: nodes
            .map(|it| HostNode { number: it.number, capacity: Some(resources(it.capacity)) })
            .collect(),
        abilities: abilities
            .map(|it| Ability {
                name: it.name.to_owned(),
                present: it.why_not.is_none(),
                why_not: it.why_not.clone().unwrap_or_default(),
            })
            .collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        slices: slices.map(|(name, it)| slice(*name, it)).collect(),
        images: images.clone(),
        checkpoints: checkpoints.clone(),
        cpu_features: inventory.cpu_features.clone(),
        cpu_model: inventory.cpu_model.clone(),
        kernel: inventory.kernel.clone(),
        agent_id: agent_id.clone(),
    }
}

/// A slice.
pub(crate) fn slice(name: SliceName, slice: &Slice) -> HostSlice {
    let (state, process, end) = match &slice.phase {
        Phase::Starting => (State::Starting, 0, None),
        Phase::Running(process) => {
            let state = if slice.stop.is_some() { State::Stopping } else { State::Running };
            (state, process.id, None)
        }
        Phase::Ended(end) => {
            let status = match end {
                End::Status(status) => Some(u32::from(*status)),
                _ => None,
            };
            (State::Ended, 0, Some(host_slice::End { cause: end.to_string(), status }))
        }
    };
    HostSlice {
        name: slice_name(name),
        life: slice.generation.0,
        state: state.into(),
        resources: Some(resources(slice.order.resources)),
        address: listens(&slice.order).map(|it| it.to_string()).unwrap_or_default(),
        process,
        end,
    }
}
