//! Clients that watch all VMs.
//!
//! ```text
//!   watch ──each VM once, in pages──> a bookmark ──names of what has changed──> looked up when the client has read the last one
//!                                                    │  └─more changes wait than are kept─> SLOW_CONSUMER
//!                                                    └─the leader ends─> NOT_LEADER
//! ```
//! Only names wait, so a client that does not read costs little; and what it reads is never older than what it has read.

use super::problem::{Problem, status};
use super::shape;
use crate::run::{AskError, Changed, Handle, View};
use control::v1::WatchVmsResponse;
use control::v1::watch_vms_response::{Bookmark, Kind};
use state::Name;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Watchers at a time.
pub const WATCHERS_MAX: usize = 1024;
/// VMs that are looked up at a time. A client that does not read holds so many objects, which are larger than names.
const PAGE: usize = 16;

type Item = Result<WatchVmsResponse, Status>;

/// What a watcher reads.
pub(crate) type Watch = ReceiverStream<Item>;

/// All watchers. Clones are of the same.
#[derive(Clone, Debug)]
pub(crate) struct Watchers {
    handle: Handle,
    places: Arc<Semaphore>,
}

impl Watchers {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle, places: Arc::new(Semaphore::new(WATCHERS_MAX)) }
    }

    pub(crate) async fn watch(&self, bookmarks: Duration) -> Result<Watch, Status> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let text = format!("{WATCHERS_MAX} clients watch already");
            status(&Problem::TooManyWatchers, &text)
        })?;
        // From before the first VM is told: nothing is missed.
        let changes = self.handle.look(|view| view.changes()).await?;
        let (items, reads) = mpsc::channel(1);
        let watcher = Watcher { handle: self.handle.clone(), changes, bookmarks, items };
        tokio::spawn(watcher.run(place));
        Ok(ReceiverStream::new(reads))
    }
}

struct Watcher {
    handle: Handle,
    changes: broadcast::Receiver<Changed>,
    bookmarks: Duration,
    items: mpsc::Sender<Item>,
}

/// Why a watch ends.
enum End {
    /// Nobody reads it any more.
    Gone,
    Told(Status),
}

impl From<AskError> for End {
    fn from(error: AskError) -> Self {
        Self::Told(error.into())
    }
}

impl Watcher {
    async fn run(mut self, _place: OwnedSemaphorePermit) {
        let ended = match self.tell_all().await {
            Ok(()) => self.tell_changes().await,
            Err(end) => end,
        };
        if let End::Told(status) = ended {
            // It may be gone by now.
            let _ = self.items.send(Err(status)).await;
        }
    }

    async fn tell(&self, kind: Kind) -> Result<(), End> {
        let item = WatchVmsResponse { kind: Some(kind) };
        self.items.send(Ok(item)).await.map_err(|_| End::Gone)
    }

    async fn tell_all(&self) -> Result<(), End> {
        let mut after: Option<Name> = None;
        loop {
            let look = move |view: &View<'_>| shape::vms(view.machine, after.as_ref(), PAGE);
            let (vms, next) = self.handle.look(look).await?;
            for vm in vms {
                self.tell(Kind::Vm(vm)).await?;
            }
            after = Name::new(&next).ok();
            if after.is_none() {
                return self.tell(Kind::Bookmark(Bookmark {})).await;
            }
        }
    }

    async fn tell_changes(&mut self) -> End {
        loop {
            let changed = tokio::select! {
                changed = timeout(self.bookmarks, self.changes.recv()) => changed,
                () = self.items.closed() => return End::Gone,
            };
            let told = match changed {
                Err(_) => self.tell(Kind::Bookmark(Bookmark {})).await,
                Ok(Ok(changed)) => match self.with_more(&changed) {
                    Ok(names) => self.tell_of(names).await,
                    Err(end) => Err(end),
                },
                Ok(Err(error)) => Err(self.lost(&error)),
            };
            if let Err(end) = told {
                return end;
            }
        }
    }

    fn lost(&self, error: &RecvError) -> End {
        match error {
            RecvError::Closed => self.handle.not_leading().into(),
            RecvError::Lagged(missed) => {
                let text = format!("{missed} changes and none was read: watch again");
                End::Told(status(&Problem::SlowConsumer, &text))
            }
        }
    }

    /// What waits already too: of many changes of one VM the client is told once.
    fn with_more(&mut self, changed: &Changed) -> Result<BTreeSet<Name>, End> {
        let mut names: BTreeSet<Name> = changed.iter().cloned().collect();
        while names.len() < PAGE {
            match self.changes.try_recv() {
                Ok(more) => names.extend(more.iter().cloned()),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => {
                    return Err(self.lost(&RecvError::Lagged(missed)));
                }
                // The next one to wait is told that it is closed.
                Err(_) => break,
            }
        }
        Ok(names)
    }

    async fn tell_of(&self, names: BTreeSet<Name>) -> Result<(), End> {
        let look = move |view: &View<'_>| {
            let kind = |name: &Name| match shape::vm_of(view.machine, name) {
                Some(vm) => Kind::Vm(vm),
                None => Kind::Deleted(format!("vms/{name}")),
            };
            names.iter().map(kind).collect::<Vec<_>>()
        };
        for kind in self.handle.look(look).await? {
            self.tell(kind).await?;
        }
        Ok(())
    }
}
