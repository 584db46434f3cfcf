//! What slices print is bounded: the newest part of it is kept.
//!
//! ```text
//!   VM-NUMBER.log --longer than LOG_MAX--> copied to VM-NUMBER.log.1, which is replaced as a whole --> cut to nothing, and goes on
//! ```
//! A slice has its file open for appending, and nobody can give it another one: it outlives agents. So the file is cut, and the slice goes on at
//! its new end. What it prints between the end of the copy and the cut is lost. A pipe through the agent would lose nothing, and
//! would end with the agent.

use agent::decide::Journal;
use agent::logs::remove;
use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a log before it is cut, and of the part that is kept of it.
pub(crate) const LOG_MAX: u64 = 16 << 20;

/// Cuts what is too long, and removes logs of slices that are forgotten. A slice is recorded before it has a log: what is recorded is
/// looked at behind the logs. One that begins after that has the log of its last life open, which then stays.
pub(crate) fn tend(folder: &Path, journal: impl FnOnce() -> Arc<Journal>, most: u64) {
    let logs: Vec<DirEntry> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
    let journal = journal();
    let known: BTreeSet<String> =
        journal.slices.keys().map(|it| format!("{}-{}.log", it.vm, it.number)).collect();
    for entry in logs {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        let of = name.trim_end_matches(".new").trim_end_matches(".1");
        let done = if !known.contains(of) && name == of {
            remove(&path).map(drop)
        } else if !known.contains(of) {
            fs::remove_file(&path)
        } else if name == of && entry.metadata().is_ok_and(|it| it.len() > most) {
            cut(&path, most)
        } else {
            Ok(())
        };
        if let Err(error) = done {
            tracing::warn!("{} cannot be made shorter: {error}", path.display());
        }
    }
}

fn cut(path: &Path, most: u64) -> io::Result<()> {
    let named = |end: &str| format!("{}{end}", path.display());
    let mut log = OpenOptions::new().read(true).write(true).open(path)?;
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let (new, kept) = (named(".1.new"), named(".1"));
    let mut how = OpenOptions::new();
    let mut copy: File = how.create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    // A slice that prints faster than it is copied does not hold this up.
    let copied = io::copy(&mut (&mut log).take(most.saturating_mul(2)), &mut copy);
    copied.inspect_err(|_| drop(fs::remove_file(&new)))?;
    fs::rename(&new, &kept)?;
    log.set_len(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::decide::{Generation, Order, Phase, Slice, SliceName, Token, Vm};
    use scheduler::Resources;
    use std::io::Write;

    #[test]
    fn newest_part_is_kept_and_the_slice_goes_on() {
        let folder = std::env::temp_dir().join(format!("tessera-logs-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let name = SliceName { vm: Vm(1), number: 2 };
        let order = Order { resources: Resources::NONE, words: Vec::new() };
        let (generation, token, phase) = (Generation(1), Token(1), Phase::Starting);
        let mut journal = Journal::default();
        journal.slices.insert(name, Slice { generation, order, token, phase, stop: None });
        let journal = Arc::new(journal);

        let path = folder.join(format!("{}-2.log", Vm(1)));
        fs::write(folder.join(format!("{}-2.log", Vm(9))), "forgotten").unwrap();
        let mut slice = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        slice.write_all(b"0123456789").unwrap();
        tend(&folder, || Arc::clone(&journal), 10);
        assert_eq!(fs::read(&path).unwrap(), b"0123456789");
        slice.write_all(b"ab").unwrap();
        tend(&folder, || Arc::clone(&journal), 10);
        slice.write_all(b"later").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"later");
        let kept = folder.join(format!("{}-2.log.1", Vm(1)));
        assert_eq!(fs::read(&kept).unwrap(), b"23456789ab");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        tend(&folder, Arc::default, 10);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn slice_that_begins_again_keeps_the_log_of_its_last_life() {
        let folder =
            std::env::temp_dir().join(format!("tessera-logs-again-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let log = folder.join(format!("{}-0.log", Vm(3)));
        fs::write(&log, "it boots\n").unwrap();
        let mut slice = None;
        let begins = || {
            let journal = Arc::default();
            slice = Some(agent::logs::open(&log).unwrap());
            journal
        };
        tend(&folder, begins, 10);
        slice.take().unwrap().write_all(b"again").unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"it boots\nagain");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn slice_that_begins_meanwhile_keeps_its_log() {
        let folder = std::env::temp_dir().join(format!("tessera-logs-new-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let log = folder.join(format!("{}-0.log", Vm(3)));
        let begins = || {
            fs::write(&log, "it boots").unwrap();
            Arc::default()
        };
        tend(&folder, begins, 10);
        assert_eq!(fs::read(&log).unwrap(), b"it boots");
        fs::remove_dir_all(&folder).unwrap();
    }
}
