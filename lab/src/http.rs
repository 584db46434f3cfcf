//! An HTTP client outside the VM: fetches with a digest of what came, and a closed-loop load.
//!
//! ```text
//!   load ── connection 1: request ─> whole answer ─> request ─> ...   } one thread each,
//!       └── connection N: request ─> whole answer ─> request ─> ...   } one histogram each
//! ```
//! A connection asks again only when the answer before is complete, so N requests are on their way at
//! a time and the rate follows from the latency. Connections are kept (HTTP/1.1 keep-alive). It runs on
//! the VM's host, as a hidden verb of this program (`xtask http`), next to the guest's tap.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use ureq::Agent;

/// Most connections of one load: each has a thread.
pub const MAX_CONNECTIONS: usize = 256;
/// Longest answer that is read.
const MAX_BODY: u64 = 1 << 30;
/// Longest load.
const MAX_LOAD: Duration = Duration::from_secs(3600);
/// Failed requests after which a connection gives up.
const MAX_ERRORS: u64 = 100;
const BUFFER: usize = 64 * 1024;

/// What came for one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// What was asked for.
    pub url: String,
    /// Status of the answer.
    pub status: u16,
    /// Length of the body.
    pub bytes: u64,
    /// SHA-256 of the body in hexadecimal.
    pub sha256: String,
    /// From the request to the end of the body.
    pub microseconds: u64,
}

/// A load on one server.
#[derive(Clone, Debug)]
pub struct Load {
    /// What is asked for again and again.
    pub url: String,
    /// Connections, 1 to [`MAX_CONNECTIONS`].
    pub connections: usize,
    /// How long requests are counted.
    pub span: Duration,
    /// How long requests are made before they are counted.
    pub warm_up: Duration,
    /// The load ends with so many requests, however long they take, and `span` says nothing. All are counted.
    pub requests: Option<u64>,
    /// Longest time for one request.
    pub limit: Duration,
}

/// What a load amounts to. Requests that began before the count are left out; each connection ends with
/// the request that is on its way at the end, and has counted one at least.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// What was asked for.
    pub url: String,
    /// Connections.
    pub connections: usize,
    /// How long the connection that went on longest counted requests.
    pub seconds: f64,
    /// Answers with status 200 and a body of the same length as the first one.
    pub requests: u64,
    /// Requests without such an answer.
    pub errors: u64,
    /// What the first error was.
    pub first_error: Option<String>,
    /// Bytes of all bodies.
    pub bytes: u64,
    /// Requests for each second: of each connection over its own time, added up.
    pub requests_per_second: f64,
    /// From a request to the end of its answer.
    pub latency_us: Latency,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// An agent that keeps one connection and talks to nobody but the server.
pub(crate) fn agent(limit: Duration) -> Agent {
    Agent::config_builder()
        .proxy(None)
        .timeout_global(Some(limit))
        .http_status_as_error(false)
        .max_idle_connections(1)
        .max_idle_connections_per_host(1)
        .max_idle_age(MAX_LOAD)
        .max_redirects(0)
        .build()
        .new_agent()
}

/// Fetches one object and takes the digest of its body.
///
/// # Errors
/// When there is no answer within the limit, or it breaks off. A status that is not 200 is no error.
pub fn fetch(url: &str, limit: Duration) -> Result<Fetched> {
    let start = Instant::now();
    let mut answer = agent(limit).get(url).call().with_context(|| format!("ask for {url}"))?;
    let mut digest = Sha256::new();
    let mut body = answer.body_mut().as_reader().take(MAX_BODY);
    let bytes = pour(&mut body, |part| digest.update(part))
        .with_context(|| format!("read the answer to {url}"))?;
    let sha256 = hexadecimal(&digest.finalize());
    let microseconds = microseconds(start.elapsed());
    Ok(Fetched {
        url: url.to_owned(),
        status: answer.status().as_u16(),
        bytes,
        sha256,
        microseconds,
    })
}

