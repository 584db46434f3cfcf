//! What a VM that stands still can be asked from outside: where each thread of each slice waits.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::Command;

use crate::vm::scenario::Scenario;

/// Emulated hosts take their time.
const LIMIT: Duration = Duration::from_secs(60);
/// Name of the file in the job folder of each host.
const FILE: &str = "threads.txt";
/// For each thread of the program: name, state, system call, where in the kernel it is, and CPU time so far.
const LOOK: &str = r#"
for process in $(pgrep -x tessera); do
  for thread in /proc/"$process"/task/*; do
    echo "== ${thread##*/} $(cat "$thread/comm")"
    cut -d' ' -f3,14,15 "$thread/stat"
    cat "$thread/syscall" "$thread/stack"
  done
done 2>&1
"#;

/// Writes where all threads are, for each host, and gives the files.
///
/// # Errors
/// A host does not answer.
pub(crate) fn threads(scenario: &Scenario<'_>) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for host in scenario.lab.hosts() {
        let (_, lines) = host.run(&Command::new(["sh", "-c", LOOK]), LIMIT)?;
        let text: String = lines.into_iter().map(|line| line.text + "\n").collect();
        let path = host.job()?.join(FILE);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        files.push(path);
    }
    Ok(files)
}
