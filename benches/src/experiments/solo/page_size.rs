//! What huge pages are worth on this machine: the same work on memory that has them and on memory that
//! has none, both without DSM.

use super::{CORES, Setting, timed, workload};
use crate::microvm::{Alone, MicroVm};
use crate::paging::GuestPages;
use crate::samples::median;
use anyhow::Result;
use dsm::Memory;
use microguest::Job;
use microguest::layout::SHARED;
use outcome::Row;

/// 256 MiB: more than a processor remembers of small pages.
const PAGES: u64 = 1 << 16;

/// Runs all workloads on both kinds of memory in turns.
pub(super) fn run(setting: Setting<'_>, rows: &mut Vec<Row>) -> Result<()> {
    let turns = if setting.quick { 5 } else { 21 };
    let vm = |memory| {
        let guest_pages = GuestPages::Large;
        let alone = Alone { pages: PAGES, memory, collapse: false, guest_pages };
        let vm = MicroVm::without_dsm(setting.image, &alone, &CORES[..1])?;
        vm.run(0, Job { pages: PAGES, ..workload::fill() })?;
        anyhow::Ok(vm)
    };
    let (huge, small) = (vm(Memory::Anonymous)?, vm(Memory::Memfd)?);
    for workload in workload::all() {
        if workload::is_chase(&workload.job) {
            let chain = workload::chain(PAGES);
            huge.write(SHARED, &chain)?;
            small.write(SHARED, &chain)?;
        }
        let job = Job { pages: PAGES, ..workload.job };
        let (mut one, mut other) = (job, job);
        let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..turns {
            let fast = timed(&mut one, |job| Ok(huge.run(0, job)?.job))?;
            let slow = timed(&mut other, |job| Ok(small.run(0, job)?.job))?;
            with.push(fast);
            without.push(slow);
            ratios.push(slow / fast);
        }
        let figures =
            [("huge, ns", median(with)), ("4 KiB, ns", median(without)), ("ratio", median(ratios))];
        let figures = figures.map(|(column, value)| (column.to_owned(), value)).into();
        let name = format!("worth of huge pages, 256 MiB, no DSM: {}", workload.name);
        rows.push(Row { name, figures });
    }
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let count = |vm: &MicroVm| anyhow::Ok((vm.huge_bytes()? / super::HUGE) as f64);
    let figures = [("huge", count(&huge)?), ("4 KiB", count(&small)?)];
    let figures = figures.map(|(column, value)| (column.to_owned(), value)).into();
    rows.push(Row { name: "worth of huge pages: huge pages in use".into(), figures });
    Ok(())
}
