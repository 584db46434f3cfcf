//! Programs that read the clock of a Debian guest on each of its CPUs, again and again: it never goes back. They also
//! keep each CPU busy.

use anyhow::{Context, Result, ensure};

use crate::distro::guest::Guest;

/// bash reads the clock without a system call or a new process. `turns back` is printed at the end.
const START: &str = "for cpu in /sys/devices/system/cpu/cpu[0-9]*; do n=${cpu##*cpu}; \
    taskset -c $n nice -n 10 setsid bash -c 'turns=0; back=0; last=0; \
    trap \"echo \\$turns \\$back; exit\" TERM; \
    while :; do now=${EPOCHREALTIME/./}; ((now < last)) && ((back++)); last=$now; ((++turns)); done' \
    </dev/null >/run/clock-$n 2>&1 & echo $! >>/run/clocks; done";
/// A program tells when it is on its CPU next.
const END: &str = "kill $(cat /run/clocks); sleep 2; cat /run/clock-*";

/// Starts them.
pub(crate) fn start(guest: &Guest<'_>) -> Result<()> {
    guest.ssh(START).map(drop).context("start to read the clock")
}

/// Ends them; how often the clock was read. Fails if it went back, or was not read on some CPU.
pub(crate) fn end(guest: &Guest<'_>) -> Result<u64> {
    judge(&guest.ssh(END).context("stop to read the clock")?, guest.cpus)
}

fn judge(said: &str, cpus: u16) -> Result<u64> {
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("'{text}'"));
    let (mut all, mut lines) = (0, 0);
    for line in said.lines() {
        let (turns, back) = line.split_once(' ').with_context(|| format!("'{line}'"))?;
        let (turns, back) = (number(turns)?, number(back)?);
        ensure!(back == 0, "the clock went back {back} times in {turns} readings on one CPU");
        ensure!(turns > 0, "the clock was not read on one CPU");
        all += turns;
        lines += 1;
    }
    ensure!(lines == cpus, "the clock was read on {lines} of {cpus} CPUs");
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

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
        let folder = std::env::temp_dir().join(format!("tessera-clocks-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let here = |line: &str| line.replace("/run/", &format!("{}/", folder.display()));
        let cpus = "/sys/devices/system/cpu/cpu[0-9]*";
        // One program, on a CPU that this process may use.
        let start = here(START).replace(cpus, "cpu0").replace("taskset -c $n ", "");
        let line = format!("{start}; sleep 1; {}", here(END).replace("sleep 2", "sleep 1"));
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        judge(&String::from_utf8(output.stdout).unwrap(), 1).unwrap();
    }
}
