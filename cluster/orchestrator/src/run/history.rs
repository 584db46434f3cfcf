//! The store forgets what was: whoever leads has it do so, some way behind the newest revision. etcd does not by itself, and takes no more
//! writes once all that was has filled it.
//!
//! ```text
//!   a term begins: the newest revision is noted ──EVERY──> forgotten up to there, the newest is noted ──EVERY──> ...
//! ```
//! So whoever reads page by page, or watches, may be as far behind as that.

use std::convert::Infallible;
use std::time::Duration;
use store::{Key, Revision, Store, StoreError};
use tokio::time::sleep;

/// Looks of a leader at its cluster between two times: five minutes, of one a second.
pub(super) const TICKS: u32 = 300;

/// Goes on beside what the leader does. Whatever fails is tried again the next time: a leader that cannot have anything forgotten leads on.
pub(super) async fn forget_history<S: Store>(store: &S, every: Duration) -> Infallible {
    let mut upto = None;
    loop {
        match forget(store, upto).await {
            Ok(newest) => upto = Some(newest),
            Err(error) => {
                tracing::warn!(%error, "the store does not forget what was: it grows meanwhile");
            }
        }
        sleep(every).await;
    }
}

/// Forgets up to what was the newest revision before; the newest one now.
async fn forget<S: Store>(store: &S, upto: Option<Revision>) -> Result<Revision, StoreError> {
    // Any key: what is asked for is the revision.
    let key = Key::new("hosts").unwrap_or_else(|error| unreachable!("a word is a key: {error}"));
    let newest = store.get(&key).await?.revision;
    if let Some(upto) = upto {
        store.compact(upto).await?;
    }
    Ok(newest)
}
