//! What is a good end of a round of `soak chaos`: in time, with the right status, and with the right cause told.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::ExitStatus;

use super::net::Returned;
use super::plan::Harm;
use crate::soak::disks::WRITERS;

/// After the lease, a slice has so long to end.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(5);
/// What `tessera` exits with when a slice is lost.
const LOST: ExitStatus = ExitStatus::Code(5);

/// What it exits with when it cannot go on for another reason.
const FAILED: ExitStatus = ExitStatus::Code(6);

/// How a slice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Since the harm; for a victim that was frozen, since it was woken.
    pub(crate) after: Duration,
    pub(crate) exit: ExitStatus,
    /// The last line of its standard error.
    pub(crate) said: String,
}

/// Judges the end of a slice that was not killed. The other slice, `lost`, is the cause.
///
/// # Errors
/// A wrong status, a wrong cause, or an end that came late.
pub(crate) fn judge_end(ended: &Ended, lost: usize, limit: Duration) -> Result<()> {
    let Ended { after, exit, said } = ended;
    ensure!(*exit == LOST, "it ended with {exit}: {said}");
    let cause = format!("slice{lost} is lost");
    ensure!(said.contains(&cause), "it does not say that {cause}: {said}");
    ensure!(*after <= limit, "it took {after:.1?}, not {limit:.1?}");
    Ok(())
}

/// Judges the end of a slice that was frozen for longer than its lease, and woken.
///
/// # Errors
/// As [`judge_end`]; but it may also find its own lease over before it looks at the other slice.
pub(crate) fn judge_woken(ended: &Ended, lost: usize, limit: Duration) -> Result<()> {
    let stood_still = ended.said.contains("it stood still for its lease");
    if stood_still && ended.exit == FAILED && ended.after <= limit {
        return Ok(());
    }
    judge_end(ended, lost, limit)
}

/// Judges the end of a VM whose clocks could not be kept together.
///
/// # Errors
/// A wrong status, or another cause.
pub(crate) fn judge_run_away(exit: ExitStatus, said: &str) -> Result<()> {
    ensure!(exit == FAILED, "it ended with {exit}: {said}");
    ensure!(said.contains("the guest clock of slice1"), "it does not say why: {said}");
    Ok(())
}

/// Judges the end of a slice whose VM was stopped in order.
///
/// # Errors
/// It did not end well.
pub(crate) fn judge_stopped(who: &str, exit: ExitStatus, said: &str) -> Result<()> {
    ensure!(exit.success(), "{who} ended with {exit}: {said}");
    Ok(())
}

/// Judges what the guest's writers and the operator heard of a full disk, once all writers have failed.
///
/// # Errors
/// A writer saw something else than an I/O error, or the log does not name the cause.
pub(crate) fn judge_full_disk(errors: &[String], log: &[String]) -> Result<()> {
    ensure!(errors.len() >= WRITERS, "{} writers failed: {errors:?}", errors.len());
    let wrong = errors.iter().find(|line| !line.contains("(os error 5)"));
    ensure!(wrong.is_none(), "not an I/O error: {wrong:?}");
    let logged = log.iter().any(|line| line.contains("os error 28"));
    ensure!(logged, "the log does not say that the disk is full: {}", log.join("; "));
    Ok(())
}

/// Judges how many datagrams came back from each vCPU in the whole round.
///
/// # Errors
/// None came from a vCPU, though the guest lived.
pub(crate) fn judge_returned(harm: Harm, returned: Returned) -> Result<()> {
    // Then the guest may not have come so far.
    let quiet = harm != Harm::ClockRunAway && returned.contains(&0);
    ensure!(!quiet, "no datagram came back from a vCPU: {returned:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_good_with_the_right_status_cause_and_time_only() {
        let limit = Duration::from_secs(8);
        let good = Ended {
            after: Duration::from_secs(7),
            exit: LOST,
            said: "tessera: slice1 is lost: silent for 3.0 s".into(),
        };
        assert!(judge_end(&good, 1, limit).is_ok());
        assert!(judge_end(&good, 0, limit).is_err());
        assert!(judge_end(&Ended { after: limit * 2, ..good.clone() }, 1, limit).is_err());
        assert!(judge_woken(&good, 1, limit).is_ok());
        let still =
            "slice0 cannot go on: it stood still for its lease: the others have given it up";
        let still = Ended { exit: FAILED, said: still.into(), ..good.clone() };
        assert!(judge_woken(&still, 1, limit).is_ok() && judge_end(&still, 1, limit).is_err());
        assert!(judge_woken(&Ended { exit: LOST, ..still }, 1, limit).is_err());
        assert!(judge_end(&Ended { exit: FAILED, ..good }, 1, limit).is_err());
    }

    #[test]
    fn late_frozen_slice_is_bad_even_with_the_right_cause() {
        let limit = END_LIMIT;
        let said = "slice0 cannot go on: it stood still for its lease".to_owned();
        let good = Ended { after: limit, exit: FAILED, said };
        assert!(judge_woken(&good, 1, limit).is_ok());
        assert!(judge_woken(&Ended { after: limit * 2, ..good }, 1, limit).is_err());
    }

    #[test]
    fn clock_that_runs_away_must_be_named() {
        let said = "tessera: the guest clock of slice1 cannot be kept";
        assert!(judge_run_away(FAILED, said).is_ok());
        assert!(judge_run_away(LOST, said).is_err());
        assert!(judge_run_away(FAILED, "tessera: slice1 is lost").is_err());
        assert!(judge_run_away(FAILED, "the guest clock of slice0 cannot be kept").is_err());
    }

    #[test]
    fn stopped_slice_ends_well() {
        assert!(judge_stopped("the companion", ExitStatus::Code(0), "").is_ok());
        let wrong = judge_stopped("the companion", LOST, "why").unwrap_err().to_string();
        assert!(wrong.starts_with("the companion ended with") && wrong.ends_with("why"));
    }

    #[test]
    fn full_disk_is_an_io_error_for_the_guest_and_named_in_the_log() {
        let lines =
            |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let errors = lines(&["DISK error 0 write (os error 5)", "DISK error 1 flush (os error 5)"]);
        let log = lines(&["tessera: disk 1: No space left on device (os error 28)"]);

        assert!(judge_full_disk(&errors, &log).is_ok());
        assert!(judge_full_disk(&errors, &lines(&["tessera: started"])).is_err());
        assert!(judge_full_disk(&errors[..1], &log).is_err());
        let other = lines(&["DISK error 0 (os error 5)", "DISK error 1 (os error 30)"]);
        assert!(judge_full_disk(&other, &log).is_err());
    }

    #[test]
    fn each_vcpu_must_have_echoed_unless_the_clock_ran_away() {
        for harm in Harm::ALL {
            assert!(judge_returned(harm, [3, 1]).is_ok());
            assert_eq!(judge_returned(harm, [3, 0]).is_ok(), harm == Harm::ClockRunAway);
        }
    }
}
