//! Clients that watch the host.
//!
//! ```text
//!   watch --how the host stands--> watching --a change--> the newest state, when the client reads
//!                                     |  \--MISSED_MAX changes and none read--> SLOW_CONSUMER
//!                                     +--the client goes, or the agent ends--> gone
//! ```
//! Of a client that does not read nothing is kept: all share the newest state.

use crate::problem::{Problem, status};
use crate::shape::{Fixed, host};
use agent::runtime::{AgentHandle, now};
use control::v1::watch_host_response::{Bookmark, Kind};
use control::v1::{Host, WatchHostResponse};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Watchers at a time.
pub const WATCHERS_MAX: usize = 4096;
/// Changes that a client may miss.
pub const MISSED_MAX: u64 = 1024;

/// The host, and who watches it. Clones are of the same.
#[derive(Clone, Debug)]
pub(crate) struct Watchers {
    agent: AgentHandle,
    fixed: Arc<Fixed>,
    newest: Arc<Mutex<Option<watch::Sender<Arc<Host>>>>>,
    places: Arc<Semaphore>,
}

/// What a watcher reads.
pub(crate) type Watch = Pin<Box<dyn Stream<Item = Result<WatchHostResponse, Status>> + Send>>;

impl Watchers {
    pub(crate) fn new(agent: AgentHandle, fixed: Arc<Fixed>) -> Self {
        let mut first = host(&fixed, &agent.journal(), now());
        first.revision = 1;
        let newest = Arc::new(Mutex::new(Some(watch::Sender::new(Arc::new(first)))));
        Self { agent, fixed, newest, places: Arc::new(Semaphore::new(WATCHERS_MAX)) }
    }

    /// How the host stands. Who watches is told if that is another state.
    pub(crate) fn look(&self) -> Result<Arc<Host>, Status> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = newest.as_ref().ok_or_else(ends)?;
        let mut found = host(&self.fixed, &self.agent.journal(), now());
        newest.send_if_modified(|known| {
            found.revision = known.revision;
            let is_new = found != **known;
            if is_new {
                found.revision += 1;
                *known = Arc::new(std::mem::take(&mut found));
            }
            is_new
        });
        let host = Arc::clone(&newest.borrow());
        Ok(host)
    }

    /// Whether anybody is to be told of changes; an error once the agent ends.
    pub(crate) fn is_watched(&self) -> Result<bool, Status> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.as_ref().map(|newest| newest.receiver_count() > 0).ok_or_else(ends)
    }

    pub(crate) fn watch(&self, bookmarks: Duration) -> Result<Watch, Status> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let text = format!("{WATCHERS_MAX} clients watch already");
            status(&Problem::TooManyWatchers, &text)
        })?;
        self.look()?;
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = newest.as_ref().ok_or_else(ends)?.subscribe();
        news.mark_changed();
        Ok(Box::pin(Watcher::stream(Watcher { news, seen: None, bookmarks, _place: place })))
    }

    /// The agent ends: so do all watches.
    pub(crate) fn end(&self) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn ends() -> Status {
    status(&Problem::Ending, "the agent ends")
}

struct Watcher {
    news: watch::Receiver<Arc<Host>>,
    /// The revision that was told last.
    seen: Option<u64>,
    bookmarks: Duration,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    /// None once the agent ends.
    async fn next(&mut self) -> Option<Result<WatchHostResponse, Status>> {
        let kind = match timeout(self.bookmarks, self.news.changed()).await {
            Err(_) => Kind::Bookmark(Bookmark {}),
            Ok(Err(_)) => return None,
            Ok(Ok(())) => {
                let host = Arc::clone(&self.news.borrow_and_update());
                let missed = self.seen.map_or(0, |seen| host.revision.saturating_sub(seen));
                if missed > MISSED_MAX {
                    let text = format!("{missed} changes and none was read: watch again");
                    return Some(Err(status(&Problem::SlowConsumer, &text)));
                }
                self.seen = Some(host.revision);
                Kind::Host(Host::clone(&host))
            }
        };
        Some(Ok(WatchHostResponse { kind: Some(kind) }))
    }

    fn stream(self) -> impl Stream<Item = Result<WatchHostResponse, Status>> + Send {
        let (sender, items) = mpsc::channel(1);
        let mut watcher = self;
        // With one place: the next state is looked at when the client has taken the last one.
        tokio::spawn(async move {
            loop {
                let Ok(place) = sender.reserve().await else { return };
                let item = tokio::select! {
                    item = watcher.next() => item,
                    () = sender.closed() => return,
                };
                let Some(item) = item else { return };
                let is_last = item.is_err();
                place.send(item);
                if is_last {
                    return;
                }
            }
        });
        ReceiverStream::new(items)
    }
}
