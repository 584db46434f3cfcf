//! Programs that read the clock of a Debian guest on each of its CPUs, again and again: it never goes back. They also
//! keep each CPU busy.

use anyhow::{Context, Result};

use crate::distro::guest::Guest;
use crate::soak::each_cpu::{self, Complaints};

/// bash reads the clock without a system call or a new process. `turns back` is printed at the end.
const START: &str = "for cpu in /sys/devices/system/cpu/cpu[0-9]*; do n=${cpu##*cpu}; \
    taskset -c $n nice -n 10 setsid bash -c 'turns=0; back=0; last=0; \
    trap \"echo \\$turns \\$back; exit\" TERM; \
    while :; do now=${EPOCHREALTIME/./}; ((now < last)) && ((back++)); last=$now; ((++turns)); done' \
    </dev/null >/run/clock-$n 2>&1 & echo $! >>/run/clocks; done";
/// A program tells when it is on its CPU next.
const END: &str = "kill $(cat /run/clocks); sleep 2; cat /run/clock-*";

const COMPLAINTS: Complaints = Complaints {
    wrong: |back, all| format!("the clock went back {back} times in {all} readings on one CPU"),
    nothing: "the clock was not read on one CPU",
    few: |lines, cpus| format!("the clock was read on {lines} of {cpus} CPUs"),
};

/// Starts them.
pub(crate) fn start(guest: &Guest<'_>) -> Result<()> {
    guest.ssh(START).map(drop).context("start to read the clock")
}

/// Ends them; how often the clock was read. Fails if it went back, or was not read on some CPU.
pub(crate) fn end(guest: &Guest<'_>) -> Result<u64> {
    judge(&guest.ssh(END).context("stop to read the clock")?, guest.cpus)
}

fn judge(said: &str, cpus: u16) -> Result<u64> {
    each_cpu::judge(said, cpus, &COMPLAINTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_must_be_read_on_all_cpus_and_never_go_back() {
        let problem = |said| judge(said, 2).unwrap_err().to_string();
        assert_eq!(judge("7 0\n5 0\n", 2).unwrap(), 12);
        assert!(problem("7 0\n5 1\n").contains("went back 1 times"));
        assert!(problem("7 0\n0 0\n").contains("not read on one"));
        assert!(problem("7 0\n").contains("on 1 of 2 CPUs"));
        assert!(problem("bash: no\n7 0\n").contains("bash:"));
    }

    #[test]
    fn programs_of_this_machine_say_what_is_read() {
        judge(&each_cpu::said_here("clocks", START, END), 1).unwrap();
    }
}
