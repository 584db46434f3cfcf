//! Who leads: one at a time, each with a larger term.
//!
//! ```text
//!   nobody ──campaign: term + 1──> leader ──renew──> leader
//!      ^                             │
//!      └──── resign, lease over ─────┘      another campaign waits as long as somebody leads
//! ```

use crate::ids::Term;
use crate::lease::{BootTime, Candidate, Leader};
use crate::planted::{Planted, PlantedBug};

/// Somebody else leads, if nothing happens until this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// When its lease is over.
    pub until: BootTime,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reign {
    candidate: Candidate,
    until: BootTime,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Election {
    /// Of the newest leader, whether it still leads or not.
    term: Term,
    reign: Option<Reign>,
    pub(super) planted: Planted,
}

impl Election {
    pub(super) fn new(term: Term) -> Self {
        Self { term, ..Self::default() }
    }

    pub(super) fn last_term(&self) -> Term {
        self.term
    }

    pub(super) fn campaign(&mut self, now: BootTime, who: &Candidate) -> Result<Term, Held> {
        if let Some(reign) = self.reign.as_ref().filter(|reign| now < reign.until) {
            return Err(Held { until: reign.until });
        }
        if !self.planted.has(PlantedBug::TermNotAdvanced) {
            self.term = Term(self.term.0 + 1);
        }
        self.reign = Some(Reign { candidate: who.clone(), until: now.after(who.lease) });
        Ok(self.term)
    }

    /// The term of who leads.
    pub(super) fn current(&self, now: BootTime) -> Option<Term> {
        let forever = self.planted.has(PlantedBug::DeposedAccepted);
        let reign = self.reign.as_ref().filter(|reign| forever || now < reign.until);
        reign.map(|_| self.term)
    }

    pub(super) fn leader(&self, now: BootTime) -> Option<Leader> {
        let reign = self.reign.as_ref().filter(|reign| now < reign.until)?;
        Some(Leader { term: self.term, name: reign.candidate.name.clone() })
    }

    /// Whether the leader of this term still leads; its lease begins anew then.
    pub(super) fn renew(&mut self, now: BootTime, term: Term) -> bool {
        let reign = self.reign.as_mut().filter(|reign| self.term == term && now < reign.until);
        let leads = reign.is_some();
        if let Some(reign) = reign {
            reign.until = now.after(reign.candidate.lease);
        }
        leads
    }

    /// Takes back whoever leads since a term; nobody did before. A lease that has been renewed meanwhile stays.
    pub(super) fn roll_back(&mut self, term: Term) {
        if self.term != term {
            self.term = term;
            self.reign = None;
        }
    }

    pub(super) fn resign(&mut self, term: Term) {
        if self.term == term {
            self.reign = None;
        }
    }
}