/// A digest as text.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Reads to the end and hands out the parts; returns how many bytes there were.
fn pour(from: &mut impl Read, mut to: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut bytes = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(count) => {
                to(&buffer[..count]);
                bytes += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What one connection counted.
#[derive(Debug)]
struct Count {
    latencies: Histogram<u64>,
    bytes: u64,
    /// From the first request that counts to the end of the last.
    busy: Duration,
    errors: u64,
    first_error: Option<String>,
}

impl Count {
    fn new() -> Result<Self> {
        // 1 microsecond to 10 minutes with three digits: some 200 KiB.
        let latencies =
            Histogram::new_with_bounds(1, 600_000_000, 3).context("make a histogram")?;
        Ok(Self { latencies, bytes: 0, busy: Duration::ZERO, errors: 0, first_error: None })
    }

    /// Answers for each second.
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 requests")]
    fn rate(&self) -> f64 {
        if self.busy.is_zero() {
            0.0
        } else {
            self.latencies.len() as f64 / self.busy.as_secs_f64()
        }
    }

    fn fail(&mut self, why: String) {
        self.errors += 1;
        self.first_error.get_or_insert(why);
    }
}

/// When connections ask no more.
#[derive(Clone, Copy)]
struct Over<'a> {
    over: &'a AtomicBool,
    /// Requests that nobody has begun.
    left: Option<&'a AtomicU64>,
}

impl Over<'_> {
    /// Whether a connection ends here, which has made a request before or not. If not, the next request is its own.
    fn is_over(self, tried: bool) -> bool {
        let Some(left) = self.left else { return tried && self.over.load(Ordering::Relaxed) };
        let take = |left: u64| left.checked_sub(1);
        self.over.load(Ordering::Relaxed)
            || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err()
    }
}

impl Load {
    /// Makes the load and waits for its end.
    ///
    /// # Errors
    /// When the numbers are out of range or the object cannot be fetched even once. Requests that fail
    /// later are counted.
    pub fn run(&self) -> Result<LoadReport> {
        ensure!(
            (1..=MAX_CONNECTIONS).contains(&self.connections),
            "{} connections: use 1 to {MAX_CONNECTIONS}",
            self.connections
        );
        let whole = self.span + self.warm_up;
        ensure!(!self.span.is_zero() && whole <= MAX_LOAD, "a load lasts up to {MAX_LOAD:?}");
        ensure!(self.requests != Some(0), "a load has a request or more");
        let counts = self.count(self.length()?)?;
        self.report(counts)
    }

    /// Bytes of each answer. Not known if requests are counted: one more would be made to see.
    fn length(&self) -> Result<Option<u64>> {
        if self.requests.is_some() {
            return Ok(None);
        }
        let first = fetch(&self.url, self.limit)?;
        if first.status != 200 {
            bail!("{} is answered with status {}", self.url, first.status);
        }
        Ok(Some(first.bytes))
    }

    fn count(&self, length: Option<u64>) -> Result<Vec<Count>> {
        let over = AtomicBool::new(false);
        let left = self.requests.map(AtomicU64::new);
        let from = Instant::now() + if left.is_some() { Duration::ZERO } else { self.warm_up };
        thread::scope(|scope| {
            let connections = (0..self.connections)
                .map(|number| {
                    let (count, over) = (Count::new()?, Over { over: &over, left: left.as_ref() });
                    thread::Builder::new()
                        .name(format!("connection-{number}"))
                        .stack_size(256 * 1024)
                        .spawn_scoped(scope, move || self.connection(count, length, from, over))
                        .context("start a thread for each connection")
                })
                .collect::<Result<Vec<_>>>();
            if connections.is_err() || left.is_none() {
                if connections.is_ok() {
                    thread::sleep(self.warm_up + self.span);
                }
                over.store(true, Ordering::SeqCst);
            }
            let counts = connections?.into_iter().map(|one| one.join());
            counts.map(|count| count.map_err(|_| anyhow!("a connection panicked"))).collect()
        })
    }

    fn connection(
        &self,
        mut count: Count,
        length: Option<u64>,
        from: Instant,
        over: Over<'_>,
    ) -> Count {
        let agent = agent(self.limit);
        let mut first = None;
        loop {
            let start = Instant::now();
            let tried = count.latencies.len() + count.errors > 0;
            if count.errors >= MAX_ERRORS || over.is_over(tried) {
                return count;
            }
            match self.one(&agent, length) {
                Ok(_) if start < from => {}
                Ok(bytes) => {
                    let end = Instant::now();
                    count.latencies.saturating_record(microseconds(end - start).max(1));
                    count.bytes += bytes;
                    count.busy = end - *first.get_or_insert(start);
                }
                Err(error) => count.fail(format!("{error:#}")),
            }
        }
    }

