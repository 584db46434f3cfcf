//! Runs of neighbouring pages that a guest touches one after another, and how far to fetch ahead.
//!
//! Clearing memory, unpacking an image or running through code for the first time faults on page
//! after page. Each such fault costs a round trip; pages fetched ahead share one. A page that is
//! fetched in vain costs its holder a fault, so only runs that have proved themselves are followed,
//! and the distance grows with them.
//!
//! ```text
//!   fault at n, at n+1, at n+2: a run --> fetch the window n+3, n+4; its first page is the marker
//!   touch of the marker --> fetch the next window, twice as long; its first page is the marker ... 64
//! ```
//!
//! So there is a window on its way while the guest works through the one before. If it is faster, it
//! faults behind the last window, and the run goes on from there.

use wire::{Access, Gfn, RUN_MAX};

/// Runs that are followed at a time: a few vCPUs, each with a source and a target.
const STREAMS: usize = 8;
/// Faults in a row that make a run.
const PROOF: u32 = 3;
/// Pages of a window at most.
const WINDOW_MAX: u16 = RUN_MAX;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The first page that was not asked for: a fault there continues the run.
    next: Gfn,
    /// The page whose touch continues it earlier.
    marker: Option<Gfn>,
    want: Access,
    faults: u32,
    window: u16,
}

/// Pages to fetch. The first is the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first page.
    pub first: Gfn,
    /// How many.
    pub pages: u16,
    /// The access that the run needs.
    pub want: Access,
}

/// The runs of one slice, the latest first.
#[derive(Debug, Default)]
pub struct Streams {
    latest: Vec<Stream>,
}

impl Streams {
    /// Takes note of a fault or of the touch of a marker, and says what to fetch.
    pub fn fault(&mut self, gfn: Gfn, want: Access) -> Option<Window> {
        let continues =
            |run: &Stream| run.marker == Some(gfn) || (run.next == gfn && run.want == want);
        let mut run = match self.latest.iter().position(continues) {
            Some(at) => self.latest.remove(at),
            None => Stream { next: gfn, marker: None, want, faults: 0, window: 0 },
        };
        run.faults += 1;
        let first = if run.marker == Some(gfn) { run.next } else { Gfn(gfn.0 + 1) };
        run.next = first;
        let mut found = None;
        if run.faults >= PROOF {
            run.window = (run.window * 2).clamp(2, WINDOW_MAX);
            run.next = Gfn(first.0 + u64::from(run.window));
            run.marker = Some(first);
            found = Some(Window { first, pages: run.window, want: run.want });
        }
        self.latest.insert(0, run);
        self.latest.truncate(STREAMS);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(first: u64, pages: u16) -> Option<Window> {
        Some(Window { first: Gfn(first), pages, want: Access::Read })
    }

    #[test]
    fn run_is_followed_after_three_faults_and_ever_further() {
        let mut streams = Streams::default();
        let mut touch = |gfn| streams.fault(Gfn(gfn), Access::Read);
        assert_eq!((touch(100), touch(101)), (None, None));
        assert_eq!(touch(102), window(103, 2));
        // The marker is touched while the window before it is not used up.
        assert_eq!(touch(103), window(105, 4));
        assert_eq!(touch(105), window(109, 8));
        // Faster than the pages come: a fault behind the last window.
        assert_eq!(touch(117), window(118, 16));
        assert_eq!(touch(118), window(134, 32));
        assert_eq!(touch(134), window(166, 64));
        assert_eq!(touch(166), window(230, 64));
    }

    #[test]
    fn scattered_faults_fetch_nothing() {
        let mut streams = Streams::default();
        let pages = [7, 9, 8, 30, 10, 31, 50, 11, 70];
        let windows = pages.map(|n| streams.fault(Gfn(n), Access::Read));
        // 10 follows 9 and 31 follows 30, but no third fault in a row; 9, 10, 11 is a run.
        assert_eq!(windows.iter().flatten().map(|window| window.pages).sum::<u16>(), 2);
    }

    #[test]
    fn read_does_not_continue_a_run_of_writes() {
        let mut streams = Streams::default();
        for page in 1..3 {
            streams.fault(Gfn(page), Access::Write);
        }
        assert_eq!(streams.fault(Gfn(3), Access::Read), None);
    }
}
