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
//!   touch of the first marker of 64 --> fetch two such windows, each with a marker
//! ```
//!
//! So there are two windows on their way or waiting while the guest works through the one before: it may
//! take a slice as long to wake up and answer as a guest to read a window. If the guest is faster, it
//! faults behind the last window, and the run goes on from there.

use wire::{Access, Gfn, RUN_MAX};

/// Runs that are followed at a time: a few vCPUs, each with a source and a target.
const STREAMS: usize = 8;
/// Faults in a row that make a run.
const PROOF: u32 = 3;
/// Windows on their way, once a run has the longest ones.
const DEPTH: usize = 2;
/// Pages of a window at most.
const WINDOW_MAX: u16 = RUN_MAX;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The first page that was not asked for: a fault there continues the run.
    next: Gfn,
    /// The pages whose touch continues it earlier.
    markers: [Option<Gfn>; DEPTH],
    want: Access,
    faults: u32,
    window: u16,
}

/// Pages to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first page.
    pub first: Gfn,
    /// How many.
    pub pages: u16,
    /// The access that the run needs.
    pub want: Access,
}

impl Window {
    /// True for a page whose touch asks for more: the first, and the first of a second window.
    #[must_use]
    pub fn is_marker(&self, gfn: Gfn) -> bool {
        let end = self.first.0 + u64::from(self.pages);
        (self.first.0..end).contains(&gfn.0)
            && (gfn.0 - self.first.0).is_multiple_of(u64::from(WINDOW_MAX))
    }
}

impl Stream {
    /// The next window, or as many as are not on their way yet.
    fn ask(&mut self, first: Gfn) -> Window {
        let mut end = first;
        for marker in self.markers.iter_mut().filter(|marker| marker.is_none()) {
            *marker = Some(end);
            end = Gfn(end.0 + u64::from(self.window));
            if self.window < WINDOW_MAX {
                break;
            }
        }
        self.next = end;
        let pages = u16::try_from(end.0 - first.0).expect("a few windows");
        Window { first, pages, want: self.want }
    }
}

/// The runs of one slice, the latest first.
#[derive(Debug, Default)]
pub struct Streams {
    latest: Vec<Stream>,
}

impl Streams {
    /// Takes note of a fault or of the touch of a marker, and says what to fetch.
    pub fn fault(&mut self, gfn: Gfn, want: Access) -> Option<Window> {
        let continues = |run: &Stream| {
            run.markers.contains(&Some(gfn)) || (run.next == gfn && run.want == want)
        };
        let mut run = match self.latest.iter().position(continues) {
            Some(at) => self.latest.remove(at),
            None => Stream { next: gfn, markers: [None; DEPTH], want, faults: 0, window: 0 },
        };
        run.faults += 1;
        let marker = run.markers.contains(&Some(gfn));
        let first = if marker { run.next } else { Gfn(gfn.0 + 1) };
        // Markers up to this page have served.
        let later = |marker: Option<Gfn>| marker.filter(|marker| *marker > gfn);
        run.markers = run.markers.map(later);
        run.next = first;
        let mut found = None;
        if run.faults >= PROOF {
            run.window = (run.window * 2).clamp(2, WINDOW_MAX);
            found = Some(run.ask(first)).filter(|window| window.pages > 0);
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
        // The longest windows come in pairs, and one more for each that is used up.
        assert_eq!(touch(134), window(166, 128));
        assert_eq!(touch(166), window(294, 64));
        assert_eq!(touch(230), window(358, 64));
        assert_eq!(touch(294), window(422, 64));
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
