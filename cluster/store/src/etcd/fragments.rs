//! Puts what etcd tells a watcher in pieces together to commits.
//!
//! ```text
//!   response ── events of revisions 5 6 6 | fragment ──> 5, and 6 waits
//!   response ── events of revisions 6 7   | whole    ──> 6, 7
//! ```

use std::sync::Arc;

use super::client::known;
use super::convert::entry;
use super::options::Names;
use super::proto::event::EventType;
use super::proto::{Event, WatchResponse};
use crate::entry::{Batch, Change};
use crate::error::StoreError;
use crate::ids::Revision;

/// Pieces of one commit have at most so many changes: more than any transaction makes.
const CHANGES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// A commit of which more may follow.
    open: Option<Batch>,
}

fn change(names: &Names, event: Event) -> Result<(Revision, Change), StoreError> {
    let kind = event.r#type();
    let value = event.kv.ok_or_else(|| StoreError::Corrupt("an event without a key".to_owned()))?;
    let revision = known(value.mod_revision)?;
    Ok(match kind {
        EventType::Put => (revision, Change::Put(entry(names, value)?)),
        EventType::Delete => {
            (revision, Change::Delete(names.parse(&value.key).map_err(StoreError::Corrupt)?))
        }
    })
}

impl Fragments {
    /// Commits that are complete, in order; `seen` is the newest before them.
    pub(super) fn take(
        &mut self,
        names: &Names,
        response: WatchResponse,
        seen: Revision,
    ) -> Result<Vec<Arc<Batch>>, StoreError> {
        let mut complete = Vec::new();
        let mut newest = seen;
        for event in response.events {
            let (revision, change) = change(names, event)?;
            let open = self.open.take_if(|open| open.revision != revision);
            if let Some(batch) = open {
                newest = batch.revision;
                complete.push(finish(batch));
            }
            if revision <= newest {
                return Err(StoreError::Corrupt(format!("{revision} after {newest}")));
            }
            let open = self.open.get_or_insert(Batch { revision, changes: Vec::new() });
            if open.changes.len() == CHANGES_MAX {
                return Err(StoreError::Corrupt(format!("too many changes at {revision}")));
            }
            open.changes.push(change);
        }
        if !response.fragment {
            complete.extend(self.open.take().map(finish));
        }
        Ok(complete)
    }
}

fn finish(mut batch: Batch) -> Arc<Batch> {
    batch.changes.sort_by(|a, b| a.key().cmp(b.key()));
    Arc::new(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::proto::KeyValue;

    fn event(name: &str, revision: i64, kind: EventType) -> Event {
        let kv = KeyValue {
            key: format!("r/objects/{name}").into_bytes(),
            mod_revision: revision,
            create_revision: revision,
            ..KeyValue::default()
        };
        Event { r#type: kind.into(), kv: Some(kv) }
    }

    fn response(events: &[(&str, i64)], fragment: bool) -> WatchResponse {
        let put = |(name, revision): &(&str, i64)| event(name, *revision, EventType::Put);
        WatchResponse { events: events.iter().map(put).collect(), fragment, ..Default::default() }
    }

    fn shown(batches: &[Arc<Batch>]) -> Vec<(u64, Vec<String>)> {
        let keys = |batch: &Arc<Batch>| {
            (
                batch.revision.0,
                batch.changes.iter().map(|change| change.key().to_string()).collect(),
            )
        };
        batches.iter().map(keys).collect()
    }

    #[test]
    fn commit_in_two_pieces_is_told_once() {
        let names = Names::new("r").unwrap();
        let mut fragments = Fragments::default();
        let first = response(&[("a", 5), ("c", 6), ("a", 6)], true);
        let first = fragments.take(&names, first, Revision(4)).unwrap();
        assert_eq!(shown(&first), [(5, vec!["a".to_owned()])]);
        let second = response(&[("b", 6), ("a", 7)], false);
        let second = fragments.take(&names, second, Revision(5)).unwrap();
        let all = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(shown(&second), [(6, all), (7, vec!["a".to_owned()])]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let names = Names::new("r").unwrap();
        let refused = |response| Fragments::default().take(&names, response, Revision(4)).is_err();
        assert!(refused(response(&[("a", 4)], false)), "it has been told");
        assert!(refused(response(&[("a", 6), ("a", 5)], false)), "back in time");
        assert!(refused(response(&[("a//b", 5)], false)), "no key");
        assert!(refused(response(&[("a", 0)], false)), "no revision");
        let many: Vec<_> = (0..=CHANGES_MAX).map(|_| ("a", 5)).collect();
        assert!(refused(response(&many, false)), "no end");
        let empty = Event { r#type: 0, kv: None };
        assert!(refused(WatchResponse { events: vec![empty], ..Default::default() }));
        let gone = event("a", 5, EventType::Delete);
        let gone = WatchResponse { events: vec![gone], ..Default::default() };
        let batches = Fragments::default().take(&names, gone, Revision(4)).unwrap();
        assert!(matches!(batches[0].changes[..], [Change::Delete(_)]));
    }
}
