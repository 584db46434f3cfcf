//! What is free on this host.

use super::entry::Journal;
use super::ids::Operation;
use scheduler::Resources;

impl Journal {
    /// What slices and reservations leave of `all`, but for those reservations that are not counted.
    #[must_use]
    pub fn free(
        &self,
        all: Resources,
        now: u64,
        is_counted: impl Fn(Operation) -> bool,
    ) -> Resources {
        let slices = self.slices.values().filter(|slice| slice.may_run());
        let used = slices.map(|slice| slice.order.resources);
        let reserved = self
            .reserved
            .iter()
            .filter(|(operation, it)| it.until > now && is_counted(**operation));
        let taken = used.chain(reserved.map(|(_, it)| it.resources));
        all.minus(taken.fold(Resources::NONE, Resources::plus))
    }
}
