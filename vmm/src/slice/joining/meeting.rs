//! A slice calls a newcomer, as the coordinator says.
//!
//! ```text
//!   Summons --engine's thread--> [thread of its own: Membership::meet] --> link for the next cut, Met
//! ```

use super::MEET_LIMIT;
use crate::crash;
use crate::slice::channels::Channels;
use crate::slice::one_line;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Instant;
use transport::{PeerLink, Summons};
use wire::{Control, SliceId};

/// A summons has come. Calling takes as long as the slowest of all slices, so a thread does it. While one calls another
/// newcomer, which may have been given up meanwhile, this one is not called. False if it is no summons.
pub(in crate::slice) fn summoned(channels: &Arc<Channels>, (id, bytes): (u64, &[u8])) -> bool {
    let Ok(summons) = Summons::decode(bytes) else { return false };
    let (own, about) = (Arc::clone(channels), (id, summons.newcomer()));
    if channels.joining.calls.swap(true, SeqCst) {
        answer(channels, about, Some("it is still calling the one before; try again".into()));
        return true;
    }
    let run = move || {
        crash::point();
        let met = meet(&own, &summons).map(|link| own.joining.put_link(link));
        own.joining.calls.store(false, SeqCst);
        answer(&own, about, met.err().map(|error| one_line(&*error)));
    };
    if let Err(error) = thread::Builder::new().name("meeting".into()).spawn(run) {
        channels.joining.calls.store(false, SeqCst);
        answer(channels, about, Some(format!("start a thread: {error}")));
    }
    true
}

fn answer(channels: &Channels, (id, slice): (u64, SliceId), failure: Option<String>) {
    let failure = failure.unwrap_or_default();
    channels.send(channels.coordinator(), &Control::Met { id, slice, failure });
}

fn meet(channels: &Channels, summons: &Summons) -> Result<PeerLink, Box<dyn Error>> {
    let membership = channels.joining.membership();
    let membership = membership.as_ref().ok_or("it has no key of the VM")?;
    Ok(membership.meet(summons, Instant::now() + MEET_LIMIT)?)
}
