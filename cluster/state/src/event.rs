//! What happened, for people. What happens again is counted.

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Name};

const MESSAGE_BYTES_MAX: usize = 4096;

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The key of the object.
    pub object: String,
    /// Why, in a word that programs compare.
    pub reason: Name,
    /// In words.
    pub message: String,
    /// How often.
    pub count: u64,
    /// Seconds since 1970.
    pub first: u64,
    /// Seconds since 1970.
    pub last: u64,
}

impl Event {
    /// The same thing once more.
    #[must_use]
    pub fn again(&self, message: &str, now: u64) -> Self {
        Self {
            message: message.to_owned(),
            count: self.count.saturating_add(1),
            last: self.last.max(now),
            ..self.clone()
        }
    }

    /// Whether it is to be forgotten.
    #[must_use]
    pub fn expired(&self, now: u64, keep: u64) -> bool {
        self.last.saturating_add(keep) < now
    }
}

impl Object for Event {
    const KIND: &'static str = "event";

    fn key(&self) -> String {
        keys::event(&self.object, &self.reason)
    }

    fn check(&self) -> Result<(), String> {
        if self.message.len() > MESSAGE_BYTES_MAX {
            let bytes = self.message.len();
            return Err(format!("a message of {bytes} bytes; {MESSAGE_BYTES_MAX} are allowed"));
        }
        if self.count == 0 || self.first > self.last {
            return Err("it has never happened".to_owned());
        }
        Ok(())
    }
}
