//! Probable owners, as GiantVM has them (Li and Hudak's dynamic distributed manager): a request walks
//! from owner to former owner, the page comes back the same way, and reading moves the ownership too.

use super::algorithm::{Algorithm, Cost, Touch};

#[derive(Clone, Copy, Debug)]
struct Page {
    owner: u16,
    /// Who has a copy, the owner too.
    copies: u64,
    writable: bool,
}

/// No slice knows more than whom to ask next.
#[derive(Debug)]
pub struct Chains {
    pages: Vec<Page>,
    /// Whom a slice takes for the owner, by page and slice.
    probable: Vec<u8>,
    slices: usize,
    cost: Cost,
}

impl Chains {
    /// All pages at slice 0.
    ///
    /// # Panics
    /// More pages than fit the address space.
    #[must_use]
    pub fn new(slices: u16, pages: u64) -> Self {
        let (slices, pages) = (usize::from(slices), usize::try_from(pages).expect("pages fit"));
        let first = Page { owner: 0, copies: 1, writable: true };
        let probable = vec![0; pages * slices];
        Self { pages: vec![first; pages], probable, slices, cost: Cost::default() }
    }

    fn guess(&mut self, page: usize, slice: u16) -> &mut u8 {
        &mut self.probable[page * self.slices + usize::from(slice)]
    }

    /// Walks to the owner; all on the way take the requester for the next one. Returns the hops.
    fn walk(&mut self, page: usize, requester: u16) -> u64 {
        let owner = self.pages[page].owner;
        let next = u8::try_from(requester).expect("at most 64 slices");
        let (mut at, mut hops) = (requester, 0);
        while at != owner {
            let guess = u16::from(std::mem::replace(self.guess(page, at), next));
            // A slice that takes itself for the owner has been it; the first owner knows more.
            at = if guess == at { owner } else { guess };
            hops += 1;
        }
        *self.guess(page, owner) = next;
        hops
    }
}

impl Algorithm for Chains {
    fn touch(&mut self, touch: Touch) {
        let at = usize::try_from(touch.page).expect("pages fit");
        let page = self.pages[at];
        let bit = 1u64 << touch.slice;
        let (held, owned) = (page.copies & bit != 0, page.owner == touch.slice);
        if held && (!touch.write || (owned && page.writable)) {
            return;
        }
        self.cost.faults += 1;
        let hops = self.walk(at, touch.slice);
        // The request and the answer at every hop; with the page if there is no copy yet.
        self.cost.messages += 2 * hops;
        self.cost.copies += if held { 0 } else { hops };
        let mut copies = page.copies | bit;
        if touch.write {
            // The new owner invalidates one after the other; the old one went with the page.
            let gone = copies & !bit & !(1 << page.owner);
            self.cost.messages += 2 * u64::from(gone.count_ones());
            let next = u8::try_from(touch.slice).expect("at most 64 slices");
            for slice in (0..64u16).filter(|slice| gone & 1 << slice != 0) {
                *self.guess(at, slice) = next;
            }
            copies = bit;
        }
        self.pages[at] = Page { owner: touch.slice, copies, writable: touch.write };
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}
