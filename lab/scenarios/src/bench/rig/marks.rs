//! Counters of slices at the moments that a guest's program names.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Counters;
use crate::vm::guest_console::GuestReport;
use crate::vm::scenario::Scenario;

/// Counters when the guest had said that something begins, or has ended.
pub(crate) type Marks = BTreeMap<String, Counters>;

/// Reads the counters if the guest has said new marks, once for all of them. Gives one, and how long that took.
pub(crate) fn take_mark(
    scenario: &Scenario<'_>,
    marks: &mut Marks,
    guest: &GuestReport,
    is_mark: fn(&str) -> bool,
) -> Result<Option<(String, Duration)>> {
    let is_new = |name: &&String| is_mark(name) && !marks.contains_key(*name);
    let new: Vec<_> = guest.tests.keys().filter(is_new).cloned().collect();
    let Some(first) = new.first().cloned() else { return Ok(None) };
    let start = Instant::now();
    let counters = Counters::of(scenario)?;
    marks.extend(new.into_iter().map(|name| (name, counters)));
    Ok(Some((first, start.elapsed())))
}
