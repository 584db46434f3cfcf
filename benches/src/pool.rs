//! The host's pool of huge pages (2 MiB), which an experiment may need larger for a while.

use std::fs;
use std::path::Path;

const PATH: &str = "/proc/sys/vm/nr_hugepages";

/// As long as it lives the pool is larger, where that is permitted. Then it is as before.
#[derive(Debug)]
pub struct Pool {
    before: Option<u64>,
}

impl Pool {
    /// Asks for so many huge pages more. The kernel may find fewer.
    #[must_use]
    pub fn enlarged(more: u64) -> Self {
        let before = pages();
        let before = before.filter(|before| fs::write(PATH, (before + more).to_string()).is_ok());
        Self { before }
    }

    /// In words, for the conditions of a run.
    #[must_use]
    pub fn describe(&self) -> String {
        let now = pages().map_or_else(|| "unknown".to_owned(), |pages| pages.to_string());
        match self.before {
            Some(before) => format!("nr_hugepages: {before}, for this run {now}"),
            None if Path::new(PATH).exists() => format!("nr_hugepages: {now}, not to be changed"),
            None => "no hugetlbfs".to_owned(),
        }
    }
}

fn pages() -> Option<u64> {
    fs::read_to_string(PATH).ok()?.trim().parse().ok()
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(before) = self.before
            && let Err(error) = fs::write(PATH, before.to_string())
        {
            eprintln!("{PATH} cannot be set back to {before}: {error}");
        }
    }
}
