//! Programs that compute the same again and again on each CPU of a Debian guest: each result must be the same. Registers or
//! memory that somebody loses would make another one.

use anyhow::{Context, Result};

use crate::distro::guest::Guest;
use crate::soak::each_cpu::{self, Complaints};

/// perl is part of each Debian system. `rounds wrong` is printed at the end.
const START: &str = "for cpu in /sys/devices/system/cpu/cpu[0-9]*; do n=${cpu##*cpu}; \
    taskset -c $n nice -n 10 setsid perl -e '$SIG{TERM} = sub { print \"$rounds $wrong\\n\"; exit }; \
    ($rounds, $wrong) = (0, 0); while (1) { my @x = (1); \
    push @x, ($x[-1] * 1103515245 + 12345) % 2147483648 for 1 .. 5000; my $sum = 0; \
    $sum = ($sum * 31 + $_) % 1000000007 for @x; $right //= $sum; $wrong++ if $sum != $right; $rounds++ }' \
    </dev/null >/run/compute-$n 2>&1 & echo $! >>/run/computes; done";
/// A program tells when it is on its CPU next.
const END: &str = "kill $(cat /run/computes); sleep 2; cat /run/compute-*";

const COMPLAINTS: Complaints = Complaints {
    wrong: |wrong, all| format!("{wrong} of {all} results on one CPU were others than the first"),
    nothing: "nothing was computed on one CPU",
    few: |lines, cpus| format!("{lines} of {cpus} CPUs have computed"),
};

/// Starts them.
pub(crate) fn start(guest: &Guest<'_>) -> Result<()> {
    guest.ssh(START).map(drop).context("start to compute")
}

/// Ends them; how many results there were. Fails if one was another, or some CPU did nothing.
pub(crate) fn end(guest: &Guest<'_>) -> Result<u64> {
    judge(&guest.ssh(END).context("stop to compute")?, guest.cpus)
}

fn judge(said: &str, cpus: u16) -> Result<u64> {
    each_cpu::judge(said, cpus, &COMPLAINTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_must_be_the_same_on_all_cpus() {
        let problem = |said| judge(said, 2).unwrap_err().to_string();
        assert_eq!(judge("7 0\n5 0\n", 2).unwrap(), 12);
        assert!(problem("7 0\n5 1\n").contains("1 of 5 results"));
        assert!(problem("7 0\n0 0\n").contains("nothing was computed"));
        assert!(problem("7 0\n").contains("1 of 2 CPUs"));
        assert!(problem("perl: no\n7 0\n").contains("perl:"));
    }

    #[test]
    fn program_of_this_machine_says_what_is_read() {
        judge(&each_cpu::said_here("compute", START, END), 1).unwrap();
    }
}
