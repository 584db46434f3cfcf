//! What the host's kernel tells of the process of a slice (Linux `Documentation/filesystems/proc.rst`).

use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Part of the name of all memory files of slices.
const MEMORY_FILE: &str = "tessera-guest-ram";
/// Threads of vCPUs.
const VCPU: &str = "vcpu";

/// How guest memory is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// In huge pages.
    pub(super) huge_kib: u64,
    /// Mappings of the process that a userfaultfd watches.
    pub(super) watched: u64,
}

/// What goes back to a host with the process of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GivenBack {
    pub(super) rss_kib: u64,
    /// Of its memory files.
    pub(super) file_kib: u64,
    pub(super) inodes: Vec<u64>,
}

fn read(process: libc::pid_t, file: &str) -> Result<String> {
    let path = format!("/proc/{process}/{file}");
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

pub(super) fn state(process: libc::pid_t) -> Result<State> {
    Ok(state_of(&read(process, "smaps")?))
}

fn state_of(smaps: &str) -> State {
    let mut state = State::default();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("ShmemPmdMapped:") => state.huge_kib += kib(words.next()),
            Some("VmFlags:") => {
                let is_watched = words.any(|flag| ["um", "uw", "ui"].contains(&flag));
                state.watched += u64::from(is_watched);
            }
            _ => {}
        }
    }
    state
}

fn kib(word: Option<&str>) -> u64 {
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The figure of the first line that begins so.
fn figure(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    kib(line.and_then(|rest| rest.split_ascii_whitespace().next()))
}

pub(super) fn given_back(process: libc::pid_t) -> Result<GivenBack> {
    let mut found = GivenBack {
        rss_kib: figure(&read(process, "smaps_rollup")?, "Rss:"),
        ..GivenBack::default()
    };
    let maps = read(process, "maps")?;
    for entry in fs::read_dir(format!("/proc/{process}/fd")).context("list files of a slice")? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|file| is_memory(&file)) {
            let file = fs::metadata(&path).context("look at a memory file")?;
            // That of a peer is open, too, but not mapped.
            if maps_hold(&maps, file.ino()) && !found.inodes.contains(&file.ino()) {
                found.inodes.push(file.ino());
                found.file_kib += file.blocks() / 2;
            }
        }
    }
    anyhow::ensure!(!found.inodes.is_empty(), "a slice without a memory file");
    Ok(found)
}

/// Whether a process has that memory file mapped or open.
pub(super) fn holds(process: libc::pid_t, inode: u64) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let is_it = |path: &Path| fs::metadata(path).is_ok_and(|file| file.ino() == inode);
    let mut paths = files.map(|entry| entry.path());
    let open =
        paths.any(|path| fs::read_link(&path).is_ok_and(|file| is_memory(&file)) && is_it(&path));
    open || read(process, "maps").is_ok_and(|maps| maps_hold(&maps, inode))
}

fn is_memory(file: &Path) -> bool {
    file.to_string_lossy().contains(MEMORY_FILE)
}

fn maps_hold(maps: &str, inode: u64) -> bool {
    let inode = inode.to_string();
    let mut lines = maps.lines().filter(|line| line.contains(MEMORY_FILE));
    lines.any(|line| line.split_ascii_whitespace().nth(4) == Some(&inode))
}

/// Shared memory of the whole machine.
pub(super) fn shared_kib() -> Result<u64> {
    Ok(figure(&fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?, "Shmem:"))
}

/// Nanoseconds that threads besides vCPUs have run.
pub(super) fn beside_ns(process: libc::pid_t) -> Result<f64> {
    let mut sum = 0.0;
    for entry in fs::read_dir(format!("/proc/{process}/task")).context("list threads")? {
        let path = entry?.path();
        let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        if !read("comm").starts_with(VCPU) {
            let spent = read("schedstat");
            let spent = spent.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok());
            sum += spent.unwrap_or(0.0);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_and_watched_mappings_are_counted() {
        let smaps = "\
7f0000000000-7f0000200000 rw-s 00000000 00:01 12 /memfd:tessera-guest-ram (deleted)
ShmemPmdMapped:     2048 kB
VmFlags: rd wr sh mr mw me ms um uw
7f0000200000-7f0000400000 rw-p 00200000 00:01 12 /memfd:tessera-guest-ram (deleted)
ShmemPmdMapped:     4096 kB
VmFlags: rd wr mr mw me
";
        assert_eq!(state_of(smaps), State { huge_kib: 6144, watched: 1 });
        assert!(maps_hold(smaps, 12) && !maps_hold(smaps, 1));
    }

    #[test]
    fn figures_are_found_by_their_names() {
        let text = "Pss:   3 kB\nRss:  1200 kB\n";
        assert_eq!((figure(text, "Rss:"), figure(text, "Shmem:")), (1200, 0));
    }
}
