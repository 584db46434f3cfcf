//! Metrics over TCP, asked for by an HTTP client that is not ours, and by some that are none.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod exposition;

use exposition::read;
use metrics::{CONNECTIONS_MAX, Listening, Page, Source, serve};
use std::future::{Future, pending};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream as AsyncStream;
use ureq::Agent;

const LIMIT: Duration = Duration::from_secs(60);
const HOSTILE: &str = "a\\b\"c\nd";

/// Counts how often it is asked.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Source for Counting {
    fn tell(&self) -> Pin<Box<dyn Future<Output = Page> + Send + '_>> {
        Box::pin(async {
            let mut page = Page::default();
            page.build("1");
            let asked = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            let row = (vec![("of", HOSTILE.to_owned())], f64::from(u32::try_from(asked).unwrap()));
            page.counter("asked", "How often somebody has asked", [row]);
            page
        })
    }
}

/// Does not come to an end.
struct Stuck;

impl Source for Stuck {
    fn tell(&self) -> Pin<Box<dyn Future<Output = Page> + Send + '_>> {
        Box::pin(pending())
    }
}

/// A server on a thread of its own, which lives as long as the test program.
fn served(source: impl Source) -> SocketAddr {
    let (listening, address) = Listening::open("127.0.0.1:0".parse().unwrap()).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(listening, source));
    });
    address
}

fn client() -> Agent {
    Agent::config_builder().http_status_as_error(false).timeout_global(Some(LIMIT)).build().into()
}

#[test]
fn client_of_http_reads_both_forms() {
    let address = served(Counting::default());
    let get = |path: &str, accept: &str| {
        let request = client().get(format!("http://{address}{path}")).header("accept", accept);
        let mut response = request.call().unwrap();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        (response.status().as_u16(), kind, response.body_mut().read_to_string().unwrap())
    };
    let (status, kind, text) = get("/metrics", "*/*");
    assert_eq!((status, kind.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let told = read(&text).unwrap();
    assert!(told.value("tessera_asked_total", &[("of", HOSTILE)]) >= Some(1.0), "{text}");
    assert_eq!(told.value("tessera_build_info", &[("version", "1")]), Some(1.0));

    let (status, kind, text) = get("/metrics", "application/openmetrics-text; version=1.0.0");
    assert!(status == 200 && kind.starts_with("application/openmetrics-text;"), "{kind}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(get("/", "*/*").0, 404);
    let post = client().post(format!("http://{address}/metrics")).send("x").unwrap();
    assert_eq!(post.status().as_u16(), 405);
    let mut head = client().head(format!("http://{address}/metrics")).call().unwrap();
    assert_eq!(head.body_mut().read_to_string().unwrap(), "");
}

#[test]
fn connections_have_places_and_others_are_closed() {
    let address = served(Counting::default());
    let mut silent: Vec<_> =
        (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
    // The server accepts in the order of connections.
    let mut over = TcpStream::connect(address).unwrap();
    over.set_read_timeout(Some(LIMIT)).unwrap();
    let read = over.read(&mut [0; 64]);
    assert!(matches!(&read, Ok(0)) || read.is_err_and(|error| error.raw_os_error() == Some(104)));

    drop(silent.pop());
    let end = Instant::now() + LIMIT;
    let url = format!("http://{address}/metrics");
    while client().get(&url).call().is_err() {
        assert!(Instant::now() < end, "the place does not come free");
    }
}

#[test]
fn request_that_is_none_and_one_without_end_are_refused() {
    let address = served(Counting::default());
    for bytes in [&b"\x16\x03\x01 hello\r\n\r\n"[..], &[b'x'; 64 << 10]] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // It may be closed meanwhile.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert!(client().get(format!("http://{address}/metrics")).call().is_ok());
}

async fn ask(address: SocketAddr, words: &str) -> String {
    let mut stream = AsyncStream::connect(address).await.unwrap();
    stream.write_all(words.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

const GET: &str = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";

/// The clock goes on by itself while nothing else does.
#[tokio::test(start_paused = true)]
async fn client_that_says_nothing_or_half_of_it_is_left() {
    let (listening, address) = Listening::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = tokio::spawn(serve(listening, Counting::default()));

    assert_eq!(ask(address, "").await, "");
    let half = ask(address, "GET /metrics HTTP/1.1\r\nhost:").await;
    assert!(half.is_empty() || half.starts_with("HTTP/1.1 408"), "{half}");
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn page_that_takes_too_long_is_given_up() {
    let (listening, address) = Listening::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = tokio::spawn(serve(listening, Stuck));

    let answer = ask(address, GET).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    server.abort();
}
