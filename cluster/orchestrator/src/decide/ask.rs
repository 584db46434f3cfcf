//! What users ask, and what they are told.

use state::{Name, RunStrategy, Secret, Uid, VmDesired};
use thiserror::Error;

/// A request that has an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What names it.
    pub id: Uid,
    /// A digest of what is asked.
    pub content: String,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Have a VM be.
    Create {
        /// Its name.
        name: Name,
        /// 128 random bits.
        uid: Uid,
        /// Random too.
        secret: Secret,
        /// What is wanted.
        desired: Box<VmDesired>,
        /// Of a plan, if it was planned.
        plan: Option<String>,
    },
    /// Change when it runs.
    Update {
        /// Which.
        name: Name,
        /// When from now on.
        run: RunStrategy,
        /// As it is known.
        etag: Option<String>,
    },
    /// Have it be no more.
    Delete {
        /// Which.
        name: Name,
        /// As it is known.
        etag: Option<String>,
    },
    /// Make a host known.
    Register {
        /// Its name.
        name: Name,
        /// Where its agent is reached.
        agent: String,
    },
    /// Whether it takes VMs.
    Cordon {
        /// Which.
        name: Name,
        /// It does not.
        cordoned: bool,
    },
    /// Have what can move away from a host do so; nothing new is placed there.
    Drain {
        /// Which.
        name: Name,
    },
    /// Forget a host.
    RemoveHost {
        /// Which.
        name: Name,
        /// Nothing runs there any more: the operator's word.
        gone: bool,
    },
}

impl Ask {
    /// For who reads the log.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Create { name, .. } => format!("have VM {name} be"),
            Self::Update { name, run, .. } => format!("VM {name} is to run: {run:?}"),
            Self::Delete { name, .. } => format!("delete VM {name}"),
            Self::Register { name, agent } => format!("host {name} is at {agent}"),
            Self::Cordon { name, cordoned: true } => format!("cordon host {name}"),
            Self::Cordon { name, cordoned: false } => format!("host {name} takes VMs"),
            Self::Drain { name } => format!("drain host {name}"),
            Self::RemoveHost { name, gone: true } => {
                format!("host {name} is gone, and nothing runs there any more")
            }
            Self::RemoveHost { name, gone: false } => format!("forget host {name}"),
        }
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is being done: what is waited for is the goal of this name.
    Goal(Name),
    /// A VM, as it is now.
    Vm(Name),
    /// A host, as it is now.
    Host(Name),
    /// It is done.
    Done,
    /// It could be done.
    Valid,
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// There is one of this name.
    #[error("there is a VM {0} already")]
    VmExists(Name),
    /// There is none.
    #[error("there is no VM {0}")]
    NoVm(Name),
    /// It is to be no more.
    #[error("VM {0} is being deleted")]
    VmDeleted(Name),
    /// There is none.
    #[error("there is no host {0}")]
    NoHost(Name),
    /// Another agent is known by this name.
    #[error("host {name} is known, and its agent is at {agent}: remove it first")]
    HostExists {
        /// Which.
        name: Name,
        /// Where its agent is.
        agent: String,
    },
    /// Another host is known by this agent.
    #[error("the agent at {agent} is known as that of host {host}")]
    AgentKnown {
        /// Which.
        host: Name,
        /// Where it is.
        agent: String,
    },
    /// Something is there.
    #[error("{count} VMs have a part of host {name}: end them first, or say that it is gone")]
    HostInUse {
        /// Which.
        name: Name,
        /// How many.
        count: usize,
    },
    /// It says something that cannot be.
    #[error("{why}")]
    Invalid {
        /// Which part.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// It has changed.
    #[error("it has changed: its etag is {current}")]
    Etag {
        /// As it is now.
        current: String,
    },
    /// The id is of something else.
    #[error("this request_id was used for another request")]
    RequestReused,
    /// The cluster would decide otherwise by now.
    #[error("the cluster has changed since the plan was made: plan again")]
    PlanStale,
    /// More than are kept.
    #[error("{count} {what} are there already, and no more are taken")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
    },
    /// Somebody else leads.
    #[error("another orchestrator leads")]
    Deposed,
}
