//! What goes by the guest's own time, and is longer where its clock is slower: on an emulated host a page fault takes milliseconds.

use vmm::slice::VmSpec;

/// Bounds of the hold window in microseconds.
const HOLD: (u64, u64) = (20, 2000);
/// A page that goes again before the vCPU that waited for it has run was fetched in vain.
const SLOW_HOLD: (u64, u64) = (20, 10_000);

/// Sets what was not given. The rate of the guest's clock is known then, also of a VM that goes on.
pub(crate) fn set(spec: &mut VmSpec, timer_spacing: Option<String>, hold: Option<(u64, u64)>) {
    let is_slow = spec.clock_rate < 1.0;
    let vcpus: u32 = spec.slices.iter().map(|slice| slice.vcpus).sum();
    let spacing = if is_slow { slow_spacing(vcpus) } else { "adaptive" };
    spec.timer_spacing = timer_spacing.unwrap_or_else(|| spacing.to_owned());
    spec.hold_us = hold.unwrap_or(if is_slow { SLOW_HOLD } else { HOLD });
}

/// A tick touches pages that every vCPU touches; the spacing grows while ticks cost more than a quarter of it. With at most 60 ms a
/// guest that isolates none of its two vCPUs needed three times as long to start (docs/guest-parameters.md), with four it did little
/// else.
fn slow_spacing(vcpus: u32) -> &'static str {
    if vcpus < 4 { "adaptive:20-400" } else { "adaptive:50-1000" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm::slice::{Interrupts, PageTables, SliceSpec};

    fn paced(clock_rate: f64, vcpus: u32, given: bool) -> (String, (u64, u64)) {
        let slices = vec![SliceSpec { vcpus, spare_vcpus: 0, memory: 0 }; 2];
        let mut spec = VmSpec {
            slices,
            interrupts: Interrupts::Auto,
            page_tables: PageTables::Auto,
            sample: None,
            clock_rate,
            timer_spacing: String::new(),
            hold_us: (0, 0),
            devices: Vec::new(),
        };
        set(&mut spec, given.then(|| "off".to_owned()), given.then_some((1, 2)));
        (spec.timer_spacing, spec.hold_us)
    }

    #[test]
    fn slow_guests_have_longer_times_unless_they_are_given() {
        assert_eq!(paced(1.0, 1, false), ("adaptive".to_owned(), (20, 2000)));
        assert_eq!(paced(0.1, 1, false), ("adaptive:20-400".to_owned(), (20, 10_000)));
        assert_eq!(paced(0.1, 2, false), ("adaptive:50-1000".to_owned(), (20, 10_000)));
        assert_eq!(paced(0.1, 2, true), ("off".to_owned(), (1, 2)));
    }
}
