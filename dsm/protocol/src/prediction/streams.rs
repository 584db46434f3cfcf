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
//!   windows of 64 end where a chunk of 2 MiB begins --> from there on a window is such a chunk
//! ```
//!
//! A chunk is fetched in pieces, one when another has come, by whoever carries this out, and can be mapped as
//! a whole. So there are two windows on their way or waiting while the guest works through the one before: it may
//! take a slice as long to wake up and answer as a guest to read a window. If the guest is faster, it
//! faults behind the last window, and the run goes on from there.

use super::window::{CHUNK, Window};
use wire::{Access, Gfn, RUN_MAX};

/// Runs that are followed at a time: a few vCPUs, each with a source and a target.
const STREAMS: usize = 8;
/// Faults in a row that make a run.
const PROOF: u32 = 3;
/// Windows on their way, once a run has the longest ones.
const DEPTH: usize = 2;
/// Pages of a window at most, if it is no chunk.
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

impl Stream {
    /// The next window, or as many as are not on their way yet.
    fn ask(&mut self, first: Gfn) -> Vec<Window> {
        let (mut windows, mut next) = (Vec::new(), first);
        for marker in self.markers.iter_mut().filter(|marker| marker.is_none()) {
            let pages = pages_at(next, self.window);
            *marker = Some(next);
            windows.push(Window::neighbours(next, pages, self.want));
            next = Gfn(next.0 + u64::from(pages));
            if self.window < WINDOW_MAX {
                break;
            }
        }
        self.next = next;
        windows
    }
}

/// How many pages a window has that begins there.
fn pages_at(first: Gfn, window: u16) -> u16 {
    if window < WINDOW_MAX {
        return window;
    }
    let in_chunk = u16::try_from(first.0 % u64::from(CHUNK)).expect("below a chunk");
    if in_chunk == 0 { CHUNK } else { window.min(CHUNK - in_chunk) }
}

/// The runs of one slice, the latest first.
#[derive(Debug, Default)]
pub struct Streams {
    latest: Vec<Stream>,
}

impl Streams {
    /// Takes note of a fault or of the touch of a marker, and says what to fetch.
    pub fn fault(&mut self, gfn: Gfn, want: Access) -> Vec<Window> {
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
        let mut found = Vec::new();
        if run.faults >= PROOF {
            run.window = (run.window * 2).clamp(2, WINDOW_MAX);
            found = run.ask(first);
        }
        self.latest.insert(0, run);
        self.latest.truncate(STREAMS);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(of: &[(u64, u16)]) -> Vec<Window> {
        let window =
            |(first, pages): &(u64, u16)| Window::neighbours(Gfn(*first), *pages, Access::Read);
        of.iter().map(window).collect()
    }

    #[test]
    fn run_is_followed_after_three_faults_and_ever_further() {
        let mut streams = Streams::default();
        let mut touch = |gfn| streams.fault(Gfn(gfn), Access::Read);
        assert_eq!((touch(100), touch(101)), (vec![], vec![]));
        assert_eq!(touch(102), windows(&[(103, 2)]));
        // The marker is touched while the window before it is not used up.
        assert_eq!(touch(103), windows(&[(105, 4)]));
        assert_eq!(touch(105), windows(&[(109, 8)]));
        // Faster than the pages come: a fault behind the last window.
        assert_eq!(touch(117), windows(&[(118, 16)]));
        assert_eq!(touch(118), windows(&[(134, 32)]));
        // The longest windows come in pairs, and one more for each that is used up.
        assert_eq!(touch(134), windows(&[(166, 64), (230, 64)]));
        assert_eq!(touch(166), windows(&[(294, 64)]));
        assert_eq!(touch(230), windows(&[(358, 64)]));
        assert_eq!(touch(294), windows(&[(422, 64)]));
        // Up to the next chunk, and by chunks from there.
        assert_eq!(touch(358), windows(&[(486, 26)]));
        assert_eq!(touch(422), windows(&[(512, 512)]));
        assert_eq!(touch(486), windows(&[(1024, 512)]));
        assert_eq!(touch(512), windows(&[(1536, 512)]));
        // In the midst of a run of chunks that were here already.
        assert_eq!(touch(2048), windows(&[(2049, 64), (2113, 64)]));
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
        assert_eq!(streams.fault(Gfn(3), Access::Read), vec![]);
    }
}
