//! All objects of the store, when a leader begins.

use crate::decide::{Objects, Stored};
use state::FormError;
use store::{Key, KeyError, PAGE_MAX, Prefix, Store, StoreError};
use thiserror::Error;

/// What the machine has a use for.
const KINDS: [&str; 7] =
    ["vms", "assignments", "hosts", "operations", "secrets", "asked", "checkpoints"];

/// Why there is nothing to begin from.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The store does not say.
    #[error("read the store")]
    Store(#[from] StoreError),
    /// A key that cannot be.
    #[error("name what is in the store")]
    Key(#[from] KeyError),
    /// Something else is there than should be, or a newer orchestrator has written it.
    #[error("read {key} in the store")]
    Form {
        /// Where.
        key: String,
        /// What is wrong.
        #[source]
        source: FormError,
    },
}

/// Reads all of them. Only the leader writes, so pages of different kinds agree.
pub(crate) async fn load<S: Store>(store: &S) -> Result<Objects, LoadError> {
    let mut all = Vec::new();
    for kind in KINDS {
        let prefix = Prefix::below(&Key::new(kind)?);
        let mut token = None;
        loop {
            let page = store.list(&prefix, PAGE_MAX, token.as_ref()).await?;
            for entry in page.entries {
                let key = entry.key.as_str();
                let read = Stored::from_form(key, &entry.value);
                let read =
                    read.map_err(|source| LoadError::Form { key: key.to_owned(), source })?;
                all.extend(read);
            }
            token = page.next;
            if token.is_none() {
                break;
            }
        }
    }
    Ok(Objects::new(all))
}
