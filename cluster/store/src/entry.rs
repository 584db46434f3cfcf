//! What is read from a store: objects, pages of them, and what has changed.

use std::sync::Arc;

use crate::ids::Revision;
use crate::key::{Key, Prefix};

/// A page has at most so many entries. It may have fewer where they are large.
pub const PAGE_MAX: usize = 256;

/// What is kept under a key. Copies share the bytes.
pub type Value = Arc<[u8]>;

/// An object as it was at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// Its bytes.
    pub value: Value,
    /// When it came to be; a later one under the same name has another.
    pub created: Revision,
    /// When it was last written.
    pub modified: Revision,
}

/// The answer to a read of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The newest revision when it was read.
    pub revision: Revision,
    /// What was there.
    pub entry: Option<Entry>,
}

/// Where a list goes on: all its pages show one revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageToken {
    /// The revision of the first page.
    pub revision: Revision,
    /// The last key of the page before.
    pub after: Key,
}

/// Some entries of a list, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// All pages of a list have the same.
    pub revision: Revision,
    /// At least one, where there is a further page.
    pub entries: Vec<Entry>,
    /// For the next page, if there is one.
    pub next: Option<PageToken>,
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It was written.
    Put(Entry),
    /// It was there, and is not any more.
    Delete(Key),
}

impl Change {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete(key) => key,
        }
    }
}

/// All changes of one commit, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    /// The revision that the commit made.
    pub revision: Revision,
    /// One for each key.
    pub changes: Vec<Change>,
}

impl Batch {
    /// Its changes under the prefix, if there are any.
    pub(crate) fn under(self: &Arc<Self>, prefix: &Prefix) -> Option<Arc<Self>> {
        let count = self.changes.iter().filter(|change| prefix.has(change.key())).count();
        if count == self.changes.len() {
            return Some(Arc::clone(self));
        }
        let changes = || self.changes.iter().filter(|change| prefix.has(change.key())).cloned();
        (count > 0)
            .then(|| Arc::new(Self { revision: self.revision, changes: changes().collect() }))
    }
}

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A commit changed something under the prefix.
    Batch(Arc<Batch>),
    /// Nothing under the prefix has changed up to this revision that has not been told: a place to go on from.
    Progress(Revision),
}
