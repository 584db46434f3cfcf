//! Kernel parameters that a guest needs here, and those that make it run well.
//!
//! The needed ones spare Linux a calibration against hardware that a virtual machine fakes. The
//! recommended ones keep housekeeping of Linux from touching the run queues and clocks of vCPUs on
//! other hosts; every such touch is a page that travels. What each of them brings is in
//! docs/guest-parameters.md.

use crate::tsc::GuestTsc;
use std::fmt::Write;
use std::ops::Range;

/// What a guest's kernel is told about vCPUs of other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestPreset {
    /// Programs run on every vCPU; housekeeping that would only touch pages of other hosts is off.
    #[default]
    Spread,
    /// Borrowed vCPUs are for programs that are bound to them: neither load balancing nor housekeeping.
    Isolate,
    /// Nothing.
    None,
}

/// What the kernel parameters depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestCmdline<'a> {
    /// Frequency of the time stamp counter as the guest is told, in kHz.
    pub tsc_khz: u32,
    /// vCPUs that are borrowed from other hosts.
    pub borrowed: Vec<Range<u32>>,
    /// What the guest is told about them.
    pub preset: GuestPreset,
    /// The user's own parameters. They come last, so they win.
    pub user: &'a str,
}

impl<'a> GuestCmdline<'a> {
    /// The parameters for a guest that sees `clock` and borrows nothing.
    #[must_use]
    pub fn new(clock: &GuestTsc, user: &'a str) -> Self {
        Self { tsc_khz: clock.told_khz(), borrowed: Vec::new(), preset: GuestPreset::None, user }
    }
}

/// The kernel command line that is recommended for a guest.
#[must_use]
pub fn recommended_cmdline(guest: &GuestCmdline<'_>) -> String {
    let mut line = format!("tsc_early_khz={} tsc=reliable", guest.tsc_khz);
    let list = cpu_list(&guest.borrowed);
    if !list.is_empty() {
        match guest.preset {
            GuestPreset::Spread => line.push_str(QUIET),
            GuestPreset::Isolate => {
                line.push_str(&isolation(&list, guest));
                line.push_str(QUIET);
            }
            GuestPreset::None => {}
        }
    }
    let user = guest.user.trim();
    if !user.is_empty() {
        line.push(' ');
        line.push_str(user);
    }
    line
}

/// Less housekeeping on all vCPUs. NUMA balancing is off: pages go to where they are used without it,
/// and to learn where that is it takes mappings away that are dear to get back. Statistics of memory and the look for free
/// memory in pieces wake each vCPU once and each memory node twice a second, also where nothing happens.
const QUIET: &str = " nowatchdog audit=0 sysctl.vm.stat_interval=120 sysctl.vm.compaction_proactiveness=0 numa_balancing=disable";

/// Keeps housekeeping, the scheduler and timers from borrowed vCPUs.
fn isolation(list: &str, guest: &GuestCmdline<'_>) -> String {
    // Ticks that never stop: a vCPU that is told that its own may be looks at each interrupt whether it is, in the
    // page of the last update of jiffies, keeps timers in the queue of vCPU 0, and looks at the end of each system call
    // whether that vCPU has RCU callbacks of others. Each of these pages is written at each tick of vCPU 0.
    if guest.user.split_whitespace().any(|word| word == "nohz=off") {
        return format!(" isolcpus=domain,{list}");
    }
    // Without its tick a vCPU keeps its timers in the queue of vCPU 0. For one vCPU that is
    // worth it; with three, that queue's page was the hottest of all and the guest stood still.
    let alone = guest.borrowed.iter().map(ExactSizeIterator::len).sum::<usize>() == 1;
    if alone {
        format!(" isolcpus=nohz,domain,{list} nohz_full={list} rcu_nocbs={list}")
    } else {
        format!(" isolcpus=domain,{list} rcu_nocbs={list}")
    }
}

/// A list of CPUs as Linux reads it: `1-3,7`.
fn cpu_list(ranges: &[Range<u32>]) -> String {
    let mut list = String::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        let comma = if list.is_empty() { "" } else { "," };
        let written = match range.end - range.start {
            1 => write!(list, "{comma}{}", range.start),
            _ => write!(list, "{comma}{}-{}", range.start, range.end - 1),
        };
        written.expect("writing to a string does not fail");
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(preset: GuestPreset, borrowed: Vec<Range<u32>>, user: &str) -> GuestCmdline<'_> {
        GuestCmdline { tsc_khz: 26_000_000, borrowed, preset, user }
    }

    #[test]
    fn plain_guest_gets_only_its_clock() {
        let guest = guest(GuestPreset::Isolate, vec![], " quiet ");
        let line = recommended_cmdline(&guest);
        assert_eq!(line, "tsc_early_khz=26000000 tsc=reliable quiet");
    }

    #[test]
    fn by_default_no_vcpu_is_isolated() {
        let guest = guest(GuestPreset::default(), vec![1..2, 2..4], "quiet");
        let line = recommended_cmdline(&guest);
        assert!(line.ends_with(" numa_balancing=disable quiet"), "{line}");
        assert!(!line.contains("isolcpus") && !line.contains("nohz_full"), "{line}");
    }

    #[test]
    fn preset_none_adds_nothing() {
        let guest = guest(GuestPreset::None, vec![1..2, 2..4], "quiet");
        assert_eq!(recommended_cmdline(&guest), "tsc_early_khz=26000000 tsc=reliable quiet");
    }

    #[test]
    fn borrowed_vcpus_are_isolated() {
        let guest = guest(GuestPreset::Isolate, vec![1..2, 4..4, 4..7], "");
        let line = recommended_cmdline(&guest);
        assert!(line.contains("isolcpus=domain,1,4-6 rcu_nocbs=1,4-6 nowatchdog audit=0"));
    }

    #[test]
    fn single_borrowed_vcpu_runs_without_its_tick() {
        let guest = guest(GuestPreset::Isolate, vec![1..2, 4..4], "");
        let line = recommended_cmdline(&guest);
        assert!(line.contains("isolcpus=nohz,domain,1 nohz_full=1 rcu_nocbs=1 nowatchdog"));
    }

    #[test]
    fn ticks_that_never_stop_are_not_taken_from_a_vcpu() {
        let guest = guest(GuestPreset::Isolate, vec![1..2, 4..4], "quiet nohz=off");
        let line = recommended_cmdline(&guest);
        assert!(line.contains(" isolcpus=domain,1 nowatchdog"));
        assert!(!line.contains("nohz_full") && !line.contains("rcu_nocbs"));
    }

    #[test]
    fn user_parameters_come_last() {
        let guest = guest(GuestPreset::Isolate, vec![1..2, 5..7], "tsc=unstable");
        assert!(recommended_cmdline(&guest).ends_with(" tsc=unstable"));
    }
}
