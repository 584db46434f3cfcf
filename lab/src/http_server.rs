//! A web server with the guest's objects in memory: what a host's own process can serve over the lab's
//! network, beside what a VM serves. A thread for each connection; connections are kept.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};

use crate::distro::OBJECTS;
use crate::http::MAX_CONNECTIONS;

/// Longest line of a request.
const MAX_LINE: u64 = 8192;
/// Most lines of a request.
const MAX_LINES: usize = 100;
const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    /// Whole answers by path.
    answers: Arc<HashMap<String, Vec<u8>>>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// When the address is taken or not of this host.
    pub fn listen(address: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
        let answers = OBJECTS.map(|object| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", object.bytes);
            (format!("/{}", object.name), [head.into_bytes(), object.content()].concat())
        });
        Ok(Self { listener, answers: Arc::new(HashMap::from(answers)) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().context("address of the server")
    }

    /// Serves until the process ends; callers beyond [`MAX_CONNECTIONS`] are sent away.
    ///
    /// # Errors
    /// When nobody can be taken in any more.
    pub fn run(&self) -> Result<()> {
        let open = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming() {
            let stream = stream.context("take in a connection")?;
            if open.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
                open.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (answers, open) = (Arc::clone(&self.answers), Arc::clone(&open));
            thread::spawn(move || {
                // Who goes in the middle of an answer does not want the rest.
                drop(serve(&stream, &answers));
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
        Ok(())
    }
}

fn serve(mut stream: &TcpStream, answers: &HashMap<String, Vec<u8>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream);
    while let Some(path) = request(&mut lines)? {
        stream.write_all(answers.get(&path).map_or(NOT_FOUND, Vec::as_slice))?;
    }
    Ok(())
}

/// The path of the next request; none at the end of the connection.
fn request(lines: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut path = None;
    for _ in 0..MAX_LINES {
        let mut line = Vec::new();
        lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        let line = String::from_utf8_lossy(&line);
        let Some(line) = line.strip_suffix('\n').map(str::trim_end) else {
            // The end, or a line without one.
            return Ok(None);
        };
        if line.is_empty() {
            return Ok(path);
        }
        path.get_or_insert_with(|| line.split(' ').nth(1).unwrap_or_default().to_owned());
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::http::fetch;

    #[test]
    fn objects_are_served_and_others_are_not() {
        let server = Server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = server.address().unwrap();
        thread::spawn(move || server.run());
        let limit = Duration::from_secs(20);

        for object in OBJECTS {
            let fetched = fetch(&format!("http://{address}/{}", object.name), limit).unwrap();
            assert_eq!((fetched.status, fetched.sha256), (200, object.sha256()));
        }
        assert_eq!(fetch(&format!("http://{address}/x"), limit).unwrap().status, 404);
    }

    proptest! {
        #[test]
        fn arbitrary_requests_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut rest = &bytes[..];
            while let Ok(Some(_)) = request(&mut rest) {}
        }
    }
}
