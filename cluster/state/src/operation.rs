//! Something that takes several steps, each of which can be undone until the last is done.

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Name};
use crate::numbers::{Generation, Term};

const STEPS_MAX: usize = 256;

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What it does, in words.
    pub what: String,
    /// It has been done.
    pub done: bool,
    /// It has been done, and taken back.
    pub undone: bool,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OperationResult {
    /// All steps are done.
    Done,
    /// It was given up; all steps that were done are undone.
    Failed {
        /// Why, in words.
        why: String,
    },
}

/// What an operation brings about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// A VM runs.
    Start,
    /// It runs no more.
    Stop,
    /// It runs no more, and begins a new life.
    Restart,
    /// It is no more.
    Delete,
    /// A slice of it goes to another host, and it runs meanwhile.
    Move,
    /// It is written down, and runs meanwhile.
    Checkpoint,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Its name.
    pub id: Name,
    /// What somebody asked for, in hexadecimal: asked again, it is this one.
    pub request: String,
    /// About which VM.
    pub vm: Name,
    /// What it brings about.
    pub verb: Verb,
    /// Which life of the VM it is about.
    pub life: u64,
    /// The assignment that it carries out. When another one is current, it stops, and is undone.
    pub generation: Generation,
    /// The leader that runs it.
    pub term: Term,
    /// In their order.
    pub steps: Vec<Step>,
    /// Why its steps are being undone, if they are.
    pub undoing: Option<String>,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// None while it runs.
    pub result: Option<OperationResult>,
}

impl Object for Operation {
    const KIND: &'static str = "operation";

    fn key(&self) -> String {
        keys::operation(&self.id)
    }

    fn check(&self) -> Result<(), String> {
        if self.steps.len() > STEPS_MAX {
            return Err(format!("{} steps; {STEPS_MAX} are allowed", self.steps.len()));
        }
        if self.steps.iter().any(|step| step.undone && !step.done) {
            return Err("a step is undone that was not done".to_owned());
        }
        let after = self.steps.iter().skip_while(|step| step.done);
        if after.clone().any(|step| step.done) {
            return Err("a step is done before an earlier one".to_owned());
        }
        match &self.result {
            Some(OperationResult::Done) if self.undoing.is_some() => {
                Err("it is done, and is being undone".to_owned())
            }
            Some(OperationResult::Done)
                if self.steps.iter().any(|step| !step.done || step.undone) =>
            {
                Err("it is done, and not all of its steps are".to_owned())
            }
            Some(OperationResult::Failed { .. })
                if self.steps.iter().any(|step| step.done && !step.undone) =>
            {
                Err("it has failed, and not all of its steps are undone".to_owned())
            }
            _ => Ok(()),
        }
    }
}
