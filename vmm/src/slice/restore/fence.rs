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

/// Between two looks whether companions still wait: one that is lost meanwhile ends the start at once, and the next one begins.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Waits until this moment of CLOCK_BOOTTIME, in milliseconds. `look` is asked again and again whether that is still wanted.
///
/// # Errors
/// It is too far away to be meant, or what `look` says.
pub(in crate::slice) fn wait_for_fence<E: From<RestoreError>>(
    at: u64,
    look: &mut dyn FnMut() -> Result<(), E>,
) -> Result<(), E> {
    loop {
        look()?;
        let left = Duration::from_millis(at).saturating_sub(now());
        if left.is_zero() {
            return Ok(());
        }
        if left > LONGEST {
            return Err(RestoreError::FenceFarAway(left.as_secs()).into());
        }
        sleep(left.min(LOOK_EVERY));
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
        let mut good = || Ok::<(), RestoreError>(());
        wait_for_fence(at, &mut good).unwrap();
        assert!(now() >= Duration::from_millis(at));
        wait_for_fence(0, &mut good).unwrap();
    }

    #[test]
    fn wait_ends_when_nobody_waits_with_it_any_more() {
        let at = u64::try_from((now() + LONGEST / 2).as_millis()).unwrap();
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            if looks < 3 { Ok(()) } else { Err(RestoreError::NoFolder) }
        };
        assert!(matches!(wait_for_fence(at, &mut look), Err(RestoreError::NoFolder)));
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
        let waited = wait_for_fence(u64::MAX, &mut || Ok::<(), RestoreError>(()));
        assert!(matches!(waited, Err(RestoreError::FenceFarAway(_))));
    }
}
