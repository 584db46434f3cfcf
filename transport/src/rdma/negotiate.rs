//! All peers of a slice, connected in step over the streams of the mesh.
//!
//! ```text
//!  to every peer: offer, or why there is none      from every peer: the same
//!                 connected, or why not                              the same
//!                 reached, or why not                                the same
//! ```
//!
//! A slice that fails still takes every step (`steps`).

use super::device::Wanted;
use super::error::RdmaError;
use super::offer::Offer;
use super::setup::Endpoint;
use crate::memory::PageMemory;
use crate::steps::{Step, exchange};
use crate::traits::Class;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use wire::SliceId;

/// How long the first messages may take.
const GREETING: Duration = Duration::from_secs(10);

/// Connects queue pairs to all peers, one endpoint each in the order of the streams, and exposes memory to them; or says
/// why RDMA cannot be used.
///
/// # Errors
/// A stream failed (with the slice at its other end). That RDMA is not possible is no error.
pub(crate) fn negotiate(
    streams: &mut [(SliceId, [TcpStream; Class::COUNT])],
    memory: Option<&PageMemory>,
    lease: Duration,
    deadline: Instant,
) -> Result<Step<Vec<Endpoint>>, (SliceId, io::Error)> {
    let mut endpoints: Vec<Step<Endpoint>> = Vec::with_capacity(streams.len());
    for (slice, classes) in streams.iter() {
        let address = classes[0].local_addr().map_err(|error| (*slice, error))?.ip();
        let endpoint = Endpoint::open(&Wanted::Address(address), memory);
        endpoints.push(endpoint.map_err(|error| text(&error)));
    }
    let offers: Vec<Step<Offer>> = endpoints
        .iter()
        .map(|endpoint| endpoint.as_ref().map(Endpoint::offer).map_err(Clone::clone))
        .collect();
    let theirs = exchange(streams, &offers, deadline)?;

    for (endpoint, theirs) in endpoints.iter_mut().zip(theirs) {
        advance(endpoint, theirs, |endpoint, theirs| endpoint.connect(&theirs, lease));
    }
    let connected = exchange(streams, &standing(&endpoints), deadline)?;

    let until = deadline.min(Instant::now() + GREETING);
    for (endpoint, theirs) in endpoints.iter_mut().zip(connected) {
        advance(endpoint, theirs, |endpoint, ()| endpoint.greet());
    }
    for endpoint in &mut endpoints {
        advance(endpoint, Ok(()), |endpoint, ()| endpoint.await_greeting(until));
    }
    let reached = exchange(streams, &standing(&endpoints), deadline)?;

    for (endpoint, theirs) in endpoints.iter_mut().zip(reached) {
        advance(endpoint, theirs, |_, ()| Ok(()));
    }
    Ok(endpoints.into_iter().collect())
}

fn text(error: &RdmaError) -> String {
    crate::one_line(error)
}

/// Takes the next step with an endpoint, if both sides got this far.
fn advance<T>(
    endpoint: &mut Step<Endpoint>,
    theirs: Step<T>,
    step: impl FnOnce(&mut Endpoint, T) -> Result<(), RdmaError>,
) {
    let Ok(ours) = endpoint else { return };
    if let Err(cause) = theirs.and_then(|theirs| step(ours, theirs).map_err(|error| text(&error))) {
        *endpoint = Err(cause);
    }
}

fn standing(endpoints: &[Step<Endpoint>]) -> Vec<Step<()>> {
    let state = |endpoint: &Step<Endpoint>| endpoint.as_ref().map(drop).map_err(Clone::clone);
    endpoints.iter().map(state).collect()
}
