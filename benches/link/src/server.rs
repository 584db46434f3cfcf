//! The end that answers.

use crate::memory::{Memory, PAGES};
use crate::peer::{HEAD, Peer, kind};
use anyhow::{Context, Result, bail, ensure};
use transport::Class;
use wire::PAGE_SIZE;

/// Answers until the asker goes.
pub(crate) fn serve(mut peer: Peer, memory: &Memory) -> Result<()> {
    for page in 0..PAGES {
        memory.mark(page, mark(page));
    }
    let remote = peer.has_remote_write();
    let mut streamed = 0u64;
    let mut page = [0; PAGE_SIZE];
    while let Some(frame) = peer.receive()? {
        ensure!(frame.len() >= HEAD, "a frame of {} bytes", frame.len());
        let (head, body) = frame.split_at(HEAD);
        match head[0] {
            kind::ECHO => peer.send(Class::Coherence, head, body)?,
            kind::PAGE => {
                let number = number(head)?;
                if remote {
                    peer.remote_write(head, offset(number))?;
                } else {
                    memory.read(number, &mut page);
                    peer.send(Class::Coherence, head, &page)?;
                }
            }
            kind::STREAM => streamed += u64::try_from(frame.len())?,
            kind::STREAMED => peer.send(Class::Coherence, head, &streamed.to_le_bytes())?,
            other => bail!("a frame of kind {other}"),
        }
        peer.done(frame);
    }
    Ok(())
}

/// The page that a head is about.
pub(crate) fn number(head: &[u8]) -> Result<usize> {
    let bytes = head.get(8..16).context("a head")?;
    let number = usize::try_from(u64::from_le_bytes(bytes.try_into()?))?;
    ensure!(number < PAGES, "page {number}");
    Ok(number)
}

fn offset(page: usize) -> u64 {
    u64::try_from(page * PAGE_SIZE).expect("a small number")
}

/// What a page of the server begins with.
pub(crate) fn mark(page: usize) -> u64 {
    u64::try_from(page).expect("a small number") * 0x9e37_79b9 + 1
}
