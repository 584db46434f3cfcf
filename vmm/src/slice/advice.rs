//! Asks the advisor where groups of vCPUs would be better placed, from what is counted while somebody waits.
//!
//! ```text
//!   control socket --seconds--> [this, coordinator] --AskReport--> all slices, at both ends of each window
//!        words of proposals <--advise-- windows <------Report--------|
//! ```
//! It never acts (decision 50).

use super::channels::Channels;
use super::refusing::{Explains, invalid};
use super::report::SliceReport;
use crate::control::{Progress, Reason};
use dsm::{PagesFrom, Report};
use migrate::plan::{Capacity, FaultCount, Refusal, Terms, Window, advise};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::{Control, Epoch, SliceId};

/// Windows that are counted: enough to tell rates from noise.
const WINDOWS: u32 = 6;
/// Seconds that may be counted.
const SECONDS_MAX: u64 = 600;
/// For the counters of all slices.
const REPORT_LIMIT: Duration = Duration::from_secs(5);

/// How long a move interrupts a vCPU: twice what `./x bench migrate` has measured over TCP.
const INTERRUPTION: Duration = Duration::from_millis(3);
/// A link of 10 Gbit/s.
const BYTES_PER_SECOND: u64 = 1_250_000_000;
/// The VM goes on like this for so long, and a move must pay for itself so many times within it.
const HORIZON: Duration = Duration::from_secs(600);
const PAYBACK: f64 = 4.0;

