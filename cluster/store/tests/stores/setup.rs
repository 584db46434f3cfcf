//! The three stores, each empty, and how clients come to them.

use std::time::Duration;

use needs::Need;
pub(crate) use needs::etcd::Folder;
use needs::etcd::{EtcdProcess, etcd_program};
use store::{EtcdOptions, EtcdStore, Limits, MemoryStore, RedbStore, Store};
use tokio::runtime::{Builder, Runtime};

/// Far beyond anything a healthy run needs; it only turns a hang into a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A store of one kind.
pub(crate) trait Setup: Sized {
    type Store: Store;
    /// The shortest lease that it grants as it is.
    const LEASE: Duration;

    /// None where the machine lacks what it needs, which is noted.
    fn begin(limits: Limits) -> Option<Self>;

    /// Another client.
    fn client(&self) -> Self::Store;
}

/// Two threads, since clients are to meet.
pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) struct Memory(MemoryStore);

impl Setup for Memory {
    type Store = MemoryStore;
    const LEASE: Duration = Duration::from_millis(300);

    fn begin(limits: Limits) -> Option<Self> {
        Some(Self(MemoryStore::new(limits)))
    }

    fn client(&self) -> MemoryStore {
        self.0.clone()
    }
}

pub(crate) struct Redb {
    store: RedbStore,
    /// Goes after the store.
    _folder: Folder,
}

impl Setup for Redb {
    type Store = RedbStore;
    const LEASE: Duration = Duration::from_millis(300);

    fn begin(limits: Limits) -> Option<Self> {
        let folder = Folder::new("redb");
        let store = RedbStore::open(&folder.join("state"), limits).unwrap();
        Some(Self { store, _folder: folder })
    }

    fn client(&self) -> RedbStore {
        self.store.clone()
    }
}

pub(crate) struct Etcd {
    pub(crate) process: EtcdProcess,
    queue_max: usize,
}

impl Setup for Etcd {
    type Store = EtcdStore;
    const LEASE: Duration = Duration::from_secs(2);

    fn begin(limits: Limits) -> Option<Self> {
        if !needs::has(Need::Etcd, etcd_program()) {
            return None;
        }
        Some(Self { process: EtcdProcess::start(), queue_max: limits.history_max.min(1024) })
    }

    fn client(&self) -> EtcdStore {
        let options = EtcdOptions {
            queue_max: self.queue_max,
            ..EtcdOptions::new(vec![self.process.endpoint()])
        };
        EtcdStore::new(&options).unwrap()
    }
}
