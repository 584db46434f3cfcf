//! What an image's disk could not do, told to the operator: the guest only hears that it failed.

use super::{ImageOptions, OnFull};
use crate::back_end::DiskRequest;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most one line in so long a time.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    told: Option<Instant>,
    untold: u64,
}

/// Tells of failures at a bounded rate, and knows what follows.
#[derive(Debug)]
pub(super) struct Failures {
    path: PathBuf,
    on_full: OnFull,
    /// Nothing waits while the device is being reset.
    may_wait: AtomicBool,
    state: Mutex<State>,
}

impl Failures {
    pub(super) fn of(options: &ImageOptions) -> Self {
        let ImageOptions { path, on_full, .. } = options;
        let may_wait = AtomicBool::new(true);
        Self { path: path.clone(), on_full: *on_full, may_wait, state: Mutex::default() }
    }

    /// Whether requests may wait at all.
    pub(super) fn may_wait(&self, may: bool) {
        self.may_wait.store(may, Ordering::Release);
    }

    /// Whether a request that failed so is to be tried again later.
    pub(super) fn waits(&self, error: &io::Error) -> bool {
        let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        is_full && self.on_full == OnFull::Pause && self.may_wait.load(Ordering::Acquire)
    }

    /// A request waits.
    pub(super) fn tell_waiting(&self, what: What, error: &io::Error) {
        if let Some(line) = self.line(Instant::now(), what, error) {
            tracing::error!("{line}; the request waits until there is room");
        }
    }

    /// A request has failed.
    pub(super) fn tell(&self, what: What, error: &io::Error) {
        if let Some(line) = self.line(Instant::now(), what, error) {
            tracing::error!("{line}");
        }
    }

    /// The line for a failure, if there is to be one now.
    fn line(&self, now: Instant, what: What, error: &io::Error) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.is_some_and(|told| now.saturating_duration_since(told) < PAUSE) {
            state.untold += 1;
            return None;
        }
        state.told = Some(now);
        let more = match std::mem::take(&mut state.untold) {
            0 => String::new(),
            count => format!(" ({count} more failed since the last such line)"),
        };
        Some(format!("disk {}: cannot {what}: {error}{more}", self.path.display()))
    }
}

/// What a request asks for, without its data.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Read(u64, u32),
    Write(u64, usize),
    Flush,
    Discard(u64, u64),
    Zero(u64, u64),
}

impl What {
    pub(super) fn of(request: &DiskRequest) -> Self {
        match request {
            DiskRequest::Read { sector, bytes } => Self::Read(*sector, *bytes),
            DiskRequest::Write { sector, data } => Self::Write(*sector, data.len()),
            DiskRequest::Flush => Self::Flush,
            DiskRequest::Discard { sector, sectors } => Self::Discard(*sector, *sectors),
            DiskRequest::WriteZeroes { sector, sectors, .. } => Self::Zero(*sector, *sectors),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(sector, bytes) => write!(f, "read {bytes} bytes at sector {sector}"),
            Self::Write(sector, bytes) => write!(f, "write {bytes} bytes at sector {sector}"),
            Self::Flush => f.write_str("flush"),
            Self::Discard(at, count) => write!(f, "discard {count} sectors at sector {at}"),
            Self::Zero(at, count) => write!(f, "write zeros to {count} sectors at sector {at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ImageFormat;
    use super::*;

    #[test]
    fn failures_are_told_once_in_a_while_with_those_between() {
        let failures = Failures::of(&ImageOptions::new("/a/disk", ImageFormat::Raw));
        let what = What::of(&DiskRequest::Write { sector: 7, data: vec![0; 512] });
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let start = Instant::now();
        let line = |at| failures.line(start + at, what, &full);
        let first = line(Duration::ZERO).unwrap();
        assert!(first.starts_with("disk /a/disk: cannot write 512 bytes at sector 7: "), "{first}");
        assert!(first.ends_with("(os error 28)"), "{first}");
        assert_eq!(line(PAUSE / 2), None);
        assert_eq!(line(PAUSE / 2), None);
        assert!(line(PAUSE).unwrap().ends_with("(2 more failed since the last such line)"));
        assert!(line(2 * PAUSE).unwrap().ends_with("(os error 28)"));
    }
}
