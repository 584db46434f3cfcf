//! The page. Pure. What each name means is in docs/metrics.md.

use super::{Look, Said, Seen};
use crate::order::bytes;
use ::metrics::{Label, Page};
use agent::decide::{Phase, SliceName};
use control::v1::{DsmReport, vm};
use prost_types::Duration as ProtoDuration;
use scheduler::Resources;
use std::collections::BTreeSet;
use std::time::Duration;

type Row = (Vec<Label>, f64);

/// A number as Prometheus has them: from 2^53 on some are rounded.
#[expect(clippy::cast_precision_loss, reason = "the format has no other numbers")]
fn number(count: u64) -> f64 {
    count as f64
}

fn seconds(time: Option<&ProtoDuration>) -> Duration {
    time.and_then(|time| Duration::try_from(*time).ok()).unwrap_or_default()
}

fn vm_of(name: SliceName) -> Label {
    ("vm", name.vm.to_string())
}

/// A slice, by the name that its agent knows it by.
fn slice_of(name: SliceName) -> Vec<Label> {
    vec![vm_of(name), ("slice", name.number.to_string())]
}

fn with(mut labels: Vec<Label>, name: &'static str, value: &str) -> Vec<Label> {
    labels.push((name, value.to_owned()));
    labels
}

pub(super) fn page(look: &Look) -> Page {
    let mut page = Page::default();
    page.build(env!("CARGO_PKG_VERSION"));
    host(look, &mut page);
    slices(look, &mut page);
    vms(look, &mut page);
    memory(look, &mut page);
    messages(look, &mut page);
    page
}

fn host(look: &Look, page: &mut Page) {
    let Look { fixed, journal, now, .. } = look;
    let capacity = fixed.inventory.capacity();
    let free = journal.free(capacity, *now, |_| true);
    let both = |all: fn(Resources) -> f64| {
        let row = |state: &str, of| (vec![("state", state.to_owned())], all(of));
        [row("capacity", capacity), row("free", free)]
    };
    let cores = both(|it| number(it.cores.into()));
    page.gauge("host_cores", "Cores that slices may have, and of these the free ones", cores);
    let memory = both(|it| number(bytes(it)));
    let help = "Memory that slices may have, and of this what is free";
    page.gauge("host_memory_bytes", help, memory);
    let abilities = fixed.inventory.abilities.iter().map(|it| {
        let value = if it.why_not.is_none() { 1.0 } else { 0.0 };
        (vec![("ability", it.name.to_owned())], value)
    });
    page.gauge("host_ability", "Whether the host can do what slices may need", abilities);
    let one = |value: u64| [(Vec::new(), number(value))];
    page.gauge("agent_term", "The highest term of an orchestrator", one(journal.term.0));
    let held = journal.reserved.values().filter(|it| it.until > *now).count();
    let held = u64::try_from(held).unwrap_or(u64::MAX);
    page.gauge("agent_reservations", "Reservations that have not expired", one(held));
}

fn slices(look: &Look, page: &mut Page) {
    let rows = |of: fn(&Seen) -> f64| look.seen.iter().map(move |it| (slice_of(it.name), of(it)));
    let states = look.seen.iter().map(|it| {
        let state = match (&it.slice.phase, it.slice.stop) {
            (Phase::Starting, _) => "starting",
            (Phase::Running(_), None) => "running",
            (Phase::Running(_), Some(_)) => "stopping",
            (Phase::Ended(_), _) => "ended",
        };
        (with(slice_of(it.name), "state", state), 1.0)
    });
    page.gauge("slice_state", "1 for the state in which a slice is", states);
    let up = rows(|it| if it.said.is_some() { 1.0 } else { 0.0 });
    page.gauge("slice_up", "Whether a slice has answered on its control socket", up);
    let lives = rows(|it| number(it.slice.generation.0));
    page.gauge("slice_life", "The life of its VM that a slice is of", lives);
    let cores = rows(|it| number(it.slice.order.resources.cores.into()));
    page.gauge("slice_cores", "Cores that a slice has of the host", cores);
    let memory = rows(|it| number(bytes(it.slice.order.resources)));
    page.gauge("slice_memory_bytes", "Memory that a slice has of the host", memory);
}

/// Slices that have answered.
fn said(look: &Look) -> impl Iterator<Item = (SliceName, &Said)> {
    look.seen.iter().filter_map(|it| Some((it.name, it.said.as_ref()?)))
}

