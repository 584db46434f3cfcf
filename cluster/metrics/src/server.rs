//! The server: one request for a connection, and an end for each.
//!
//! ```text
//!   connection --no place--> closed
//!       \--a place--> its request --in REQUEST_LIMIT, answer included--> closed
//! ```
//! Whoever reaches the address may read: it has neither TLS nor names of clients. An operator gives it an address that only the collector reaches.

use crate::answer::{Wanted, refusal, told, wanted};
use crate::page::Page;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener as AsyncListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 16;
/// From a connection to the end of its answer.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// For the first line and the headers of a request.
const HEADERS_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of them.
const HEADERS_BYTES: usize = 16 << 10;
/// For a page to be told.
const TELL_LIMIT: Duration = Duration::from_secs(9);
/// A page serves everybody for so long: many readers cost as much as one.
const FRESH: Duration = Duration::from_secs(1);
/// After a connection that could not be accepted.
const AGAIN: Duration = Duration::from_millis(100);

/// Who tells what there is.
pub trait Source: Send + Sync + 'static {
    /// Fills a page. It is not called again before it has answered, and given up if that takes too long.
    fn tell(&self) -> Pin<Box<dyn Future<Output = Page> + Send + '_>>;
}

/// Why there are no metrics.
#[derive(Debug, Error)]
#[error("listen at {address} for metrics")]
pub struct MetricsError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// A listener.
#[derive(Debug)]
pub struct Listening(TcpListener);

impl Listening {
    /// Listens there; and where that is.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn open(address: SocketAddr) -> Result<(Self, SocketAddr), MetricsError> {
        let failed = |source| MetricsError { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((Self(listener), address))
    }
}

/// The newest page, and since when it is there.
struct Told<S> {
    source: S,
    newest: Mutex<Option<(Instant, Arc<Page>)>>,
}

impl<S: Source> Told<S> {
    /// None if it takes too long.
    async fn page(&self) -> Option<Arc<Page>> {
        let tell = async {
            let mut newest = self.newest.lock().await;
            if let Some((since, page)) = &*newest
                && since.elapsed() < FRESH
            {
                return Arc::clone(page);
            }
            let page = Arc::new(self.source.tell().await);
            *newest = Some((Instant::now(), Arc::clone(&page)));
            page
        };
        timeout(TELL_LIMIT, tell).await.ok()
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<String> {
        match wanted(&request) {
            Wanted::Page(written) => told(self.page().await.as_deref(), written),
            other => refusal(&other),
        }
    }
}

/// Serves for as long as its task lives.
pub async fn serve(Listening(listener): Listening, source: impl Source) {
    let listener = match AsyncListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics are not served"),
    };
    let told = Arc::new(Told { source, newest: Mutex::new(None) });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Without a place it is closed.
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let told = Arc::clone(&told);
                tokio::spawn(async move {
                    let _place = place;
                    if timeout(REQUEST_LIMIT, converse(stream, told)).await.is_err() {
                        tracing::debug!("{address} has not taken the metrics in time");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection for metrics is not accepted");
                sleep(AGAIN).await;
            }
        }
    }
}

async fn converse<S: Source>(stream: TcpStream, told: Arc<Told<S>>) {
    let answer = service_fn(move |request| {
        let told = Arc::clone(&told);
        async move {
            let response = told.answer(request).await;
            Ok::<_, Infallible>(response.map(|text| Full::new(Bytes::from(text))))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_LIMIT);
    http.max_buf_size(HEADERS_BYTES).keep_alive(false);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "a reader of metrics has gone");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::join;
    use tokio::time::advance;

    /// Takes a second to tell.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Source for Counting {
        fn tell(&self) -> Pin<Box<dyn Future<Output = Page> + Send + '_>> {
            Box::pin(async {
                self.0.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_secs(1)).await;
                Page::default()
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_at_one_time_cost_one_page() {
        let told = Told { source: Counting::default(), newest: Mutex::new(None) };
        let times = || told.source.0.load(Ordering::SeqCst);

        let (a, b, c) = join!(told.page(), told.page(), told.page());
        assert!(a.is_some() && b.is_some() && c.is_some());
        assert_eq!(times(), 1);
        assert!(told.page().await.is_some());
        assert_eq!(times(), 1);
        advance(FRESH).await;
        assert!(told.page().await.is_some());
        assert_eq!(times(), 2);
    }

    /// Who waits behind one that is given up has a try of its own.
    #[tokio::test(start_paused = true)]
    async fn reader_that_is_given_up_leaves_the_next_one_a_try() {
        struct Stuck(AtomicUsize);
        impl Source for Stuck {
            fn tell(&self) -> Pin<Box<dyn Future<Output = Page> + Send + '_>> {
                let is_first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
                let time = if is_first { 100 * TELL_LIMIT } else { Duration::ZERO };
                Box::pin(async move {
                    sleep(time).await;
                    Page::default()
                })
            }
        }
        let told = Told { source: Stuck(AtomicUsize::new(0)), newest: Mutex::new(None) };

        assert!(told.page().await.is_none());
        assert!(told.page().await.is_some());
    }
}
