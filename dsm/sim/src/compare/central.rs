//! One home for all pages, as FragVisor has it (Popcorn's page server): whatever another slice has goes
//! through the origin.

use super::algorithm::{Algorithm, Cost, Touch};

const ORIGIN: u16 = 0;

/// Every page is known to slice 0 only.
#[derive(Debug)]
pub struct Central {
    /// Holders of each page, a bit per slice.
    holders: Vec<u64>,
    /// Whether its only holder may write it.
    exclusive: Vec<bool>,
    cost: Cost,
}

impl Central {
    /// All pages at the origin.
    ///
    /// # Panics
    /// More pages than fit the address space.
    #[must_use]
    pub fn new(pages: u64) -> Self {
        let pages = usize::try_from(pages).expect("pages fit");
        let cost = Cost::default();
        Self { holders: vec![1 << ORIGIN; pages], exclusive: vec![true; pages], cost }
    }

    fn message(&mut self, count: u64, copies: u64) {
        self.cost.messages += count;
        self.cost.copies += copies;
    }
}

impl Algorithm for Central {
    fn touch(&mut self, touch: Touch) {
        let at = usize::try_from(touch.page).expect("pages fit");
        let (bit, origin) = (1 << touch.slice, 1 << ORIGIN);
        let held = self.holders[at] & bit != 0;
        if held && (!touch.write || self.exclusive[at]) {
            return;
        }
        self.cost.faults += 1;
        let away = touch.slice != ORIGIN;
        let mut others = self.holders[at] & !bit & !origin;
        if !held && self.holders[at] & origin == 0 {
            // The origin claims the page from its holder: a request and the page.
            self.message(2, 1);
            others &= others - 1;
            if !touch.write {
                self.holders[at] |= origin;
            }
        }
        if away {
            // The request, and the page or the permission.
            self.message(2, u64::from(!held));
        }
        if touch.write {
            // An invalidation and its answer for each other holder.
            self.message(2 * u64::from(others.count_ones()), 0);
            self.holders[at] = bit;
        } else {
            self.holders[at] |= bit;
        }
        self.exclusive[at] = touch.write;
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}
