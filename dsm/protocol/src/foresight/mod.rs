//! What a slice will want next, from what it has wanted so far.
//!
//! Both only decide what a slice asks for and when. To the protocol a foreseen write is a write, and a
//! window of pages is an [`Input::Prefetch`](crate::Input::Prefetch).

pub mod habits;
pub mod streams;

pub use habits::Habits;
pub use streams::{Streams, Window};