/// Why there is no advice.
#[derive(Debug, Error)]
pub(super) enum AdviceError {
    /// Too short, or too long.
    #[error("{0} s are not between {WINDOWS} and {SECONDS_MAX}")]
    Seconds(u64),
    /// Nobody answers a slice that does not coordinate, and a VM ends by one that asks.
    #[error("another slice coordinates the VM now")]
    Elsewhere(SliceId),
    /// A VM of one slice.
    #[error("the VM is on one slice")]
    Alone,
    /// A slice does not tell what it has counted.
    #[error("{0} has not told its counters within {REPORT_LIMIT:?}")]
    Silent(SliceId),
    /// What a slice has told is no report.
    #[error("read the report of {0}")]
    Unreadable(SliceId, #[source] serde_json::Error),
    /// Too many slices.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Explains for AdviceError {
    fn reason(&self) -> Reason {
        match self {
            Self::Seconds(_) => invalid("seconds"),
            Self::Elsewhere(slice) => Reason::NotLeader { leader: Some(slice.0) },
            Self::Alone => Reason::NothingToDo,
            Self::Silent(_) => Reason::Silent,
            Self::Unreadable(..) => Reason::Failed,
            Self::Refused(refusal) => refusal.reason(),
        }
    }
}

/// What all slices had counted at one moment.
struct Counted {
    at: Instant,
    epoch: Epoch,
    slices: BTreeMap<SliceId, Report>,
}

/// Counts for so many seconds; a line for each proposal, the most worth first.
pub(super) fn advice(
    channels: &Channels,
    capacity: &Capacity,
    seconds: u64,
    tell: &mut dyn FnMut(Progress),
) -> Result<Vec<String>, AdviceError> {
    if !(u64::from(WINDOWS)..=SECONDS_MAX).contains(&seconds) {
        return Err(AdviceError::Seconds(seconds));
    }
    let mut counted = vec![count(channels)?];
    for window in 0..WINDOWS {
        let done = usize::try_from(window).unwrap_or(usize::MAX);
        let next = "counting pages between slices".to_owned();
        tell(Progress { done, total: WINDOWS as usize, next });
        thread::sleep(Duration::from_secs(seconds) / WINDOWS);
        counted.push(count(channels)?);
    }
    let pairs = counted.windows(2);
    let windows: Vec<_> = pairs.filter_map(|pair| between(&pair[0], &pair[1])).collect();
    let terms = Terms {
        fault: fault(&counted[0], &counted[counted.len() - 1]),
        interruption: INTERRUPTION,
        bytes_per_second: BYTES_PER_SECOND,
        hot_bytes: BTreeMap::new(),
        horizon: HORIZON,
        payback: PAYBACK,
    };
    let placement = channels.placement.load();
    let proposals = advise(&placement, capacity, &windows, &terms)?;
    Ok(proposals.iter().map(ToString::to_string).collect())
}

/// Asks all slices, this one among them.
fn count(channels: &Channels) -> Result<Counted, AdviceError> {
    let (local, epoch) = (channels.local(), channels.placement.load().epoch());
    let engine = channels.handle.get().ok_or(AdviceError::Alone)?;
    if !channels.may_ask() {
        return Err(AdviceError::Elsewhere(channels.coordinator()));
    }
    let reports = channels.reports.begin();
    let others = channels.others();
    others.iter().for_each(|slice| channels.send(*slice, &Control::AskReport));
    let own = engine.report(REPORT_LIMIT).ok_or(AdviceError::Silent(local))?;
    let mut slices = BTreeMap::from([(local, own)]);
    let deadline = Instant::now() + REPORT_LIMIT;
    while let Some(missing) = others.iter().find(|slice| !slices.contains_key(slice)) {
        let Ok((from, bytes)) = reports.recv_deadline(deadline) else {
            return Err(AdviceError::Silent(*missing));
        };
        let report: SliceReport =
            serde_json::from_slice(&bytes).map_err(|error| AdviceError::Unreadable(from, error))?;
        slices.insert(from, report.memory);
    }
    channels.reports.end();
    Ok(Counted { at: Instant::now(), epoch, slices })
}

/// What was counted between two moments; nothing if parts have moved meanwhile.
fn between(from: &Counted, to: &Counted) -> Option<Window> {
    let count = |(asker, report): (&SliceId, &Report)| {
        let before = from.slices.get(asker).map_or(&[][..], |report| &report.pages_from);
        let new = |PagesFrom { slice, pages }: &PagesFrom| {
            let before = before.iter().find(|before| before.slice == *slice);
            FaultCount {
                asker: *asker,
                asked: SliceId(*slice),
                vcpu: None,
                pages: pages.saturating_sub(before.map_or(0, |before| before.pages)),
            }
        };
        report.pages_from.iter().map(new).collect::<Vec<_>>()
    };
    (from.epoch == to.epoch).then(|| Window {
        epoch: to.epoch,
        length: to.at.duration_since(from.at),
        faults: to.slices.iter().flat_map(count).collect(),
    })
}

/// How long a vCPU has waited for a page, on average.
fn fault(from: &Counted, to: &Counted) -> Duration {
    let sum = |of: &Counted, what: fn(&Report) -> u64| of.slices.values().map(what).sum::<u64>();
    let grown = |what| sum(to, what).saturating_sub(sum(from, what));
    let faults = grown(|report| {
        let faults = report.faults;
        faults.read + faults.write + faults.upgrade
    });
    Duration::from_micros(grown(|report| report.waited_us).checked_div(faults).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsm::FaultCounts;

    fn counted(at: Instant, epoch: u32, pages: u64) -> Counted {
        let faults = FaultCounts { read: pages, write: 0, upgrade: 0 };
        let report = |from| Report {
            pages_from: vec![PagesFrom { slice: from, pages }],
            waited_us: pages * 70,
            faults,
            ..Report::default()
        };
        let slices = BTreeMap::from([(SliceId(0), report(1)), (SliceId(1), report(0))]);
        Counted { at, epoch: Epoch(epoch), slices }
    }

    /// Reports cross slices as JSON.
    #[test]
    fn report_is_read_back_with_the_pages_of_each_slice() {
        let pages_from = vec![PagesFrom { slice: 3, pages: 5 }];
        let memory = Report { pages_from, ..Report::default() };
        let report = SliceReport { slice: 1, memory, ..SliceReport::default() };
        let bytes = serde_json::to_vec(&report).unwrap();
        assert_eq!(serde_json::from_slice::<SliceReport>(&bytes).unwrap(), report);
    }

    #[test]
    fn window_has_what_is_new_and_none_is_made_over_a_move() {
        let start = Instant::now();
        let (first, second) =
            (counted(start, 1, 10), counted(start + Duration::from_secs(2), 1, 35));
        let window = between(&first, &second).unwrap();
        assert_eq!((window.epoch, window.length), (Epoch(1), Duration::from_secs(2)));
        let count = |asker, asked| FaultCount {
            asker: SliceId(asker),
            asked: SliceId(asked),
            vcpu: None,
            pages: 25,
        };
        assert_eq!(window.faults, [count(0, 1), count(1, 0)]);
        assert_eq!(fault(&first, &second), Duration::from_micros(70));
        assert_eq!(fault(&first, &first), Duration::ZERO);
        assert_eq!(between(&second, &counted(start, 2, 40)), None);
    }
}
