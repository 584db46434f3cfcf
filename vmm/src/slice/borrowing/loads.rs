//! What the vCPUs of all slices have done in a window.
//!
//! ```text
//!   coordinator --AskLoad--> all slices, at both ends of a window
//!          load <---Load------|
//! ```

use crate::machine::Machine;
use crate::slice::channels::Channels;
use crate::vcpu::RunTimes;
use migrate::borrowed::Load;
use std::collections::BTreeMap;
use std::sync::{Once, Weak};
use std::thread;
use std::time::{Duration, Instant};
use wire::control::{Control, SliceLoad};
use wire::{Epoch, SliceId};

/// For the loads of all slices, and for the memory engine of one, on whose main thread that is.
const LIMIT: Duration = Duration::from_secs(5);
const ENGINE_LIMIT: Duration = Duration::from_secs(2);

/// What this slice's vCPUs have done since the start; none while its memory engine does not answer, or where Linux does not count.
pub(in crate::slice) fn own_load(channels: &Channels, machine: &Machine) -> Option<SliceLoad> {
    static TOLD: Once = Once::new();
    if !RunTimes::are_counted() {
        TOLD.call_once(|| {
            tracing::warn!(
                "this host's kernel does not count for how long threads run (schedstat): --borrow adaptive has nothing to go by, and \
                 vCPUs stay where they are; tessera vm move moves them"
            );
        });
        return None;
    }
    let times = machine.run_times();
    let report = channels.handle.get()?.report(ENGINE_LIMIT)?;
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Some(SliceLoad {
        run_us: micros(times.run),
        delayed_us: micros(times.delayed),
        waited_us: report.waited_us,
    })
}

/// What all slices had done at one moment.
struct Counted {
    at: Instant,
    epoch: Epoch,
    /// With the number of vCPUs there. Counts only grow: one that was sent for an earlier look is a little old.
    slices: BTreeMap<SliceId, (SliceLoad, u32)>,
}

/// Looks at both ends of windows.
pub(super) struct Meter<'a> {
    channels: Weak<Channels>,
    machine: &'a Machine,
}

impl<'a> Meter<'a> {
    pub(super) fn new(channels: Weak<Channels>, machine: &'a Machine) -> Self {
        Self { channels, machine }
    }

    /// Waits for so long. None once the VM is over; no load where parts have moved meanwhile, or a slice says nothing.
    pub(super) fn window(&mut self, length: Duration) -> Option<Option<Load>> {
        let before = self.count()?;
        thread::sleep(length);
        let after = self.count()?;
        Some(before.zip(after).and_then(|(before, after)| between(&before, &after)))
    }

    /// Asks all slices, this one among them.
    fn count(&self) -> Option<Option<Counted>> {
        let channels = &*self.channels.upgrade()?;
        if channels.cut.is_over() || !channels.may_ask() {
            return None;
        }
        let (local, placement) = (channels.local(), channels.placement.load());
        let loads = channels.loads.begin();
        let others = channels.others();
        others.iter().for_each(|slice| channels.send(*slice, &Control::AskLoad));
        let own = own_load(channels, self.machine);
        let mut slices: BTreeMap<_, _> = own.map(|load| (local, load)).into_iter().collect();
        let deadline = Instant::now() + LIMIT;
        while others.iter().any(|slice| !slices.contains_key(slice)) {
            match loads.recv_deadline(deadline) {
                Ok((from, load)) => drop(slices.insert(from, load)),
                Err(_) => break,
            }
        }
        channels.loads.end();
        let all = others.iter().chain([&local]).all(|slice| slices.contains_key(slice));
        let vcpus = |slice| u32::try_from(placement.vcpus_on(slice).len()).unwrap_or(u32::MAX);
        let slices = slices.into_iter().map(|(slice, load)| (slice, (load, vcpus(slice))));
        let (at, epoch, slices) = (Instant::now(), placement.epoch(), slices.collect());
        Some(all.then_some(Counted { at, epoch, slices }))
    }
}

fn between(from: &Counted, to: &Counted) -> Option<Load> {
    if from.epoch != to.epoch {
        return None;
    }
    let length = to.at.duration_since(from.at);
    let add = |load: Load, (slice, (now, vcpus)): (&SliceId, &(SliceLoad, u32))| {
        let Some((before, _)) = from.slices.get(slice) else { return load };
        let since =
            |of: fn(&SliceLoad) -> u64| Duration::from_micros(of(now).saturating_sub(of(before)));
        let (run, delayed) = (since(|load| load.run_us), since(|load| load.delayed_us));
        // Devices wait for pages as well, many at once; vCPUs wait no longer than they do nothing else.
        let left = length.saturating_mul(*vcpus).saturating_sub(run + delayed);
        let waited = since(|load| load.waited_us).min(left);
        Load {
            length,
            run: load.run + run,
            delayed: load.delayed + delayed,
            waited: load.waited + waited,
        }
    };
    let none = Load { length, ..Load::default() };
    Some(to.slices.iter().fold(none, add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_has_what_is_new_and_none_is_made_over_a_move() {
        let start = Instant::now();
        let load =
            |run_us| (SliceLoad { run_us, delayed_us: 2 * run_us, waited_us: 3 * run_us }, 1);
        let counted = |seconds, epoch, runs: &[u64]| Counted {
            at: start + Duration::from_secs(seconds),
            epoch: Epoch(epoch),
            slices: (0u16..).map(SliceId).zip(runs.iter().map(|run| load(*run))).collect(),
        };
        let first = counted(0, 1, &[10, 20]);
        // The third slice has come meanwhile, and the second one counts anew.
        let second = counted(2, 1, &[17, 5, 900]);
        let micros = Duration::from_micros;
        assert_eq!(
            between(&first, &second),
            Some(Load {
                length: Duration::from_secs(2),
                run: micros(7),
                delayed: micros(14),
                waited: micros(21)
            })
        );
        assert_eq!(between(&first, &counted(2, 2, &[17, 5])), None);
        // Devices have waited too: of two seconds the one vCPU has done something in 1.5.
        let busy = between(&first, &counted(2, 1, &[500_010])).unwrap();
        assert_eq!(busy.waited, micros(500_000));
    }
}
