//! `tessera vm list --watch`: the VMs of a cluster, and each of them again when what is printed of it changes.
//!
//! ```text
//!   watch ──each VM once──> a bookmark ──changes, bookmarks──> ...
//!     ^                        └─those known before that were not told are gone
//!     └──a pause <── the connection ends, is silent for SILENCE, or somebody else leads
//! ```
//! Whoever watches again is told all once more, so nothing that lasts is missed, and what is as before is not printed twice.

use super::connect::Cluster;
use super::output::{self, Entry, Format, Rows};
use anyhow::Result;
use control::v1::WatchVmsRequest;
use control::v1::vms_client::VmsClient;
use control::v1::watch_vms_response::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A bookmark comes each ten seconds.
const SILENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// What has been printed.
#[derive(Debug, Default)]
struct Known {
    /// Of each VM, by its name.
    vms: BTreeMap<String, Value>,
    /// Those that were told since the watch began, until all were.
    told: Option<BTreeSet<String>>,
}

impl Known {
    fn begin(&mut self) {
        self.told = Some(BTreeSet::new());
    }

    /// What is to be printed of a message.
    fn hear(&mut self, kind: Kind) -> Vec<Entry> {
        match kind {
            Kind::Vm(vm) => {
                let entry = output::vm(&vm);
                self.told.iter_mut().for_each(|told| {
                    told.insert(entry.name.clone());
                });
                let before = self.vms.insert(entry.name.clone(), entry.value.clone());
                if before.as_ref() == Some(&entry.value) { Vec::new() } else { vec![entry] }
            }
            Kind::Deleted(name) => self.forget(name.strip_prefix("vms/").unwrap_or(&name)),
            Kind::Bookmark(_) => {
                let Some(told) = self.told.take() else { return Vec::new() };
                let gone: Vec<String> =
                    self.vms.keys().filter(|name| !told.contains(*name)).cloned().collect();
                gone.iter().flat_map(|name| self.forget(name)).collect()
            }
        }
    }

    fn forget(&mut self, name: &str) -> Vec<Entry> {
        if self.vms.remove(name).is_none() {
            return Vec::new();
        }
        let value = json!({ "name": name, "state": "DELETED" });
        let cells = [name, "DELETED", "-", "-", "-", "-", ""].map(str::to_owned).into();
        vec![Entry { name: name.to_owned(), cells, value }]
    }
}

/// Prints until nobody leads for some time, or nobody reads.
pub(super) fn run(cluster: &Cluster, format: Format) -> Result<()> {
    let mut rows = Rows::new(format, &output::VM);
    let mut known = Known::default();
    loop {
        let mut stream = cluster
            .ask(&WatchVmsRequest::default(), |channel, request| async move {
                VmsClient::new(channel).watch_vms(request).await
            })?;
        known.begin();
        while let Some(message) = cluster.within(SILENCE, stream.message()) {
            // Who ends it says why: somebody else leads, or this program has read too slowly. It is asked anew.
            let Ok(Some(message)) = message else { break };
            for entry in message.kind.into_iter().flat_map(|kind| known.hear(kind)) {
                rows.print(&entry)?;
            }
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::v1::watch_vms_response::Bookmark;
    use control::v1::{ClusterVm, cluster_vm::State};

    fn vm(name: &str, state: State) -> Kind {
        let name = format!("vms/{name}");
        Kind::Vm(ClusterVm { name, state: state.into(), ..ClusterVm::default() })
    }

    fn printed(known: &mut Known, kinds: impl IntoIterator<Item = Kind>) -> Vec<(String, String)> {
        let entries = kinds.into_iter().flat_map(|kind| known.hear(kind)).collect::<Vec<_>>();
        let state = |entry: &Entry| entry.value["state"].as_str().unwrap().to_owned();
        entries.iter().map(|entry| (entry.name.clone(), state(entry))).collect()
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
    }

    #[test]
    fn what_changes_is_printed_once() {
        let mut known = Known::default();
        known.begin();
        let first = [vm("a", State::Running), vm("b", State::Waiting), Kind::Bookmark(Bookmark {})];
        assert_eq!(printed(&mut known, first), pairs(&[("a", "RUNNING"), ("b", "WAITING")]));
        let more = [
            vm("a", State::Running),
            vm("b", State::Starting),
            Kind::Bookmark(Bookmark {}),
            Kind::Deleted("vms/a".into()),
            Kind::Deleted("vms/a".into()),
            Kind::Deleted("vms/c".into()),
        ];
        assert_eq!(printed(&mut known, more), pairs(&[("b", "STARTING"), ("a", "DELETED")]));
    }

    #[test]
    fn what_went_while_nobody_watched_is_gone() {
        let mut known = Known::default();
        known.begin();
        let all = ["a", "b", "c"].map(|name| vm(name, State::Running));
        assert_eq!(printed(&mut known, all).len(), 3);
        // Before all were told it was cut off: nothing is known of those that were not.
        known.begin();
        assert_eq!(printed(&mut known, [vm("b", State::Running)]), pairs(&[]));
        known.begin();
        let again = [vm("c", State::Paused), vm("a", State::Running), Kind::Bookmark(Bookmark {})];
        assert_eq!(printed(&mut known, again), pairs(&[("c", "PAUSED"), ("b", "DELETED")]));
    }
}
