//! A vCPU that misses single pages, alone and while another vCPU of its slice reads memory of the same home in order: how long a
//! page that is needed now waits for pages that will be needed soon.
//!
//! ```text
//!   slice 0, first core:  vCPU 0 reads in order, the engine
//!   second core:          vCPU 1 of slice 0 misses page after page, slice 1's engine is the home of all
//! ```

use super::{CORES, OWN, Plan, bandwidth, cycles_per_ns};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::experiments::Setting;
use crate::paging::GuestPages;
use crate::samples::{Samples, median};
use crate::worker_pool::{Done, Span};
use anyhow::Result;
use dsm::Memory;
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::Row;

/// Pages that are missed one by one beside a stream, at most, and without one.
const SINGLE: u64 = 4096;
const ALONE: u64 = 400;

/// What was found, over all runs.
#[derive(Default)]
pub(crate) struct Beside {
    /// Nanoseconds of each miss without a stream.
    pub(super) alone: Samples,
    /// The same while another vCPU reads in order.
    pub(crate) beside: Samples,
    /// Megabytes a second of that one, a run each.
    pub(super) stream: Vec<f64>,
}

impl Beside {
    /// A run without a stream, and one with a stream of so many pages.
    ///
    /// # Errors
    /// A slice failed.
    pub(super) fn measure(
        &mut self,
        setting: Setting<'_>,
        carrier: Carrier,
        stream: u64,
    ) -> Result<()> {
        let plan = setting.two_slices(carrier, &[OWN, OWN]);
        let (alone, _) = misses(&plan, 0)?;
        self.alone.extend(&Samples::from_cycles(&alone.samples, cycles_per_ns()));
        self.measure_beside(&plan, stream)
    }

    /// A run with a stream of so many pages.
    ///
    /// # Errors
    /// A slice failed.
    pub(crate) fn measure_beside(&mut self, plan: &Plan<'_>, stream: u64) -> Result<()> {
        let (single, streamed) = misses(plan, stream)?;
        let within = within(&single, streamed.span);
        self.beside.extend(&Samples::from_cycles(&within, cycles_per_ns()));
        self.stream.push(bandwidth(stream, &streamed));
        Ok(())
    }

    /// The rows of a carrier.
    pub(super) fn rows(&self, carrier: Carrier) -> [Row; 2] {
        let times = |what: &str, samples: &Samples| {
            let figures = [50, 90, 99]
                .map(|percent| (format!("p{percent} us"), samples.percentile(percent) / 1000.0));
            Row {
                name: format!("{} single misses, {what}", carrier.name()),
                figures: figures.into(),
            }
        };
        let mut beside = times("beside a stream", &self.beside);
        beside.figures.push(("stream MB/s".to_owned(), median(self.stream.clone())));
        [times("alone", &self.alone), beside]
    }
}

/// Misses pages one by one, with a stream beside it unless that has no pages. What the misses left, and the stream.
fn misses(plan: &Plan<'_>, stream: u64) -> Result<(Done, Done)> {
    let homes = [OWN, stream + SINGLE];
    let plan = Plan {
        memory: Memory::MemfdPrealloc,
        guest_pages: GuestPages::Large,
        places: &[&CORES, &[CORES[1]]],
        homes: &homes,
        ..plan.clone()
    };
    let mut cluster = Cluster::new(&plan)?;
    let memory = SHARED + OWN * 4096;
    let all = Job { kind: Kind::Scan as u64, memory, rounds: 1, stride: 1, ..Job::default() };
    cluster.run(1, 0, Job { write: 1, pages: stream + SINGLE, ..all })?;
    let single = Job {
        kind: Kind::Read as u64,
        memory: memory + stream * 4096,
        pages: SINGLE,
        rounds: if stream > 0 { SINGLE } else { ALONE },
        ..Job::default()
    };
    cluster.start(0, 0, Job { pages: stream, ..all })?;
    cluster.start(0, 1, single)?;
    let streamed = cluster.wait(0, 0)?;
    Ok((cluster.wait(0, 1)?, streamed))
}

/// The samples whose end fell into a time. They follow each other without a gap.
fn within(done: &Done, time: Span) -> Vec<u32> {
    let mut at = done.span.began;
    let ends_within = |cycles: &&u32| {
        at += u64::from(**cycles);
        (time.began..time.ended).contains(&at)
    };
    done.samples.iter().filter(ends_within).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_count_by_when_they_ended() {
        let span = |began, ended| Span { began, ended, waited: 0.0 };
        let done =
            Done { job: Job::default(), samples: vec![10, 20, 30, 40], span: span(100, 200) };
        assert_eq!(within(&done, span(120, 165)), [20, 30], "ends at 110, 130, 160 and 200");
        assert_eq!(within(&done, span(300, 400)), [0; 0]);
    }
}
