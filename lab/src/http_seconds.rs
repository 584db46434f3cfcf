//! A load on a web server that tells what came in each second, while it goes on.
//!
//! ```text
//!   connection 1: request ─> whole answer ─> request ─> ... ─┐
//!   connection N: request ─> whole answer ─> request ─> ... ─┴─ latency or error ─> one thread ─ each second ─> tell
//! ```
//! The closed loop of [`crate::http`], for pictures over time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::http::{self, Load, MAX_CONNECTIONS};

const SECOND: Duration = Duration::from_secs(1);
/// After a request that failed.
const BREATH: Duration = Duration::from_millis(200);

/// What came in one second. A request counts where it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Second {
    /// How long it was, in milliseconds: a host that is slow has seconds that are late.
    pub milliseconds: u64,
    /// Latencies in microseconds, exact to two digits, and how many requests had each; ascending.
    pub latencies: Vec<(u64, u64)>,
    /// The longest latency, in microseconds.
    pub longest: u64,
    /// Requests without a good answer.
    pub errors: u64,
    /// What the first of them was.
    pub first_error: Option<String>,
}

/// A load that goes on until somebody has heard enough.
#[derive(Clone, Debug)]
pub struct SecondsLoad {
    /// What is asked for again and again.
    pub url: String,
    /// Connections, 1 to [`MAX_CONNECTIONS`].
    pub connections: usize,
    /// Longest time for one request.
    pub limit: Duration,
}

impl SecondsLoad {
    /// Makes the load and tells each second, until `tell` says no or fails.
    ///
    /// # Errors
    /// When the object cannot be fetched even once, or of `tell`. Requests that fail later are told.
    pub fn run(&self, mut tell: impl FnMut(&Second) -> Result<bool>) -> Result<()> {
        ensure!(
            (1..=MAX_CONNECTIONS).contains(&self.connections),
            "{} connections: use 1 to {MAX_CONNECTIONS}",
            self.connections
        );
        let first = http::fetch(&self.url, self.limit)?;
        ensure!(first.status == 200, "{} is answered with status {}", self.url, first.status);
        let (over, (sender, receiver)) = (AtomicBool::new(false), unbounded());
        thread::scope(|scope| {
            for _ in 0..self.connections {
                let (sender, over) = (sender.clone(), &over);
                scope.spawn(move || self.connection(first.bytes, &sender, over));
            }
            drop(sender);
            let result = sum_up(&receiver, &mut tell);
            over.store(true, Ordering::SeqCst);
            result
        })
    }

    fn connection(&self, length: u64, sender: &Sender<Result<u64, String>>, over: &AtomicBool) {
        let agent = http::agent(self.limit);
        let (url, connections) = (self.url.clone(), self.connections);
        let (span, warm_up) = (Duration::ZERO, Duration::ZERO);
        let load = Load { url, connections, span, warm_up, requests: None, limit: self.limit };
        while !over.load(Ordering::Relaxed) {
            let start = Instant::now();
            let answer = load.one(&agent, Some(length));
            let took = http::microseconds(start.elapsed()).max(1);
            if answer.is_err() {
                thread::sleep(BREATH);
            }
            if sender.send(answer.map(|_| took).map_err(|error| format!("{error:#}"))).is_err() {
                return;
            }
        }
    }
}

/// Tells each second, until nobody sends or wants to hear any more.
fn sum_up(
    receiver: &Receiver<Result<u64, String>>,
    tell: &mut dyn FnMut(&Second) -> Result<bool>,
) -> Result<()> {
    let histogram = || Histogram::<u64>::new_with_bounds(1, 600_000_000, 2);
    let (mut all, mut second) = (histogram().context("make a histogram")?, Second::default());
    let mut start = Instant::now();
    loop {
        match receiver.recv_timeout(SECOND.saturating_sub(start.elapsed())) {
            Ok(Ok(latency)) => {
                all.saturating_record(latency);
                second.longest = second.longest.max(latency);
            }
            Ok(Err(error)) => {
                second.errors += 1;
                second.first_error.get_or_insert(error);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let length = start.elapsed();
        if length < SECOND {
            continue;
        }
        let counts = all.iter_recorded();
        let counts = counts.map(|step| (step.value_iterated_to(), step.count_at_value()));
        second.latencies = counts.collect();
        second.milliseconds = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        if !tell(&second)? {
            return Ok(());
        }
        all.reset();
        second = Second::default();
        start += length;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that answers so many requests and is gone then.
    fn server(requests: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/object", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut left = requests;
            while left > 0 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    if line.is_empty() && left > 0 {
                        left -= 1;
                        thread::sleep(Duration::from_millis(5));
                        stream
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
                            .unwrap();
                    }
                    if left == 0 {
                        break;
                    }
                }
            }
        });
        url
    }

    #[test]
    fn each_second_tells_its_requests_and_failures_come_later() {
        let load = SecondsLoad { url: server(30), connections: 1, limit: Duration::from_secs(20) };
        let mut told = Vec::new();
        load.run(|second| {
            told.push(second.clone());
            Ok(told.iter().all(|second| second.errors == 0))
        })
        .unwrap();

        let requests: u64 = told.iter().flat_map(|second| &second.latencies).map(|of| of.1).sum();
        // One of the fetch before the load.
        assert_eq!(requests, 29);
        let last = told.last().unwrap();
        assert!(last.errors > 0 && last.first_error.is_some(), "{last:?}");
        let longest = told.iter().map(|second| second.longest).max().unwrap();
        assert!(longest >= 5000, "{longest}");
        assert!(told.iter().all(|of| of.latencies.is_sorted() && of.milliseconds >= 1000));
    }

    #[test]
    fn object_that_is_not_there_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/object", listener.local_addr().unwrap());
        drop(listener);
        let load = SecondsLoad { url, connections: 1, limit: Duration::from_secs(5) };
        assert!(load.run(|_| Ok(true)).is_err());
    }
}
