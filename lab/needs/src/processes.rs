//! Processes of a test, known by a folder that is named in their words: also those that others have started for it.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Those that have something in this folder: their numbers and their words, with a zero behind each.
#[must_use]
pub fn within(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let path = folder.join("").into_os_string().into_encoded_bytes();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| {
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        Some((entry.file_name().into_string().ok()?, words))
    });
    all.filter(|(_, words)| words.windows(path.len()).any(|part| part == path)).collect()
}

/// Kills all of them, as at the end of a test that has failed before it has ended them.
pub fn kill_all(folder: &Path) {
    for (number, _) in within(folder) {
        let _ = Command::new("kill").args(["-9", &number]).status();
    }
}
