//! fio in a Debian guest that writes blocks with checksums to its disk and reads them back, again and again (fio(1), "verify").

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::distro::guest::Guest;

/// `passes N` is printed at the end, or before it what fio says of the first pass that is bad.
const START: &str = "nohup bash -c 'n=0; while [ ! -e /run/verify-stop ]; do \
    said=$(fio --name=verify --filename=/var/tmp/verify-data --size=1m --bs=4k --rw=randwrite --direct=1 \
    --ioengine=psync --verify=crc32c --verify_interval=512 --verify_fatal=1 --randseed=$((n + 1)) \
    --verify_state_save=0 --eta=never --disk_util=0 2>&1) || { echo \"$said\"; break; }; n=$((n + 1)); done; echo passes $n' \
    </dev/null >/run/verify 2>&1 & echo started";
const END: &str = "touch /run/verify-stop; cat /run/verify";
/// For the pass that goes on at the end.
const LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_secs(2);

/// Starts it.
pub(crate) fn start(guest: &Guest<'_>) -> Result<()> {
    guest.ssh(START).map(drop).context("start fio")
}

/// Waits for the end of the last pass; how many there were, all of them good.
pub(crate) fn end(guest: &Guest<'_>) -> Result<u64> {
    let until = Instant::now() + LIMIT;
    loop {
        let said = guest.ssh(END).context("stop fio")?;
        if let Some(passes) = judge(&said)? {
            return Ok(passes);
        }
        if Instant::now() > until {
            bail!("fio does not end: {said}");
        }
        thread::sleep(POLL);
    }
}

/// None as long as a pass goes on.
fn judge(said: &str) -> Result<Option<u64>> {
    let Some((bad, passes)) = said.rsplit_once("passes ") else { return Ok(None) };
    ensure!(bad.trim().is_empty(), "fio, after {} good passes: {}", passes.trim(), bad.trim());
    let passes: u64 = passes.trim().parse().with_context(|| format!("'{said}'"))?;
    ensure!(passes > 0, "fio did not end one pass");
    Ok(Some(passes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    #[test]
    fn all_passes_must_be_good_and_there_must_be_one() {
        assert_eq!(judge("passes 3\n").unwrap(), Some(3));
        assert_eq!(judge("").unwrap(), None);
        assert!(judge("passes 0\n").is_err());
        let bad = judge("verify: bad magic header\npasses 2\n").unwrap_err().to_string();
        assert!(bad.contains("after 2 good passes: verify: bad magic"), "{bad}");
    }

    #[test]
    fn fio_of_this_machine_says_what_is_read() {
        let folder = std::env::temp_dir().join(format!("tessera-passes-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let here = |line: &str| {
            let line = line.replace("/run/", &format!("{}/", folder.display()));
            // A temporary folder may be one where there is no direct access.
            line.replace("/var/tmp/", &format!("{}/", folder.display())).replace("--direct=1 ", "")
        };
        let said = |line: &str| {
            let output = Command::new("bash").args(["-c", line]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        said(&here(START));
        let (mut end, begun) = (String::new(), Instant::now());
        while !end.contains("passes") {
            assert!(begun.elapsed() < LIMIT, "no pass; fio is in the package fio: {end}");
            thread::sleep(Duration::from_millis(300));
            // Enough once it has written something.
            if folder.join("verify-data").exists() {
                end = said(&here(END));
            }
        }
        fs::remove_dir_all(&folder).unwrap();
        assert!(judge(&end).is_ok_and(|passes| passes.is_some()), "{end}");
    }
}
