//! A host: what it has, and what its operator wants of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Name};
use crate::numbers::Generation;

const NODES_MAX: usize = 256;
const LABELS_MAX: usize = 64;
const AGENT_BYTES_MAX: usize = 512;
const AGENT_ID_BYTES_MAX: usize = 64;

/// A part of a host whose memory is near its cores.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Cores that VMs may have.
    pub cores: u16,
    /// Memory that they may have, in MiB.
    pub memory_mib: u64,
}

/// What its agent says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Another one after each start of the host: its slices are gone then.
    pub boot_id: String,
    /// Advanced by the agent with each change of what is here.
    pub generation: Generation,
    /// What it has.
    pub nodes: Vec<NumaNode>,
    /// The version of the agent.
    pub version: String,
    /// Which agent it is, by its journal; empty if it does not say. No two hosts have the same one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent: String,
}

/// What its operator wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostDesired {
    /// Where its agent is reached.
    pub agent: String,
    /// Nothing new is placed there.
    pub cordoned: bool,
    /// What can move away does.
    #[serde(default, skip_serializing_if = "is_false")]
    pub draining: bool,
    /// By which users choose hosts.
    pub labels: BTreeMap<Name, String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_false(it: &bool) -> bool {
    !*it
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: Name,
    /// What it has; not known before its agent has answered.
    pub facts: Option<Facts>,
    /// What is wanted of it.
    pub desired: HostDesired,
}

impl Object for Host {
    const KIND: &'static str = "host";

    fn key(&self) -> String {
        keys::host(&self.name)
    }

    fn check(&self) -> Result<(), String> {
        let agent = self.desired.agent.len();
        if agent == 0 || agent > AGENT_BYTES_MAX {
            return Err(format!("an agent's address has 1 to {AGENT_BYTES_MAX} bytes"));
        }
        let labels = self.desired.labels.len();
        if labels > LABELS_MAX {
            return Err(format!("{labels} labels; {LABELS_MAX} are allowed"));
        }
        let Some(facts) = &self.facts else { return Ok(()) };
        let nodes = facts.nodes.len();
        if nodes == 0 || nodes > NODES_MAX {
            return Err(format!("{nodes} NUMA nodes; 1 to {NODES_MAX} are allowed"));
        }
        let agent = facts.agent.len();
        if agent > AGENT_ID_BYTES_MAX {
            return Err(format!("an agent's identity of {agent} bytes"));
        }
        if facts.boot_id.is_empty() { Err("no boot id".to_owned()) } else { Ok(()) }
    }
}
