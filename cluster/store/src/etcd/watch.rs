//! A watcher of etcd: a task that reads what etcd tells, and a queue.
//!
//! ```text
//!   connect ── create, from the newest revision that was told ──> stream ── events ──> queue ──> EtcdWatcher
//!      ^└─ not for `outage_max`: the end                            │ broken     └─ full: too slow, the end
//!      └────── wait, longer each time ──────────────────────────────┘
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::StreamExt;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};

use super::client::{Client, Failure, header_revision, number};
use super::fragments::Fragments;
use super::proto::watch_client::WatchClient;
use super::proto::watch_request::RequestUnion;
use super::proto::{WatchCreateRequest, WatchRequest, WatchResponse};
use crate::entry::{Batch, Change, Notice};
use crate::error::{StoreError, WatchError};
use crate::ids::Revision;
use crate::key::Prefix;
use crate::store::Watch;

/// What waits in a queue has at most so many bytes.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// etcd tells in pieces that are smaller.
const PIECE_BYTES_MAX: usize = 16 << 20;
const BACK_OFF: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(2);

/// Asks etcd to tell of these keys from a revision on.
pub(super) async fn open(
    client: &Client,
    key: Vec<u8>,
    range_end: Vec<u8>,
    start: Revision,
) -> Result<Streaming<WatchResponse>, Failure> {
    let create = WatchCreateRequest {
        key,
        range_end,
        start_revision: number(start.0),
        progress_notify: true,
        fragment: true,
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The watcher ends when this side of the stream does.
    let mut request = Request::new(tokio_stream::once(create).chain(tokio_stream::pending()));
    // A member that is cut off from the others ends the stream, so that another one is asked.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let deadline = client.deadline();
    let connected = client.connection.get(deadline).await;
    let connected = connected.map_err(Failure::Unknown)?;
    let mut watch =
        WatchClient::new(connected.channel.clone()).max_decoding_message_size(PIECE_BYTES_MAX);
    client.once(&connected, deadline, watch.watch(request)).await
}

/// Who hears of the changes of a store in etcd.
#[derive(Debug)]
pub struct EtcdWatcher {
    queue: mpsc::Receiver<Notice>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Of what waits in the queue.
    bytes: AtomicUsize,
    /// Why nothing follows.
    end: OnceLock<WatchError>,
}

impl Watch for EtcdWatcher {
    async fn next(&mut self) -> Result<Notice, WatchError> {
        let Some(notice) = self.queue.recv().await else {
            let ended = || WatchError::Unavailable("the watcher's task has ended".to_owned());
            return Err(self.shared.end.get().cloned().unwrap_or_else(ended));
        };
        self.shared.bytes.fetch_sub(size(&notice), Ordering::AcqRel);
        Ok(notice)
    }
}

fn size(notice: &Notice) -> usize {
    let of = |change: &Change| match change {
        Change::Put(entry) => entry.key.as_str().len() + entry.value.len(),
        Change::Delete(key) => key.as_str().len(),
    };
    match notice {
        Notice::Batch(batch) => batch.changes.iter().map(of).sum(),
        Notice::Progress(_) => 0,
    }
}

/// Starts a task that watches.
pub(super) fn start(
    client: Arc<Client>,
    prefix: Prefix,
    after: Revision,
    queue_max: usize,
    outage_max: Duration,
) -> EtcdWatcher {
    let (sender, queue) = mpsc::channel(queue_max);
    let shared = Arc::new(Shared::default());
    let feed =
        Feed { client, prefix, seen: after, told: None, sender, shared: Arc::clone(&shared) };
    tokio::spawn(feed.run(outage_max));
    EtcdWatcher { queue, shared }
}

/// Why a stream is over.
enum End {
    Final(WatchError),
    /// Another one may go on.
    Broken(String),
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> Self {
        Self::Final(WatchError::Corrupt(error.to_string()))
    }
}

struct Feed {
    client: Arc<Client>,
    prefix: Prefix,
    /// Nothing up to here is left to tell.
    seen: Revision,
    /// What was told last.
    told: Option<Revision>,
    sender: mpsc::Sender<Notice>,
    shared: Arc<Shared>,
}

impl Feed {
    async fn run(mut self, outage_max: Duration) {
        let (mut since, mut back_off) = (Instant::now(), BACK_OFF);
        loop {
            let mut reached = false;
            let sender = self.sender.clone();
            let end = tokio::select! {
                end = self.stream(&mut reached) => end,
                // Nobody listens any more.
                () = sender.closed() => return,
            };
            if reached {
                (since, back_off) = (Instant::now(), BACK_OFF);
            }
            let error = match end {
                End::Final(error) => error,
                End::Broken(why) if since.elapsed() < outage_max => {
                    tracing::debug!(why, prefix = %self.prefix, "a watcher has lost etcd");
                    sleep(back_off.mul_f64(fastrand::f64().mul_add(0.5, 0.5))).await;
                    back_off = (back_off * 2).min(BACK_OFF_MAX);
                    continue;
                }
                End::Broken(why) => WatchError::Unavailable(why),
            };
            // The queue ends with this task, after what is in it.
            let _ = self.shared.end.set(error);
            return;
        }
    }

    async fn stream(&mut self, reached: &mut bool) -> End {
        let names = &self.client.names;
        let (key, end) = (names.object(self.prefix.as_str()), names.end(self.prefix.as_str()));
        let mut stream = match open(&self.client, key, end, self.seen.next()).await {
            Ok(stream) => stream,
            Err(failure) => return End::Broken(failure.text()),
        };
        let mut fragments = Fragments::default();
        // The first answer must come in time; later ones come when something changes.
        let mut deadline = Some(self.client.deadline());
        loop {
            let message = match deadline {
                Some(deadline) => match timeout_at(deadline, stream.message()).await {
                    Ok(message) => message,
                    Err(_) => return End::Broken("no answer in time".to_owned()),
                },
                None => stream.message().await,
            };
            let response = match message {
                Ok(Some(response)) => response,
                Ok(None) => return End::Broken("etcd ended the stream".to_owned()),
                Err(status) => return End::Broken(super::status::text(&status)),
            };
            (deadline, *reached) = (None, true);
            if let Err(end) = self.take(&mut fragments, response) {
                return end;
            }
        }
    }

    fn take(&mut self, fragments: &mut Fragments, response: WatchResponse) -> Result<(), End> {
        if response.canceled {
            return Err(self.canceled(&response));
        }
        let quiet = response.events.is_empty() && !response.created && !response.fragment;
        let revision = response.header.as_ref().map(|header| header.revision);
        for batch in fragments.take(&self.client.names, response, self.seen)? {
            self.tell(batch)?;
        }
        if quiet {
            let revision = header_revision(revision)?;
            if revision > self.seen {
                self.seen = revision;
                self.send(Notice::Progress(revision))?;
            }
        }
        Ok(())
    }

    fn canceled(&self, response: &WatchResponse) -> End {
        let oldest = u64::try_from(response.compact_revision).unwrap_or(0);
        if oldest == 0 {
            return End::Broken(format!("etcd says {:?}", response.cancel_reason));
        }
        End::Final(match self.told {
            Some(heard) => WatchError::Slow { heard },
            None => WatchError::Compacted { after: self.seen, oldest: Revision(oldest) },
        })
    }

    fn tell(&mut self, batch: Arc<Batch>) -> Result<(), End> {
        self.seen = batch.revision;
        self.send(Notice::Batch(batch))
    }

    fn send(&mut self, notice: Notice) -> Result<(), End> {
        let slow = || End::Final(WatchError::Slow { heard: self.told.unwrap_or(Revision::ZERO) });
        let bytes = size(&notice);
        if self.shared.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > QUEUE_BYTES_MAX {
            return Err(slow());
        }
        self.sender.try_send(notice).map_err(|_| slow())?;
        self.told = Some(self.seen);
        Ok(())
    }
}
