//! What a slice will want next, from what it has wanted so far.
//!
//! All only decide what a slice asks for and when. To the protocol a foreseen write is a write, and a
//! window of pages is an [`Input::Prefetch`](crate::Input::Prefetch), or one for each page.

pub mod companions;
pub mod habits;
pub mod runs;
pub mod streams;
pub mod strides;
pub mod window;

pub use companions::{Companions, Lack};
pub use habits::Habits;
pub use runs::Runs;
pub use streams::Streams;
pub use strides::Strides;
pub use window::Window;
