//! All objects, each with the versions that somebody may still read.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::entry::{Change, Entry, Value};
use crate::ids::Revision;
use crate::key::{Key, Prefix};

/// A page is full when its values have so many bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// What a key had from a revision on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Version {
    modified: Revision,
    /// The object's first revision and its value; none where it was removed.
    content: Option<(Revision, Value)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Objects {
    /// Oldest first, and at least one each.
    versions: BTreeMap<Key, VecDeque<Version>>,
    /// Of what is there now: keys and values.
    bytes: u64,
}

fn size(key: &Key, version: Option<&Version>) -> u64 {
    let content = version.and_then(|version| version.content.as_ref());
    content.map_or(0, |(_, value)| (key.as_str().len() + value.len()) as u64)
}

impl Objects {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is there now.
    pub(super) fn newest(&self, key: &Key) -> Option<Entry> {
        self.at(key, Revision(u64::MAX))
    }

    pub(super) fn at(&self, key: &Key, revision: Revision) -> Option<Entry> {
        entry_at(key, self.versions.get(key)?, revision)
    }

    /// Entries at a revision, in the order of keys, and whether there are more.
    pub(super) fn page(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
        revision: Revision,
    ) -> (Vec<Entry>, bool) {
        let from = after.map_or_else(
            || Bound::Included(prefix.as_str()),
            |after| Bound::Excluded(after.as_str()),
        );
        let below = self.versions.range::<str, _>((from, Bound::Unbounded));
        let below = below.take_while(|(key, _)| prefix.has(key));
        let there = below.filter_map(|(key, versions)| entry_at(key, versions, revision));
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for entry in there {
            if entries.len() == limit || bytes >= PAGE_BYTES {
                return (entries, true);
            }
            bytes += entry.value.len();
            entries.push(entry);
        }
        (entries, false)
    }

    /// The room that a change takes, or gives back.
    pub(super) fn growth(&self, change: &Change) -> i128 {
        let key = change.key();
        let before = size(key, self.versions.get(key).and_then(VecDeque::back));
        let after = match change {
            Change::Put(entry) => (key.as_str().len() + entry.value.len()) as u64,
            Change::Delete(_) => 0,
        };
        i128::from(after) - i128::from(before)
    }

    pub(super) fn apply(&mut self, change: &Change, modified: Revision) {
        let content = match change {
            Change::Put(entry) => Some((entry.created, entry.value.clone())),
            Change::Delete(_) => None,
        };
        let versions = self.versions.entry(change.key().clone()).or_default();
        self.bytes -= size(change.key(), versions.back());
        versions.push_back(Version { modified, content });
        self.bytes += size(change.key(), versions.back());
    }

    /// Takes the newest version of the key back.
    pub(super) fn undo(&mut self, key: &Key) {
        let Some(versions) = self.versions.get_mut(key) else { return };
        self.bytes -= size(key, versions.back());
        versions.pop_back();
        self.bytes += size(key, versions.back());
        if versions.is_empty() {
            self.versions.remove(key);
        }
    }

    /// Forgets versions of the key that nobody reads who reads at this revision or a later one.
    pub(super) fn forget(&mut self, key: &Key, oldest: Revision) {
        let Some(versions) = self.versions.get_mut(key) else { return };
        let old = versions.iter().take_while(|version| version.modified <= oldest).count();
        versions.drain(..old.saturating_sub(1));
        let removed = |version: &Version| version.modified <= oldest && version.content.is_none();
        if versions.front().is_some_and(removed) {
            versions.pop_front();
        }
        if versions.is_empty() {
            self.versions.remove(key);
        }
    }
}

fn entry_at(key: &Key, versions: &VecDeque<Version>, revision: Revision) -> Option<Entry> {
    let version = versions.iter().rev().find(|version| version.modified <= revision)?;
    let (created, value) = version.content.as_ref()?;
    Some(Entry {
        key: key.clone(),
        value: value.clone(),
        created: *created,
        modified: version.modified,
    })
}
