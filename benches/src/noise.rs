//! What others take of this machine while something is measured.

use std::fs;

/// Seconds that the host of this machine kept its cores from running, all cores together, since the start:
/// `steal` of /proc/stat (proc(5)). 0 where the kernel does not say.
#[must_use]
pub fn stolen() -> f64 {
    fs::read_to_string("/proc/stat").ok().and_then(|stat| steal(&stat)).unwrap_or(0.0)
}

/// Seconds that this thread wanted to run and waited for its core so far (the second figure of
/// schedstat, Documentation/scheduler/sched-stats.rst). 0 where the kernel does not say.
#[must_use]
pub fn waited() -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").ok();
    stat.and_then(|stat| run_delay(&stat)).unwrap_or(0.0)
}

fn steal(stat: &str) -> Option<f64> {
    /// USER_HZ of every Linux on x86.
    const TICKS_A_SECOND: f64 = 100.0;
    let all = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: f64 = all.split_whitespace().nth(7)?.parse().ok()?;
    Some(ticks / TICKS_A_SECOND)
}

fn run_delay(schedstat: &str) -> Option<f64> {
    let nanoseconds: f64 = schedstat.split_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighth_figure_of_all_cores_is_steal() {
        let stat = "cpu  1 2 3 4 5 6 7 812 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(steal(stat), Some(8.12));
        assert_eq!(steal("cpu  1 2 3\n"), None);
        assert_eq!(steal(""), None);
    }

    #[test]
    fn second_figure_of_schedstat_is_waiting() {
        assert_eq!(run_delay("704863088 507686000 17\n"), Some(0.507_686));
        assert_eq!(run_delay("704863088"), None);
    }
}
