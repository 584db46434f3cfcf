//! Requests that were made already: a second one with the same id has no effect, and gets the same answer.
//!
//! ```text
//!   unknown --first request--> begun --answer--> answered --a day, or too many others--> unknown
//!                                 \--an answer that says that nothing was done--> unknown
//!   begun, answered --the same request--> waits for the answer, gets it; --another request--> refused
//! ```

use crate::problem::{Problem, invalid, is_untouched, status};
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::Status;

/// Ids at a time.
pub(crate) const IDS_MAX: usize = 1024;
/// For so long an id is known.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

type Id = [u8; 16];
/// The bytes of the answer, once there is one.
type Outcome = Option<Result<Vec<u8>, Status>>;

/// What was asked: the call, and the bytes of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    method: &'static str,
    request: Vec<u8>,
}

#[derive(Debug)]
struct Known {
    asked: Asked,
    outcome: watch::Receiver<Outcome>,
    /// Tells this one from a later one with the same id.
    number: u64,
}

#[derive(Debug, Default)]
struct Table {
    known: BTreeMap<Id, Known>,
    /// The oldest first. One may be forgotten before its turn.
    order: VecDeque<(Instant, Id, u64)>,
    next: u64,
}

/// The ids. Clones are of the same table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Table>>);

/// Whether a request is the first one.
enum Turn {
    First(watch::Sender<Outcome>, u64),
    Again(watch::Receiver<Outcome>),
}

impl Requests {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a request asks for, unless it was done. It is done to its end though the client goes. Without an id it is
    /// always done.
    pub(crate) async fn once<Q, A, F>(
        &self,
        (method, id): (&'static str, &str),
        request: &Q,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<A, Status>
    where
        Q: Message,
        A: Message + Default + 'static,
        F: Future<Output = Result<A, Status>> + Send + 'static,
    {
        if id.is_empty() {
            let done = tokio::spawn(async move { work().await });
            return done.await.unwrap_or_else(|_| Err(ends()));
        }
        let id = parse(id)?;
        let asked = Asked { method, request: request.encode_to_vec() };
        let mut outcome = match self.turn(id, asked, Instant::now())? {
            Turn::Again(outcome) => outcome,
            Turn::First(answered, number) => {
                let outcome = answered.subscribe();
                let all = self.clone();
                tokio::spawn(async move {
                    let result = work().await.map(|answer| answer.encode_to_vec());
                    if result.as_ref().is_err_and(is_untouched) {
                        all.forget(id, number);
                    }
                    // Those who wait have the table's word, or their own.
                    let _ = answered.send(Some(result));
                });
                outcome
            }
        };
        let answer = outcome.wait_for(Option::is_some).await.map_err(|_| ends())?.clone();
        let bytes = answer.unwrap_or_else(|| Err(ends()))?;
        A::decode(&bytes[..]).map_err(|error| Status::internal(error.to_string()))
    }

    fn turn(&self, id: Id, asked: Asked, now: Instant) -> Result<Turn, Status> {
        let mut table = self.table();
        table.make_room(now);
        if let Some(known) = table.known.get(&id) {
            if known.asked != asked {
                let text = "this request_id was used for another request";
                return Err(status(&Problem::RequestIdReused, text));
            }
            return Ok(Turn::Again(known.outcome.clone()));
        }
        let (answered, outcome) = watch::channel(None);
        let number = table.next;
        table.next += 1;
        table.order.push_back((now, id, number));
        table.known.insert(id, Known { asked, outcome, number });
        Ok(Turn::First(answered, number))
    }

    fn forget(&self, id: Id, number: u64) {
        self.table().remove(id, number);
    }
}

impl Table {
    /// Forgets what is too old, and the oldest if there would be too many.
    fn make_room(&mut self, now: Instant) {
        while let Some((since, id, number)) = self.order.front().copied() {
            let old = now.saturating_duration_since(since) > MEMORY;
            if !old && self.order.len() < IDS_MAX {
                return;
            }
            self.order.pop_front();
            self.remove(id, number);
        }
    }

    fn remove(&mut self, id: Id, number: u64) {
        if self.known.get(&id).is_some_and(|known| known.number == number) {
            self.known.remove(&id);
        }
    }
}

fn ends() -> Status {
    Status::unavailable("the process ends")
}

/// A UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12 (RFC 9562, 4).
fn parse(text: &str) -> Result<Id, Status> {
    let refused = || invalid("request_id", "request_id is a UUID");
    let groups: Vec<&str> = text.split('-').take(6).collect();
    if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
        return Err(refused());
    }
    let digits = groups.concat();
    // No sign, which parsing would take.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(refused());
    }
    u128::from_str_radix(&digits, 16).map(u128::to_be_bytes).map_err(|_| refused())
}

#[cfg(test)]
mod tests;
