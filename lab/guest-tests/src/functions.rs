//! A runner of functions as a service, for `./x bench workloads`: each call is a process of its own, as a sandbox is.
//!
//! ```text
//!   functions HOST:PORT/OBJECT PACKAGE CALLS AT_ONCE MILLIONS
//!   each call:  fork ─> download ─> extract the package (tar) ─> compute ─> remove ─> exit
//! ```
//! These are the phases that FragVisor measures OpenLambda's functions by.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command as Process;

use anyhow::{Context, Result, bail, ensure};

use crate::programs::{self, compute, wait};
use crate::sys::{self, Forked};

/// The argument that stands for it.
pub(crate) const VERB: &str = "functions";
/// Most calls.
const CALLS_MAX: u64 = 1000;
/// Most bytes of what a call downloads.
const DOWNLOAD_MAX: u64 = 16 << 20;

/// What all calls have in common.
#[derive(Clone, Debug)]
struct Function {
    /// `HOST:PORT`.
    server: String,
    object: String,
    package: String,
    steps: u64,
}

/// Makes all calls, so many at a time.
///
/// # Errors
/// Wrong words, or a call that fails.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let [url, package, numbers @ ..] = words else { bail!("no object, or no package, is named") };
    let [calls, at_once, millions] =
        programs::numbers(numbers, "HOST:PORT/OBJECT PACKAGE CALLS AT_ONCE MILLIONS")?;
    ensure!((1..=CALLS_MAX).contains(&calls), "use 1 to {CALLS_MAX} calls");
    ensure!((1..=calls).contains(&at_once), "use 1 to {calls} at once");
    let (server, object) = url.split_once('/').context("HOST:PORT/OBJECT")?;
    let function = Function {
        server: server.to_owned(),
        object: object.to_owned(),
        package: package.clone(),
        steps: millions.saturating_mul(1_000_000),
    };
    // Those that run are waited for also if one fails.
    let mut ended = Ok(());
    for call in 0..calls {
        if call >= at_once {
            let one = wait();
            ended = ended.and(one);
        }
        if let Forked::Child = sys::fork().context("cannot fork")? {
            let done = function.call(call);
            if let Err(error) = &done {
                eprintln!("guest-tests: call {call}: {error:#}");
            }
            sys::exit_now(i32::from(done.is_err()));
        }
    }
    let rest: Vec<Result<()>> = (0..at_once).map(|_| wait()).collect();
    rest.into_iter().fold(ended, Result::and)
}

impl Function {
    fn call(&self, number: u64) -> Result<()> {
        let folder = format!("/tmp/function-{}-{number}", sys::pid());
        fs::create_dir_all(&folder).with_context(|| format!("make {folder}"))?;
        let done = self.in_folder(Path::new(&folder));
        let removed = fs::remove_dir_all(&folder).with_context(|| format!("remove {folder}"));
        done.and(removed)
    }

    fn in_folder(&self, folder: &Path) -> Result<()> {
        let body = self.download().with_context(|| format!("download from {}", self.server))?;
        fs::write(folder.join("input"), body).context("write what was downloaded")?;
        let status = Process::new("tar")
            .args(["-xzf", &self.package, "-C"])
            .arg(folder)
            .status()
            .context("start tar")?;
        ensure!(status.success(), "tar ended with {status}");
        compute(self.steps);
        Ok(())
    }

    fn download(&self) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.server).context("connect")?;
        let Self { server, object, .. } = self;
        let ask = format!("GET /{object} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
        stream.write_all(ask.as_bytes()).context("ask")?;
        answer(&mut stream.take(DOWNLOAD_MAX))
    }
}

/// The body of an answer that has its length in its head.
fn answer(from: &mut impl Read) -> Result<Vec<u8>> {
    let (mut got, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        if let Some(end) = got.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&got[..end]).into_owned();
            ensure!(head.starts_with("HTTP/1.1 200 "), "{}", head.lines().next().unwrap_or(""));
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let length: usize = length.context("an answer without its length")?.parse()?;
            let mut body = got.split_off(end + 4);
            while body.len() < length {
                let count = from.read(&mut part).context("read the body")?;
                ensure!(count > 0, "{} of {length} bytes", body.len());
                body.extend_from_slice(&part[..count]);
            }
            return Ok(body);
        }
        ensure!(got.len() < part.len(), "a head that does not end");
        let count = from.read(&mut part).context("read the head")?;
        ensure!(count > 0, "no answer");
        got.extend_from_slice(&part[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_taken_whole_and_nothing_less() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(answer(&mut &whole[..]).unwrap(), b"hello");
        assert!(answer(&mut &whole[..whole.len() - 1]).is_err());
        assert!(answer(&mut &b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"[..]).is_err());
        assert!(answer(&mut &b"HTTP/1.1 200 OK\r\n\r\n"[..]).is_err());
        assert!(answer(&mut &[b'x'; 100_000][..]).is_err());
        assert!(answer(&mut &b""[..]).is_err());
    }

    #[test]
    fn words_that_do_not_fit_are_refused() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for text in
            ["", "h:1/o p", "h:1/o p 0 1 1", "h:1/o p 2 3 1", "h:1 p 2 1 1", "h:1/o p 2 x 1"]
        {
            assert!(run(&words(text)).is_err(), "{text:?}");
        }
    }
}