fn vms(look: &Look, page: &mut Page) {
    // Each host tells of its own; of a whole VM the one whose slice coordinates it.
    let coordinating = || said(look).filter(|(_, it)| it.vm.local_slice == it.vm.coordinator);
    let infos = coordinating().map(|(name, it)| {
        let state = match it.vm.state() {
            vm::State::Running => "running",
            vm::State::Paused => "paused",
            vm::State::Unspecified => "unknown",
        };
        (with(vec![vm_of(name)], "state", state), 1.0)
    });
    page.gauge("vm_info", "VMs that a slice of this host coordinates", infos);
    let slices = coordinating().map(|(name, it)| {
        let slices = u64::try_from(it.vm.slices.len()).unwrap_or(u64::MAX);
        (vec![vm_of(name)], number(slices))
    });
    page.gauge("vm_slices", "Slices of VMs that a slice of this host coordinates", slices);
    let host = look.fixed.name.trim_start_matches("hosts/");
    let places = said(look).flat_map(|(name, it)| {
        let own = it.vm.slices.iter().filter(|slice| slice.number == it.vm.local_slice);
        let vcpus: BTreeSet<u32> = own.flat_map(|slice| &slice.vcpus).copied().collect();
        vcpus.into_iter().map(move |vcpu| {
            let labels = with(vec![vm_of(name)], "vcpu", &vcpu.to_string());
            (with(labels, "host", host), 1.0)
        })
    });
    page.gauge("vm_vcpu_location", "vCPUs that run on this host", places);
}

/// Slices with a memory engine.
fn reports(look: &Look) -> impl Iterator<Item = (SliceName, &DsmReport)> {
    said(look).filter_map(|(name, it)| Some((name, it.report.as_ref()?)))
}

/// Rows of all slices, one for each value of a label.
fn each<const N: usize>(
    look: &Look,
    label: &'static str,
    of: impl Fn(&DsmReport) -> [(&'static str, f64); N] + Copy,
) -> impl Iterator<Item = Row> {
    let rows = move |(name, report)| {
        of(report).map(|(value, count)| (with(slice_of(name), label, value), count))
    };
    reports(look).flat_map(rows)
}

fn memory(look: &Look, page: &mut Page) {
    let faults = each(look, "kind", |it| {
        let faults = it.faults.unwrap_or_default();
        [
            ("read", number(faults.read)),
            ("write", number(faults.write)),
            ("upgrade", number(faults.upgrade)),
            ("local", number(it.local_faults)),
        ]
    });
    page.counter("dsm_faults", "Faults on guest memory, by what was needed", faults);
    let pages =
        each(look, "direction", |it| [("in", number(it.pages_in)), ("out", number(it.pages_out))]);
    page.counter("dsm_transfers", "Pages that have travelled between slices", pages);
    let dropped = reports(look).map(|(name, it)| (slice_of(name), number(it.invalidations)));
    page.counter("dsm_invalidations", "Copies dropped for a writer elsewhere", dropped);
    let waits = each(look, "cause", |it| {
        let (waited, held) = (seconds(it.waited.as_ref()), seconds(it.held.as_ref()));
        [
            ("held", held.min(waited).as_secs_f64()),
            ("fetch", waited.saturating_sub(held).as_secs_f64()),
        ]
    });
    let help = "Time that was waited for pages: while holders kept them, and to fetch them";
    page.counter("vm_stall_seconds", help, waits);
}

fn counted(report: &DsmReport, path: &str) -> f64 {
    number(report.counters.get(path).copied().unwrap_or(0))
}

fn messages(look: &Look, page: &mut Page) {
    let bypass = each(look, "direction", |it| {
        let count = |path| counted(it, path);
        [("in", count("delegated.bytes_received")), ("out", count("delegated.bytes_sent"))]
    });
    let help = "Bytes of delegated devices between slices, beside guest memory";
    page.counter("dsm_bypass_bytes", help, bypass);
    let dropped = each(look, "reason", |it| {
        [
            ("epoch", counted(it, "memory.epoch_refused")),
            ("device", counted(it, "delegated.dropped")),
        ]
    });
    page.counter("transport_dropped", "Messages between slices that were refused", dropped);
    let messages = reports(look);
    let messages = messages.map(|(name, it)| (slice_of(name), counted(it, "memory.messages_out")));
    page.counter("dsm_messages", "Messages that memory engines have sent", messages);
}

#[cfg(test)]
mod tests;
