//! The end that measures.

use crate::How;
use crate::memory::{Memory, PAGES};
use crate::peer::{HEAD, Peer, kind};
use crate::server::{mark, number};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::time::Instant;
use transport::{Class, FRAME_BYTES_MAX};
use wire::PAGE_SIZE;

/// Of the first so many trips nothing is told.
const WARM: usize = 50;

/// Microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Times {
    p50: f64,
    p99: f64,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    /// What carried the frames.
    carrier: String,
    /// Round trip of a frame of 64 bytes.
    echo_64: Times,
    /// The same of 4 KiB.
    echo_4096: Times,
    /// From a request to the page in memory.
    page: Times,
    /// MB (10^6 bytes) a second, one way.
    stream_mb_s: f64,
    /// Whether pages were written remotely, without a copy.
    remote_write: bool,
}

pub(crate) fn measure(mut peer: Peer, memory: &Memory, how: How, carrier: String) -> Result<Found> {
    let remote_write = peer.has_remote_write();
    Ok(Found {
        carrier,
        echo_64: echo(&mut peer, 64, how.count)?,
        echo_4096: echo(&mut peer, 4096, how.count)?,
        page: pages(&mut peer, memory, how.count)?,
        stream_mb_s: stream(&mut peer, how.stream << 20)?,
        remote_write,
    })
}

fn head(kind: u8, page: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = kind;
    head[8..16].copy_from_slice(&u64::try_from(page).expect("a small number").to_le_bytes());
    head
}

fn answer(peer: &mut Peer) -> Result<Vec<u8>> {
    match peer.receive()? {
        Some(frame) => Ok(frame),
        None => bail!("the server has gone: {}", peer.lost().unwrap_or_default()),
    }
}

fn echo(peer: &mut Peer, bytes: usize, count: usize) -> Result<Times> {
    // With the eight bytes of the frame's own head.
    let body = vec![7; bytes - HEAD - 8];
    timed(count, |_| {
        peer.send(Class::Coherence, &head(kind::ECHO, 0), &body)?;
        let frame = answer(peer)?;
        ensure!(frame.len() == bytes - 8, "{} bytes came back", frame.len());
        peer.done(frame);
        Ok(())
    })
}

fn pages(peer: &mut Peer, memory: &Memory, count: usize) -> Result<Times> {
    timed(count, |trip| {
        let page = trip % PAGES;
        memory.mark(page, 0);
        peer.send(Class::Coherence, &head(kind::PAGE, page), &[])?;
        let frame = answer(peer)?;
        let (head, body) = frame.split_at(HEAD);
        ensure!(number(head)? == page, "another page came");
        if !body.is_empty() {
            let body: &[u8; PAGE_SIZE] = body.try_into().context("a page")?;
            memory.write(page, body);
        }
        ensure!(memory.marked(page) == mark(page), "page {page} is not what the server has");
        peer.done(frame);
        Ok(())
    })
}

fn stream(peer: &mut Peer, bytes: usize) -> Result<f64> {
    let body = vec![7; FRAME_BYTES_MAX - HEAD];
    let start = Instant::now();
    for _ in 0..bytes / FRAME_BYTES_MAX {
        peer.send(Class::Bulk, &head(kind::STREAM, 0), &body)?;
    }
    // The question may overtake frames of another class.
    let mut streamed = 0;
    while streamed < bytes / FRAME_BYTES_MAX * FRAME_BYTES_MAX {
        peer.send(Class::Bulk, &head(kind::STREAMED, 0), &[])?;
        let frame = answer(peer)?;
        let tail = frame.get(HEAD..).context("a head")?;
        streamed = usize::try_from(u64::from_le_bytes(tail.try_into()?))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(streamed as f64 / start.elapsed().as_secs_f64() / 1e6)
}

fn timed(count: usize, mut trip: impl FnMut(usize) -> Result<()>) -> Result<Times> {
    let mut times = Vec::with_capacity(count);
    for number in 0..count + WARM {
        let start = Instant::now();
        trip(number)?;
        if number >= WARM {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times.get(times.len().saturating_sub(1) * percent / 100);
    let p = |percent| at(percent).copied().context("no trips");
    Ok(Times { p50: p(50)?, p99: p(99)? })
}
