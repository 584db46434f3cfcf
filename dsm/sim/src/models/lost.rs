//! A slice is lost at any moment. The survivors do not know yet: until the shell fences them they
//! must neither read a stale copy nor come to a wrong conclusion. They may wait for ever.

use super::ordinary;
use super::scenario::Scenario;

/// Slices with one page; any of them may be lost at any moment.
#[must_use]
pub fn any_slice(slices: u16, faults: usize) -> Scenario {
    let mut scenario = ordinary::one_page(slices, faults);
    scenario.name = "a lost slice";
    scenario.lose = true;
    scenario
}
