//! `tessera vm list --watch`: the VMs of a cluster, and each of them again when what is printed of it changes.
//!
//! ```text
//!   watch ──each VM once──> a bookmark ──changes, bookmarks──> ...
//!     ^                        └─those known before that were not told are gone
//!     └──a pause, longer while no bookmark comes <── the connection ends, is silent for SILENCE, or somebody else leads
//! ```
//! Whoever watches again is told all once more, so nothing that lasts is missed, and what is as before is not printed twice. It ends if the
//! first call is refused, and goes on through all that comes later.

use super::connect::Cluster;
use super::endpoint::words;
use super::output::{self, DELETED, Entry, Format, Rows, remark};
use anyhow::Result;
use control::v1::WatchVmsRequest;
use control::v1::vms_client::VmsClient;
use control::v1::watch_vms_response::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

/// A bookmark comes each ten seconds.
const SILENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What has been printed.
struct Known {
    rows: Rows,
    /// What is shown of each VM, by its name.
    vms: BTreeMap<String, Value>,
    /// Those that were told since the watch began, and what of it is to be printed, until all were.
    first: Option<(BTreeSet<String>, Vec<Entry>)>,
}

impl Known {
    fn new(format: Format) -> Self {
        Self { rows: Rows::new(format, &output::VM), vms: BTreeMap::new(), first: None }
    }

    fn begin(&mut self) {
        let unprinted = self.first.take().map(|(_, entries)| entries);
        self.first = Some((BTreeSet::new(), unprinted.unwrap_or_default()));
    }

    /// What is to be printed now; nothing before all VMs were told.
    fn hear(&mut self, kind: Kind) -> Option<Vec<Entry>> {
        let entries = match kind {
            Kind::Vm(vm) => {
                let entry = output::vm(&vm);
                self.first.iter_mut().for_each(|(told, _)| {
                    told.insert(entry.name.clone());
                });
                let shown = self.rows.shown(&entry);
                let before = self.vms.insert(entry.name.clone(), shown.clone());
                if before == Some(shown) { Vec::new() } else { vec![entry] }
            }
            Kind::Deleted(name) => self.forget(name.strip_prefix("vms/").unwrap_or(&name)),
            Kind::Bookmark(_) => {
                let (told, mut entries) = self.first.take()?;
                let gone: Vec<String> =
                    self.vms.keys().filter(|name| !told.contains(*name)).cloned().collect();
                entries.extend(gone.iter().flat_map(|name| self.forget(name)));
                return Some(entries);
            }
        };
        match &mut self.first {
            Some((_, first)) => {
                first.extend(entries);
                None
            }
            None => Some(entries),
        }
    }

    fn forget(&mut self, name: &str) -> Vec<Entry> {
        if self.vms.remove(name).is_none() {
            return Vec::new();
        }
        let value = json!({ "name": name, "state": DELETED });
        let cells = [name, DELETED, "-", "-", "-", "-", ""].map(str::to_owned).into();
        vec![Entry { name: name.to_owned(), cells, value }]
    }
}

/// Watches until the connection is of no more use; whether all VMs were told.
fn once(cluster: &Cluster, known: &mut Known) -> Result<(bool, String)> {
    let mut stream = cluster.ask(&WatchVmsRequest::default(), |channel, request| async move {
        VmsClient::new(channel).watch_vms(request).await
    })?;
    known.begin();
    let why = loop {
        match cluster.within(SILENCE, stream.message()) {
            Some(Ok(Some(message))) => {
                if let Some(entries) = message.kind.and_then(|kind| known.hear(kind)) {
                    known.rows.print(&entries)?;
                }
            }
            Some(Ok(None)) => break "the cluster has hung up".to_owned(),
            Some(Err(status)) => break words(&status),
            None => break format!("it says nothing for {SILENCE:?}"),
        }
    };
    Ok((known.first.is_none(), why))
}

/// Prints until the process is ended, or nobody reads.
pub(super) fn run(cluster: &Cluster, format: Format) -> Result<()> {
    let mut known = Known::new(format);
    let (mut was_complete, mut why) = once(cluster, &mut known)?;
    let mut pause = PAUSE;
    loop {
        remark(&format!("the VMs are watched again: {why}"));
        pause = if was_complete { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        sleep(pause);
        (was_complete, why) = match once(cluster, &mut known) {
            Err(error) if error.downcast_ref::<std::io::Error>().is_some() => return Err(error),
            Err(error) => (false, format!("{error:#}")),
            Ok(ended) => ended,
        };
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
        let entries =
            kinds.into_iter().filter_map(|kind| known.hear(kind)).flatten().collect::<Vec<_>>();
        let state = |entry: &Entry| entry.value["state"].as_str().unwrap().to_owned();
        entries.iter().map(|entry| (entry.name.clone(), state(entry))).collect()
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
    }

    #[test]
    fn what_changes_is_printed_once() {
        let mut known = Known::new(Format::default());
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

    /// A table does not show all that changes.
    #[test]
    fn what_is_not_shown_is_no_change() {
        let mut known = Known::new(Format::default());
        known.begin();
        printed(&mut known, [vm("a", State::Running), Kind::Bookmark(Bookmark {})]);
        let named = ClusterVm {
            name: "vms/a".into(),
            state: State::Running.into(),
            ..ClusterVm::default()
        };
        let later = Kind::Vm(ClusterVm { generation: 7, ..named.clone() });
        assert_eq!(printed(&mut known, [later]), pairs(&[]));
        let why = Kind::Vm(ClusterVm { why: "it boots".into(), ..named });
        assert_eq!(printed(&mut known, [why]), pairs(&[("a", "RUNNING")]));
    }

    #[test]
    fn what_went_while_nobody_watched_is_gone() {
        let mut known = Known::new(Format::default());
        known.begin();
        // It is cut off before all were told, twice: nothing is printed, and nothing of it is lost.
        assert_eq!(printed(&mut known, [vm("a", State::Running)]), pairs(&[]));
        known.begin();
        let all = ["b", "c"].map(|name| vm(name, State::Running));
        assert_eq!(printed(&mut known, all), pairs(&[]));
        known.begin();
        let all = ["a", "b", "c"].map(|name| vm(name, State::Running));
        let all = all.into_iter().chain([Kind::Bookmark(Bookmark {})]);
        assert_eq!(printed(&mut known, all).len(), 3);
        known.begin();
        let again = [vm("c", State::Paused), vm("a", State::Running), Kind::Bookmark(Bookmark {})];
        assert_eq!(printed(&mut known, again), pairs(&[("c", "PAUSED"), ("b", "DELETED")]));
    }
}
