//! What the tests of all saved forms do.

use migrate::saved::{decode, encode};
use migrate::{Saved, SavedState};
use std::fmt::Debug;

/// Saves a part, brings its state through bytes into a fresh part, and gives the state.
pub(crate) fn bring_over<P>(from: &P, into: &mut P) -> P::State
where
    P: Saved + ?Sized,
    P::State: Clone + Debug + PartialEq,
{
    let state = from.save();
    into.restore(through_bytes(&state)).expect("a part of the same configuration");
    assert_eq!(into.save(), state, "saved again");
    state
}

/// A state as it is read after it was written.
pub(crate) fn through_bytes<T: SavedState + Debug + PartialEq>(state: &T) -> T {
    let bytes = encode(state).expect("a part saves what fits together");
    let read: T = decode(&bytes).expect("what was written can be read");
    assert_eq!(&read, state, "as written");
    read
}

/// Reads a state in which each byte in turn has been changed, or the end is missing. What is accepted fits together.
pub(crate) fn damage<T: SavedState>(state: &T, to: u8, mut accepted: impl FnMut(T)) {
    let bytes = encode(state).expect("a part saves what fits together");
    for at in 0..bytes.len() {
        assert!(decode::<T>(&bytes[..at]).is_err(), "the first {at} bytes");
        let mut damaged = bytes.clone();
        damaged[at] ^= to;
        if let Ok(read) = decode::<T>(&damaged) {
            read.check().expect("decoding has checked it");
            accepted(read);
        }
    }
}
