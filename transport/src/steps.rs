//! What slices tell each other over their authenticated streams while they set up a carrier: a little-endian `u32`
//! length and that many bytes of postcard.
//!
//! ```text
//!  to every peer: what this side has, or why it has nothing      from every peer: the same
//! ```
//! Each step is first told to all and then heard from all: nobody waits for somebody who waits. A slice that fails
//! still takes every step, so that the streams stay good for the next carrier.

use crate::handshake::{Channel, read_all, write_all};
use crate::traits::Class;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::Instant;
use wire::SliceId;

/// The largest message, in bytes.
const BYTES_MAX: usize = 4096;
/// The longest reason, in bytes.
const TEXT_MAX: usize = 1024;

/// A step of the set-up: what this side has, or why it has not.
pub(crate) type Step<T> = Result<T, String>;

/// Says how a step went.
pub(crate) fn tell<T: Serialize>(
    channel: &mut impl Channel,
    step: &Step<T>,
    deadline: Instant,
) -> io::Result<()> {
    let cut = step.as_ref().map_err(|text| crate::control::cut(text));
    let body = postcard::to_stdvec(&cut).map_err(|error| io::Error::other(error.to_string()))?;
    let length = u32::try_from(body.len()).map_err(|_| ErrorKind::InvalidData)?;
    write_all(channel, &[&length.to_le_bytes()[..], &body].concat(), deadline)
}

/// Hears how the step went at the other end.
pub(crate) fn hear<T: for<'a> Deserialize<'a>>(
    channel: &mut impl Channel,
    deadline: Instant,
) -> io::Result<Step<T>> {
    let mut length = [0; 4];
    read_all(channel, &mut length, deadline)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > BYTES_MAX {
        let text = format!("the peer announced {length} bytes of set-up");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    let mut body = vec![0; length];
    read_all(channel, &mut body, deadline)?;
    decode(&body)
}

pub(crate) fn decode<T: for<'a> Deserialize<'a>>(body: &[u8]) -> io::Result<Step<T>> {
    let step: Step<T> = postcard::from_bytes(body)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))?;
    if step.as_ref().err().is_some_and(|text| text.len() > TEXT_MAX) {
        return Err(io::Error::new(ErrorKind::InvalidData, "the peer's reason is too long"));
    }
    Ok(step)
}

/// Tells every peer its step and hears theirs. Why one got no further carries its name: who reads it may be
/// at neither end.
///
/// # Errors
/// A stream failed, with the slice at its other end.
pub(crate) fn exchange<T: Serialize + for<'a> Deserialize<'a>>(
    streams: &mut [(SliceId, [TcpStream; Class::COUNT])],
    ours: &[Step<T>],
    deadline: Instant,
) -> Result<Vec<Step<T>>, (SliceId, io::Error)> {
    for ((slice, classes), step) in streams.iter_mut().zip(ours) {
        tell(&mut classes[0], step, deadline).map_err(|error| (*slice, error))?;
    }
    let heard = streams.iter_mut().map(|(slice, classes)| {
        let theirs: Step<T> = hear(&mut classes[0], deadline).map_err(|error| (*slice, error))?;
        Ok(theirs.map_err(|cause| format!("{slice} says: {cause}")))
    });
    heard.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn steps_round_trip_in_order() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        tell(&mut near, &Ok((7_u16, [3_u8; 4])), deadline).unwrap();
        tell::<()>(&mut near, &Err("x".repeat(5000)), deadline).unwrap();

        assert_eq!(hear::<(u16, [u8; 4])>(&mut far, deadline).unwrap(), Ok((7, [3; 4])));
        assert_eq!(hear::<()>(&mut far, deadline).unwrap().unwrap_err().len(), TEXT_MAX);
    }

    #[test]
    fn message_beyond_the_bound_is_refused_before_it_is_read() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        write_all(&mut near, &4097_u32.to_le_bytes(), deadline).unwrap();

        let error = hear::<()>(&mut far, deadline).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
