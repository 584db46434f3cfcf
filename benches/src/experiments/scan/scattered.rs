//! Scattered reading with and without fetching ahead, at the same time and of the same home: two slices take turns in reading a few
//! milliseconds each, so that whatever this machine's other guests take meets both.
//!
//! ```text
//!   first core:   slice 1, which fetches ahead, and slice 2, which does not: a part each in turns
//!   second core:  slice 0, the home of both halves
//! ```

use super::{CORES, OWN, Setting, bandwidth, both};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::plan::Plan;
use crate::samples::{Samples, median, ratios};
use anyhow::{Result, ensure};
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::Row;

/// Pages of each half, and the parts that they are read in.
pub(super) const PAGES: u64 = 4096;
pub(super) const PARTS: u64 = 32;
/// The readers.
const AHEAD: u16 = 1;
const PAGE_BY_PAGE: u16 = 2;

/// Megabytes a second, part by part.
#[derive(Default)]
pub(super) struct Scattered {
    ahead: Vec<f64>,
    page_by_page: Vec<f64>,
}

impl Scattered {
    /// Reads both halves once, each slice its own.
    ///
    /// # Errors
    /// A slice failed, or pages came that nobody touched.
    pub(super) fn measure(&mut self, setting: Setting<'_>, carrier: Carrier) -> Result<()> {
        let plan = Plan {
            places: &[&[CORES[1]], &[CORES[0]], &[CORES[0]]],
            engines: &[CORES[1], CORES[0], CORES[0]],
            page_by_page: &[PAGE_BY_PAGE],
            homes: &[2 * PAGES, OWN, OWN],
            ..setting.two_slices(carrier, &[OWN, OWN])
        };
        let mut cluster = Cluster::new(&plan)?;
        let job = Job { kind: Kind::Scan as u64, pages: PAGES, rounds: 1, ..Job::default() };
        let written = Job { memory: SHARED, pages: 2 * PAGES, write: 1, stride: 1, ..job };
        cluster.run(0, 0, written)?;
        for part in 0..PARTS {
            for ahead in both(part) {
                let (slice, memory, found) = if ahead {
                    (AHEAD, SHARED, &mut self.ahead)
                } else {
                    (PAGE_BY_PAGE, SHARED + PAGES * 4096, &mut self.page_by_page)
                };
                let one = Job { memory, own: part, all: PARTS, ..job };
                found.push(bandwidth(PAGES / PARTS, &cluster.run(usize::from(slice), 0, one)?));
            }
        }
        for slice in [AHEAD, PAGE_BY_PAGE] {
            let came = cluster.report(usize::from(slice))?.pages_in;
            ensure!(came == PAGES, "{came} pages came to slice {slice}, not {PAGES}");
        }
        Ok(())
    }

    /// The bandwidth with fetching ahead by that without, of neighbours in time: the median.
    pub(super) fn ratio(&self) -> f64 {
        median(ratios(&self.ahead, &self.page_by_page))
    }

    /// The rows of a carrier. "In all" is what the time of all parts together comes to, disturbed ones too.
    pub(super) fn rows(&self, carrier: Carrier) -> [Row; 3] {
        let row = |what: &str, figures: Vec<(String, f64)>| Row {
            name: format!("{} scattered{what}", carrier.name()),
            figures,
        };
        let bandwidths = |parts: &[f64]| {
            vec![
                ("MB/s".to_owned(), median(parts.to_vec())),
                ("in all MB/s".to_owned(), in_all(parts)),
            ]
        };
        let found = Samples::new(ratios(&self.ahead, &self.page_by_page));
        let quarters =
            [25, 50, 75].map(|percent| (format!("p{percent}"), found.percentile(percent)));
        [
            row("", bandwidths(&self.ahead)),
            row(", nothing fetched ahead", bandwidths(&self.page_by_page)),
            row(", fetching ahead / not, part by part", quarters.into()),
        ]
    }
}

/// The bandwidth of parts of one size after each other: their harmonic mean.
fn in_all(parts: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let count = parts.len() as f64;
    count / parts.iter().map(|part| part.recip()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_parts_weigh_by_their_time() {
        assert!((in_all(&[10.0, 30.0]) - 15.0).abs() < 1e-9);
    }

    #[test]
    fn neighbours_are_compared() {
        let found = Scattered { ahead: vec![20.0, 5.0, 9.0], page_by_page: vec![20.0, 10.0, 10.0] };
        assert!((found.ratio() - 0.9).abs() < 1e-9);
        let [ahead, _, ratio] = found.rows(Carrier::Shm);
        assert_eq!((ahead.name.as_str(), ahead.figures[0].1), ("shm scattered", 9.0));
        assert!((ratio.figures[1].1 - 0.9).abs() < 1e-9);
    }
}
