//! Something that was asked for by an id. Asked again, it is this one.

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Uid};

const ANSWER_BYTES_MAX: usize = 256;

/// A request that has been done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// What names it.
    pub id: Uid,
    /// A digest of what was asked.
    pub content: String,
    /// The name of what was answered: an operation, or a VM.
    pub answer: String,
    /// When, in seconds since 1970.
    pub at: u64,
}

impl Object for Asked {
    const KIND: &'static str = "asked";

    fn key(&self) -> String {
        keys::request(&self.id)
    }

    fn check(&self) -> Result<(), String> {
        if self.content.is_empty() || self.answer.len() > ANSWER_BYTES_MAX {
            return Err("its content or its answer is none".to_owned());
        }
        Ok(())
    }
}
