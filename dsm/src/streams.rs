//! Runs of neighbouring pages that a guest touches one after another, and how far to fetch ahead.
//!
//! Clearing memory, unpacking an image or running through code for the first time faults on page
//! after page. Each such fault costs a round trip; pages fetched ahead share one. A page that is
//! fetched in vain costs its holder a fault, so only runs that have proved themselves are followed,
//! and the distance grows with them.
//!
//! ```text
//!   fault at n, at n+1, at n+2: a run --> fetch n+3, n+4 --> fault at n+5 --> fetch 4 --> ... 16
//! ```

use dsm_protocol::{Access, Gfn};

/// Runs that are followed at a time: a few vCPUs, each with a source and a target.
const STREAMS: usize = 8;
/// Faults in a row that make a run.
const PROOF: u32 = 3;
/// Pages fetched ahead at most.
const AHEAD_MAX: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The page whose fault continues the run.
    next: Gfn,
    want: Access,
    faults: u32,
    ahead: u64,
}

/// The runs of one slice, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    latest: Vec<Stream>,
}

impl Streams {
    /// Takes note of a fault and gives how many pages after it to fetch.
    pub(crate) fn fault(&mut self, gfn: Gfn, want: Access) -> u64 {
        let known = self.latest.iter().position(|run| run.next == gfn && run.want == want);
        let mut run = match known {
            Some(at) => self.latest.remove(at),
            None => Stream { next: gfn, want, faults: 0, ahead: 0 },
        };
        run.faults += 1;
        if run.faults >= PROOF {
            run.ahead = (run.ahead * 2).clamp(2, AHEAD_MAX);
        }
        run.next = Gfn(gfn.0 + run.ahead + 1);
        self.latest.insert(0, run);
        self.latest.truncate(STREAMS);
        run.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_followed_after_three_faults_and_ever_further() {
        let mut streams = Streams::default();
        let mut at = 100;
        let mut fetched = Vec::new();
        for _ in 0..7 {
            let ahead = streams.fault(Gfn(at), Access::Write);
            fetched.push(ahead);
            at += ahead + 1;
        }
        assert_eq!(fetched, [0, 0, 2, 4, 8, 16, 16]);
    }

    #[test]
    fn scattered_faults_fetch_nothing() {
        let mut streams = Streams::default();
        let pages = [7, 9, 8, 30, 10, 31, 50, 11, 70];
        let fetched: Vec<u64> = pages.map(|n| streams.fault(Gfn(n), Access::Read)).to_vec();
        // 10 follows 9 and 31 follows 30, but no third fault in a row.
        assert_eq!(fetched.iter().sum::<u64>(), 2, "{fetched:?}: only 9, 10, 11 is a run");
    }

    #[test]
    fn read_does_not_continue_a_run_of_writes() {
        let mut streams = Streams::default();
        for page in 1..3 {
            streams.fault(Gfn(page), Access::Write);
        }
        assert_eq!(streams.fault(Gfn(3), Access::Read), 0);
    }
}