    /// One request, whose answer must have so many bytes, if that is known. How many it has.
    pub(crate) fn one(&self, agent: &Agent, length: Option<u64>) -> Result<u64> {
        let mut answer = agent.get(&self.url).call()?;
        let status = answer.status();
        let bytes = pour(&mut answer.body_mut().as_reader().take(MAX_BODY), |_| {})?;
        let length = length.unwrap_or(bytes);
        ensure!(status == 200 && bytes == length, "status {status}, {bytes} of {length} bytes");
        Ok(bytes)
    }

    fn report(&self, counts: Vec<Count>) -> Result<LoadReport> {
        let mut sum = Count::new()?;
        let (mut rate, mut busy) = (0.0, Duration::ZERO);
        for count in counts {
            rate += count.rate();
            busy = busy.max(count.busy);
            sum.latencies.add(&count.latencies).context("add up latencies")?;
            sum.bytes += count.bytes;
            sum.errors += count.errors;
            sum.first_error = sum.first_error.or(count.first_error);
        }
        let all = &sum.latencies;
        let at = |quantile| all.value_at_quantile(quantile);
        Ok(LoadReport {
            url: self.url.clone(),
            connections: self.connections,
            seconds: busy.as_secs_f64(),
            requests: all.len(),
            errors: sum.errors,
            first_error: sum.first_error.clone(),
            bytes: sum.bytes,
            requests_per_second: rate,
            latency_us: Latency {
                min: all.min(),
                mean: all.mean(),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: all.max(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A server that answers each request with `body`, until the test ends. Counts connections.
    fn server(head: &'static str, body: &'static [u8]) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/object", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                seen.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || answer(stream.unwrap(), head, body));
            }
        });
        (url, connections)
    }

    fn answer(mut stream: TcpStream, head: &str, body: &[u8]) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            if line.is_empty() {
                let all = [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat();
                if stream.write_all(&all).is_err() {
                    return;
                }
            }
        }
    }

    #[test]
    fn fetch_gives_length_and_digest_of_the_body() {
        let (url, _) = server("200 OK\r\nContent-Length: 3", b"abc");

        let fetched = fetch(&url, Duration::from_secs(20)).unwrap();

        assert_eq!((fetched.status, fetched.bytes), (200, 3));
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            fetched.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn load_keeps_its_connections_and_counts_every_answer() {
        let (url, connections) = server("200 OK\r\nContent-Length: 3", b"abc");
        let [span, limit] = [300, 20_000].map(Duration::from_millis);

        let load =
            Load { url, connections: 2, span, warm_up: Duration::ZERO, requests: None, limit };
        let report = load.run().unwrap();

        // One of the fetch before the load.
        assert_eq!(connections.load(Ordering::SeqCst), 3);
        assert_eq!((report.errors, report.bytes), (0, 3 * report.requests));
        assert!(report.requests > 0 && report.latency_us.max >= report.latency_us.min);
    }

    #[test]
    fn load_of_so_many_requests_makes_them_and_no_more() {
        let (url, _) = server("200 OK\r\nContent-Length: 3", b"abc");
        let limit = Duration::from_secs(20);

        let load = Load {
            url,
            connections: 3,
            // Over before the first request, if it counted.
            span: Duration::from_nanos(1),
            warm_up: Duration::ZERO,
            requests: Some(50),
            limit,
        };
        let report = load.run().unwrap();

        assert_eq!((report.requests, report.errors, report.bytes), (50, 0, 150));
        assert!(Load { requests: Some(0), ..load }.run().is_err());
    }

    #[test]
    fn load_on_a_missing_object_is_refused() {
        let (url, _) = server("404 Not Found\r\nContent-Length: 0", b"");
        let [span, limit] = [300, 20_000].map(Duration::from_millis);

        let load =
            Load { url, connections: 1, span, warm_up: Duration::ZERO, requests: None, limit };

        assert!(load.run().unwrap_err().to_string().contains("404"));
    }

    #[test]
    fn body_that_breaks_off_is_an_error() {
        let (url, _) = server("200 OK\r\nConnection: close\r\nContent-Length: 30", b"abc");

        assert!(fetch(&url, Duration::from_millis(500)).is_err());
    }
}
