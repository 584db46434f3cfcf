//! Small users of userfaultfd without an engine: to measure the least that a fault can cost, and to see which pages a
//! guest writes.
//!
//! ```text
//!   fault --> fault_queue --> local_pager: the page is made up and mapped
//!                       \--> write_watch: the page is noted and made writable
//! ```

mod fault_queue;
mod local_pager;
mod write_watch;

pub use local_pager::{LocalPager, LocalPagerError};
pub use write_watch::{WriteWatch, WriteWatchError};
