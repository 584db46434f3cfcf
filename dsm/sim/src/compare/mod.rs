//! Messages and page copies: this protocol against the algorithms of FragVisor and GiantVM.
//!
//! Accesses happen one after the other, each to its end, so what is counted is the algorithm and not a
//! race. Ours is the very `Node` of the engine with its prediction; the others are written from their
//! descriptions and public code (facts: peers, sections 1 and 2). None of them runs on a stock kernel.

mod algorithm;
mod central;
mod chains;
mod ours;
mod pattern;

pub use algorithm::{Algorithm, Cost, Touch};
pub use central::Central;
pub use chains::Chains;
pub use ours::Ours;
pub use pattern::Pattern;

#[cfg(test)]
mod tests {
    use super::*;
    use dsm_protocol::Mechanisms;

    const SLICES: u16 = 4;
    const PAGES: u64 = 64;

    fn all() -> [Box<dyn Algorithm>; 3] {
        [
            Box::new(Ours::new(SLICES, PAGES, Mechanisms::ALL)),
            Box::new(Central::new(PAGES)),
            Box::new(Chains::new(SLICES, PAGES)),
        ]
    }

    fn costs(touches: &[(u16, u64, bool)]) -> [(u64, u64, u64); 3] {
        all().map(|mut algorithm| {
            for &(slice, page, write) in touches {
                algorithm.touch(Touch { slice, page, write });
            }
            let Cost { faults, messages, copies } = algorithm.cost();
            (faults, messages, copies)
        })
    }

    #[test]
    fn own_page_costs_its_home_nothing() {
        let [ours, central, chains] = costs(&[(0, 0, true), (0, 0, false)]);
        assert_eq!([ours, central, chains], [(0, 0, 0); 3]);
        // Page 63 is homed on slice 3; the others keep all pages on slice 0 at first.
        let [ours, central, chains] = costs(&[(3, 63, true), (3, 63, true)]);
        assert_eq!(ours, (0, 0, 0));
        assert_eq!((central, chains), ((1, 2, 1), (1, 2, 1)));
    }

    #[test]
    fn page_of_a_third_slice_goes_through_the_origin_or_the_chain() {
        // Slice 1 writes page 0, then slice 2 reads it.
        let [ours, central, chains] = costs(&[(1, 0, true), (2, 0, false)]);
        assert_eq!(ours, (2, 2 + 3, 2), "request and page; and a fetch for the second");
        assert_eq!(central, (2, 2 + 4, 1 + 2));
        assert_eq!(chains, (2, 2 + 4, 1 + 2));
    }

    #[test]
    fn writer_invalidates_every_reader() {
        let touches = [(1, 0, false), (2, 0, false), (3, 0, false), (1, 0, true)];
        let [ours, central, chains] = costs(&touches);
        // Ours: a request, and three invalidations of which one is the home's own. The three answers
        // stand for the grant.
        assert_eq!(ours, (4, 3 * 2 + 6, 3));
        assert_eq!(central, (4, 3 * 2 + 6, 3));
        assert!(chains.1 > central.1 && chains.2 > 3, "{chains:?}");
    }

    #[test]
    fn patterns_touch_only_what_there_is() {
        for pattern in Pattern::ALL {
            for touch in pattern.touches(7, SLICES, PAGES, 10_000) {
                assert!(touch.slice < SLICES && touch.page < PAGES, "{pattern:?} {touch:?}");
            }
        }
    }

    #[test]
    fn ours_needs_the_fewest_messages_and_copies_in_every_pattern() {
        const SLICES: u16 = 64;
        const PAGES: u64 = 64 * 2000;
        const TOUCHES: u64 = 200_000;
        for pattern in Pattern::ALL {
            let run = |mut algorithm: Box<dyn Algorithm>| {
                pattern.touches(7, SLICES, PAGES, TOUCHES).for_each(|touch| algorithm.touch(touch));
                algorithm.cost()
            };
            let ours = run(Box::new(Ours::new(SLICES, PAGES, Mechanisms::ALL)));
            let others =
                [run(Box::new(Central::new(PAGES))), run(Box::new(Chains::new(SLICES, PAGES)))];
            for other in others {
                assert!(ours.messages < other.messages, "{pattern:?}: {ours:?} {other:?}");
                // Each page of a scan comes once, whoever brings it.
                let floor = pattern == Pattern::Scan && ours.copies == TOUCHES;
                assert!(ours.copies < other.copies || floor, "{pattern:?}: {ours:?} {other:?}");
            }
        }
    }
}
