//! What goes by the guest's own time, and is longer where its clock is slower: on an emulated host a page fault takes milliseconds.

use vmm::slice::VmSpec;

/// Bounds of the hold window in microseconds.
const HOLD: (u64, u64) = (20, 2000);
/// A tick takes pages from every other vCPU, some ten for milliseconds each. With at most 400 ms of real time between them, and a quarter
/// of the time for ticks, a guest of two vCPUs took seven times as long to start (decision 75).
const SLOW_SPACING: &str = "adaptive:20-3200";
/// A page that goes again before the vCPU that waited for it has run was fetched in vain.
const SLOW_HOLD: (u64, u64) = (20, 10_000);

/// Sets what was not given. The rate of the guest's clock is known then, also of a VM that goes on.
pub(crate) fn set(spec: &mut VmSpec, timer_spacing: Option<String>, hold: Option<(u64, u64)>) {
    let is_slow = spec.clock_rate < 1.0;
    let spacing = if is_slow { SLOW_SPACING } else { "adaptive" };
    spec.timer_spacing = timer_spacing.unwrap_or_else(|| spacing.to_owned());
    spec.hold_us = hold.unwrap_or(if is_slow { SLOW_HOLD } else { HOLD });
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm::slice::{Interrupts, PageTables, SliceSpec};
    use vmm::timer_spacing::TimerSpacing;

    fn paced(clock_rate: f64, given: bool) -> (String, (u64, u64)) {
        let slices = vec![SliceSpec { vcpus: 1, spare_vcpus: 0, memory: 0 }; 2];
        let mut spec = VmSpec {
            slices,
            interrupts: Interrupts::Auto,
            page_tables: PageTables::Auto,
            sample: None,
            clock_rate,
            timer_spacing: String::new(),
            hold_us: (0, 0),
            devices: Vec::new(),
            supervised: false,
            boots_at_home: false,
        };
        set(&mut spec, given.then(|| "off".to_owned()), given.then_some((1, 2)));
        (spec.timer_spacing, spec.hold_us)
    }

    #[test]
    fn slow_guests_have_longer_times_unless_they_are_given() {
        assert_eq!(paced(1.0, false), ("adaptive".to_owned(), (20, 2000)));
        assert_eq!(paced(0.1, false), (SLOW_SPACING.to_owned(), (20, 10_000)));
        assert!(SLOW_SPACING.parse::<TimerSpacing>().is_ok());
        assert_eq!(paced(0.1, true), ("off".to_owned(), (1, 2)));
    }
}
