//! Programs on each CPU of a Debian guest. At its end each prints how often it did something, and how often that was wrong.

use anyhow::{Context, Result, ensure};

/// What to say of programs that do not do well.
pub(super) struct Complaints {
    /// Of one that did so much wrong, of so much in all.
    pub(super) wrong: fn(u64, u64) -> String,
    /// Of one that did nothing.
    pub(super) nothing: &'static str,
    /// Of so many programs that have said something, on so many CPUs.
    pub(super) few: fn(u16, u16) -> String,
}

/// How much all of them did. `said` has a line of each.
pub(super) fn judge(said: &str, cpus: u16, complaints: &Complaints) -> Result<u64> {
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("'{text}'"));
    let (mut sum, mut lines) = (0, 0);
    for line in said.lines() {
        let (all, wrong) = line.split_once(' ').with_context(|| format!("'{line}'"))?;
        let (all, wrong) = (number(all)?, number(wrong)?);
        ensure!(wrong == 0, (complaints.wrong)(wrong, all));
        ensure!(all > 0, complaints.nothing);
        sum += all;
        lines += 1;
    }
    ensure!(lines == cpus, (complaints.few)(lines, cpus));
    Ok(sum)
}

/// What one program says on this machine, for a second, on a CPU that this process may use. It complains of nothing.
#[cfg(test)]
pub(super) fn said_here(name: &str, start: &str, end: &str) -> String {
    let folder = std::env::temp_dir().join(format!("tessera-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let here = |line: &str| line.replace("/run/", &format!("{}/", folder.display()));
    let cpus = "/sys/devices/system/cpu/cpu[0-9]*";
    let start = here(start).replace(cpus, "cpu0").replace("taskset -c $n ", "");
    let line = format!("{start}; sleep 1; {}", here(end).replace("sleep 2", "sleep 1"));
    let output = std::process::Command::new("bash").args(["-c", &line]).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
