//! The journal: what an agent has to know after it was killed.

use super::ids::{Generation, Operation, SliceName, Term, Token, Vm};
use super::slice::Slice;
use scheduler::Resources;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    /// For which slice.
    pub slice: SliceName,
    /// Of which life of its VM.
    pub generation: Generation,
    /// How much.
    pub resources: Resources,
    /// Until then.
    pub until: u64,
}

/// The lowest life of a VM that may run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lowest {
    /// It.
    pub generation: Generation,
    /// When something of the VM has last changed here.
    pub since: u64,
}

impl Lowest {
    pub(super) fn counted_from(self, now: u64) -> Self {
        Self { since: now, ..self }
    }
}

/// A line of the journal. A later one about the same thing takes the place of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// The highest term that was seen.
    Term(Term),
    /// The token of the next start.
    NextToken(Token),
    /// The lowest life of a VM that may run here.
    Lowest(Vm, Lowest),
    /// A VM that has had no slice here for long.
    Forgotten(Vm),
    /// A slice; none if it is forgotten.
    Slice(SliceName, Option<Slice>),
    /// A reservation; none if it is over.
    Reserved(Operation, Option<Reserved>),
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Journal {
    /// The highest term that was seen.
    pub term: Term,
    /// The token of the next start.
    pub next_token: Token,
    /// The lowest life of each VM that may run here, of those that were ever here.
    pub lowest: BTreeMap<Vm, Lowest>,
    /// Slices.
    pub slices: BTreeMap<SliceName, Slice>,
    /// Reservations.
    pub reserved: BTreeMap<Operation, Reserved>,
}

impl Journal {
    /// Takes a line in.
    pub fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Term(term) => self.term = *term,
            Entry::NextToken(token) => self.next_token = *token,
            Entry::Lowest(vm, lowest) => {
                self.lowest.insert(*vm, *lowest);
            }
            Entry::Forgotten(vm) => {
                self.lowest.remove(vm);
            }
            Entry::Slice(name, Some(slice)) => {
                self.slices.insert(*name, slice.clone());
            }
            Entry::Slice(name, None) => {
                self.slices.remove(name);
            }
            Entry::Reserved(operation, Some(reserved)) => {
                self.reserved.insert(*operation, *reserved);
            }
            Entry::Reserved(operation, None) => {
                self.reserved.remove(operation);
            }
        }
    }
}
