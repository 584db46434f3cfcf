//! A VM that was just lost: slices of its former life, which nobody may reach, may use its devices for some seconds yet. The next life
//! reads its memory meanwhile, and opens its devices when they have surely stopped.
//!
//! ```text
//!   bootstrap: memory of all is there, --wait_for_fence, Prepare--> opens its own --Agree of all, with their devices--> as any other
//!   companion:                      Prepare --> opens its own, and says what they are --Agree-->
//! ```
//! The one clock that counts is that of the bootstrap's host, whose supervisor has reckoned the time.

use super::RestoreError;
use rustix::time::{ClockId, clock_gettime};
use std::thread::sleep;
use std::time::Duration;

/// A supervisor reckons in leases, of an hour at most, and waits for five quarters of one. What is much later is a number from another
/// boot of the host.
pub(in crate::slice) const LONGEST: Duration = Duration::from_secs(7200);

/// Waits until this moment of CLOCK_BOOTTIME, in milliseconds.
///
/// # Errors
/// It is too far away to be meant.
pub(in crate::slice) fn wait_for_fence(at: u64) -> Result<(), RestoreError> {
    loop {
        let left = Duration::from_millis(at).saturating_sub(now());
        if left.is_zero() {
            return Ok(());
        }
        if left > LONGEST {
            return Err(RestoreError::FenceFarAway(left.as_secs()));
        }
        // The clock goes on while the host sleeps, and this does not: the next look ends it then.
        sleep(left);
    }
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_at_its_time_and_not_before() {
        let at = u64::try_from((now() + Duration::from_millis(30)).as_millis()).unwrap();
        wait_for_fence(at).unwrap();
        assert!(now() >= Duration::from_millis(at));
        wait_for_fence(0).unwrap();
    }

    /// With the longest lease that a VM may have, and clocks that are off by a hundredth of it.
    #[test]
    fn longest_wait_of_a_supervisor_is_none_of_another_boot() {
        let lease_ms = 3_600_000;
        let policy = migrate::supervise::Policy {
            every_ms: 1000,
            keep: 1,
            full_every: 1,
            lease_ms,
            clock_error_ms: lease_ms / 100,
            gather_ms: 0,
            restarts_max: 1,
            window_ms: 1000,
            on_panic: false,
            lazy: false,
        };
        assert!(Duration::from_millis(policy.stopped_after()) < LONGEST);
    }

    #[test]
    fn time_of_another_boot_is_refused() {
        assert!(matches!(wait_for_fence(u64::MAX), Err(RestoreError::FenceFarAway(_))));
    }
}
