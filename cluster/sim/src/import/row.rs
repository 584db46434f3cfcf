//! One VM of a trace, and what makes no sense in one.

use super::{ImportError, ORIGIN, ROWS_MAX, Trace};
use crate::workload::Request;
use rustc_hash::FxHashMap;
use scheduler::{Class, Resources, Spec};
use std::sync::Arc;
use thiserror::Error;

/// The longest time of a trace in seconds, to both sides: 100 years.
pub const SECONDS_MAX: f64 = 3.2e9;
/// The most memory of a VM: 256 TiB.
pub const MEMORY_MIB_MAX: f64 = 268_435_456.0;
const CORES_MAX: f64 = 65_536.0;

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RowError {
    /// The line.
    #[error("it is longer than {} bytes", super::LINE_BYTES_MAX)]
    Long,
    /// The line.
    #[error("it is not UTF-8")]
    Text,
    /// How many there are.
    #[error("{found} columns, {wanted} are expected")]
    Columns {
        /// In the line.
        found: usize,
        /// In the format.
        wanted: usize,
    },
    /// A column that is no number.
    #[error("{column}: {text:?} is no number")]
    Number {
        /// Which.
        column: &'static str,
        /// What is there, or its beginning.
        text: String,
    },
    /// A number that cannot be.
    #[error("{column} is {value}, from {least} to {most} is possible")]
    Range {
        /// Which.
        column: &'static str,
        /// What is there.
        value: f64,
        /// The least.
        least: f64,
        /// The most.
        most: f64,
    },
    /// It ends before it begins.
    #[error("it ends at {ends} and begins at {begins}")]
    Order {
        /// When it begins.
        begins: f64,
        /// When it ends.
        ends: f64,
    },
    /// No object of the form.
    #[error("{0}")]
    Json(String),
    /// More than that cannot be kept.
    #[error("it is one too many: {ROWS_MAX} are possible")]
    TooMany,
}

/// A VM as a trace has it, in seconds from the beginning of the trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) begins: f64,
    pub(super) ends: f64,
    pub(super) cores: f64,
    pub(super) memory_mib: f64,
    pub(super) class: Class,
    pub(super) slices_max: Option<u16>,
}

/// A trace that is being read.
#[derive(Debug, Default)]
pub(super) struct Builder {
    requests: Vec<Request>,
    specs: FxHashMap<(Resources, Class, u16), Arc<Spec>>,
    pub(super) end: f64,
    pub(super) outlive: u64,
    pub(super) skipped: u64,
}

pub(super) fn within(
    column: &'static str,
    value: f64,
    least: f64,
    most: f64,
) -> Result<f64, RowError> {
    // What is no number is in no range.
    let is_within = (least..=most).contains(&value);
    is_within.then_some(value).ok_or(RowError::Range { column, value, least, most })
}

impl Builder {
    pub(super) fn add(&mut self, row: Row) -> Result<(), RowError> {
        if self.requests.len() >= ROWS_MAX {
            return Err(RowError::TooMany);
        }
        let begins = within("begin", row.begins, -SECONDS_MAX, SECONDS_MAX)?;
        let ends = within("end", row.ends, -SECONDS_MAX, SECONDS_MAX)?;
        if ends < begins {
            return Err(RowError::Order { begins, ends });
        }
        let cores = whole(within("cores", row.cores.round(), 1.0, CORES_MAX)?);
        let units = (within("memory", row.memory_mib, 1.0, MEMORY_MIB_MAX)? / 2.0).ceil();
        let needs = Resources::new(cores, whole(units));
        let slices_max = row.slices_max.unwrap_or_else(|| row.class.slices_max());
        let spec = self
            .specs
            .entry((needs, row.class, slices_max))
            .or_insert_with(|| Arc::new(Spec { slices_max, ..Spec::new(needs, row.class) }));
        let (at, end) = (time(begins), time(ends));
        self.end = self.end.max(ends);
        self.requests.push(Request { at, life: (end - at).max(1), spec: Arc::clone(spec) });
        Ok(())
    }

    /// By time; of those that come together in the order of the file.
    pub(super) fn finish(mut self) -> Result<Trace, ImportError> {
        if self.requests.is_empty() {
            return Err(ImportError::Empty);
        }
        self.requests.sort_by_key(|it| it.at);
        let end = time(self.end);
        let Self { requests, outlive, skipped, .. } = self;
        Ok(Trace { requests, end, outlive, skipped })
    }
}

/// Of a number within a range that a `u32` has.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within a range")]
fn whole(it: f64) -> u32 {
    it as u32
}

/// A time of the simulation. What is before it, is at its beginning.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn time(seconds: f64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "it is exact")]
    let ms = ORIGIN as f64 + seconds * 1000.0;
    ms.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(begins: f64, ends: f64, cores: f64, memory_mib: f64) -> Row {
        let class = Class::Default;
        Row { begins, ends, cores, memory_mib, class, slices_max: None }
    }

    #[test]
    fn row_becomes_a_request_at_its_time() {
        let mut builder = Builder::default();
        builder.add(row(10.5, 20.0, 4.0, 8191.0)).unwrap();
        builder.add(row(-60.0, 20.0, 4.0, 8191.0)).unwrap();
        builder.add(row(-1e9, -1e9, 1.0, 1.0)).unwrap();

        let trace = builder.finish().unwrap();

        assert_eq!(trace.end, ORIGIN + 20_000);
        let [old, before, within] = &trace.requests[..] else { panic!("{trace:?}") };
        assert_eq!((old.at, old.life), (0, 1));
        assert_eq!((before.at, before.life), (ORIGIN - 60_000, 80_000));
        assert_eq!((within.at, within.life), (ORIGIN + 10_500, 9_500));
        assert_eq!(within.spec.needs, Resources::new(4, 4096));
        assert!(Arc::ptr_eq(&within.spec, &before.spec));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut builder = Builder::default();
        for bad in [
            row(f64::NAN, 1.0, 1.0, 1.0),
            row(0.0, f64::INFINITY, 1.0, 1.0),
            row(5.0, 4.0, 1.0, 1.0),
            row(0.0, 1.0, 0.4, 1.0),
            row(0.0, 1.0, 1e9, 1.0),
            row(0.0, 1.0, 1.0, 0.0),
            row(0.0, 1.0, 1.0, 1e12),
        ] {
            assert!(builder.add(bad).is_err(), "{bad:?}");
        }
        assert!(matches!(builder.finish(), Err(ImportError::Empty)));
    }
}
