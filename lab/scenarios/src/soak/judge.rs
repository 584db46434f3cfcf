//! The judge of disks, at work on the host that has them.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Command, HostNumber};

use crate::judge::disks::FIO;
use crate::judge::last::Last;
use crate::soak::disks::{Disks, Told};
use crate::vm::scenario::Scenario;

const LIMIT: Duration = Duration::from_secs(600);

/// Has the disks judged on the host that has them; each sector of the raw one if it was `zeroed` before.
pub(crate) fn judge_disks(
    scenario: &Scenario<'_>,
    run: u64,
    (owner, disks): (HostNumber, &Disks),
    told: &Told,
    zeroed: bool,
) -> Result<String> {
    let list = |lasts: &[Last]| lasts.iter().map(Last::to_string).collect::<Vec<_>>().join(",");
    let program = scenario.lab.own_program()?;
    let program = program.to_str().context("the path of this program is not UTF-8")?;
    let Disks { raw, files, fio } = disks;
    let words = [program, "judge-disks", "--run", &run.to_string(), "--raw", raw, "--files", files]
        .map(str::to_owned);
    let fio = fio.iter().flat_map(|[_, disk]| ["--fio".to_owned(), disk.clone()]);
    let lasts = [("--records", &told.records), ("--in-files", &told.files)];
    let lasts = lasts.into_iter().flat_map(|(name, of)| [name.to_owned(), list(of)]);
    let zeroed = zeroed.then(|| "--from-zeros".to_owned());
    let command = Command::new(words.into_iter().chain(zeroed).chain(fio).chain(lasts));
    let said = scenario.lab.host(owner)?.output(&command, LIMIT)?;
    Ok(said.trim().to_owned())
}

/// The digest of fio's disk in what the judge said; a new one says that fio has written.
pub(crate) fn fio_digest(said: &str) -> Result<&str> {
    Ok(said.rsplit_once(FIO).context("nobody has judged fio's disk")?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_what_stands_after_the_words_of_the_judge() {
        let said = format!("writer 0: acknowledged 7, 3 checked; {FIO}0a1b2c");

        assert_eq!(fio_digest(&said).unwrap(), "0a1b2c");
        assert!(fio_digest("writer 0: acknowledged 7, 3 checked").is_err());
    }
}
