//! A transaction: writes that all happen, in one revision, if all comparisons hold; otherwise none does.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::entry::Value;
use crate::ids::{Revision, Term};
use crate::key::Key;

/// A value has at most so many bytes.
pub const VALUE_BYTES_MAX: usize = 128 * 1024;
/// A transaction has at most so many comparisons, and so many writes. etcd takes 128 of each.
pub const TXN_PARTS_MAX: usize = 100;
/// Keys and values of a transaction have at most so many bytes. etcd takes requests of 1.5 MiB.
pub const TXN_BYTES_MAX: usize = 1024 * 1024;

/// What no store is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TxnError {
    /// More than [`TXN_PARTS_MAX`].
    #[error("{0} comparisons; {TXN_PARTS_MAX} are allowed")]
    TooManyCompares(usize),
    /// More than [`TXN_PARTS_MAX`].
    #[error("{0} writes; {TXN_PARTS_MAX} are allowed")]
    TooManyWrites(usize),
    /// A commit with no write is a read.
    #[error("nothing to write")]
    NoWrites,
    /// More than [`VALUE_BYTES_MAX`].
    #[error("the value of {key} has {bytes} bytes; {VALUE_BYTES_MAX} are allowed")]
    ValueTooLarge {
        /// Whose value.
        key: Key,
        /// Its size.
        bytes: usize,
    },
    /// More than [`TXN_BYTES_MAX`].
    #[error("a transaction of {0} bytes; {TXN_BYTES_MAX} are allowed")]
    TooLarge(usize),
    /// Only one of the two would happen.
    #[error("{0} is written twice")]
    WrittenTwice(Key),
    /// No object has been written at revision 0: absence is a comparison of its own.
    #[error("{0} is compared with revision 0")]
    RevisionZero(Key),
}

/// What must hold when a transaction is committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// There is nothing under the key.
    Absent(Key),
    /// The object was last written at this revision.
    Unchanged(Key, Revision),
}

impl Compare {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Absent(key) | Self::Unchanged(key, _) => key,
        }
    }

    /// When the object must have been written last; none where there must be none.
    #[must_use]
    pub fn expected(&self) -> Option<Revision> {
        match self {
            Self::Absent(_) => None,
            Self::Unchanged(_, revision) => Some(*revision),
        }
    }
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Writes an object.
    Put(Key, Value),
    /// Removes it; nothing happens where there is none.
    Delete(Key),
}

impl Write {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Txn {
    /// The leader that writes; it is refused if another one leads by then, or nobody.
    pub term: Option<Term>,
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What is done then.
    pub writes: Vec<Write>,
}

impl Txn {
    /// Of the leader of this term.
    #[must_use]
    pub fn under(term: Term) -> Self {
        Self { term: Some(term), compares: Vec::new(), writes: Vec::new() }
    }

    /// Of anybody. What only the leader decides is never written so.
    #[must_use]
    pub fn unfenced() -> Self {
        Self { term: None, compares: Vec::new(), writes: Vec::new() }
    }

    /// Only if there is nothing under the key.
    #[must_use]
    pub fn if_absent(mut self, key: Key) -> Self {
        self.compares.push(Compare::Absent(key));
        self
    }

    /// Only if the object is as it was read.
    #[must_use]
    pub fn if_unchanged(mut self, key: Key, modified: Revision) -> Self {
        self.compares.push(Compare::Unchanged(key, modified));
        self
    }

    /// Writes an object.
    #[must_use]
    pub fn put(mut self, key: Key, value: impl Into<Value>) -> Self {
        self.writes.push(Write::Put(key, value.into()));
        self
    }

    /// Removes an object.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.writes.push(Write::Delete(key));
        self
    }

    /// Whether its sizes are within their bounds and it says one thing for each key.
    ///
    /// # Errors
    /// Where not.
    pub fn check(&self) -> Result<(), TxnError> {
        if self.compares.len() > TXN_PARTS_MAX {
            return Err(TxnError::TooManyCompares(self.compares.len()));
        }
        if self.writes.len() > TXN_PARTS_MAX {
            return Err(TxnError::TooManyWrites(self.writes.len()));
        }
        if self.writes.is_empty() {
            return Err(TxnError::NoWrites);
        }
        let mut bytes = 0;
        for compare in &self.compares {
            if compare.expected() == Some(Revision::ZERO) {
                return Err(TxnError::RevisionZero(compare.key().clone()));
            }
            bytes += compare.key().as_str().len();
        }
        let mut written = BTreeSet::new();
        for write in &self.writes {
            let key = write.key();
            if !written.insert(key) {
                return Err(TxnError::WrittenTwice(key.clone()));
            }
            bytes += key.as_str().len();
            if let Write::Put(_, value) = write {
                if value.len() > VALUE_BYTES_MAX {
                    return Err(TxnError::ValueTooLarge { key: key.clone(), bytes: value.len() });
                }
                bytes += value.len();
            }
        }
        if bytes > TXN_BYTES_MAX { Err(TxnError::TooLarge(bytes)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn bounds_are_kept() {
        let one = Txn::unfenced().put(key("a"), *b"1");
        let many = |count| (0..count).map(|n| key(&format!("k{n}")));

        assert_eq!(one.check(), Ok(()));
        assert_eq!(Txn::unfenced().check(), Err(TxnError::NoWrites));
        let twice = one.clone().delete(key("a"));
        assert_eq!(twice.check(), Err(TxnError::WrittenTwice(key("a"))));
        let zero = one.clone().if_unchanged(key("b"), Revision::ZERO);
        assert_eq!(zero.check(), Err(TxnError::RevisionZero(key("b"))));
        let compares = many(TXN_PARTS_MAX + 1).fold(one.clone(), Txn::if_absent);
        assert_eq!(compares.check(), Err(TxnError::TooManyCompares(TXN_PARTS_MAX + 1)));
        let writes = many(TXN_PARTS_MAX + 1).fold(Txn::unfenced(), Txn::delete);
        assert_eq!(writes.check(), Err(TxnError::TooManyWrites(TXN_PARTS_MAX + 1)));
        assert_eq!(many(TXN_PARTS_MAX).fold(Txn::unfenced(), Txn::delete).check(), Ok(()));
    }

    #[test]
    fn values_and_their_sum_are_bounded() {
        let value: Value = vec![0; VALUE_BYTES_MAX].into();
        let large = Txn::unfenced().put(key("a"), vec![0; VALUE_BYTES_MAX + 1]);
        let error = TxnError::ValueTooLarge { key: key("a"), bytes: VALUE_BYTES_MAX + 1 };
        assert_eq!(large.check(), Err(error));
        let count = TXN_BYTES_MAX / VALUE_BYTES_MAX;
        let fill = |count: usize| {
            (0..count).fold(Txn::unfenced(), |txn, n| txn.put(key(&format!("{n}")), value.clone()))
        };
        assert_eq!(fill(count - 1).check(), Ok(()));
        assert!(matches!(fill(count).check(), Err(TxnError::TooLarge(_))));
    }
}
