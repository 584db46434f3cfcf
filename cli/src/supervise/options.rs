//! What a supervisor of a VM is told beside the options of a bootstrap.

use crate::slices::bytes;
use migrate::supervise::Room;
use std::str::FromStr;

/// Checkpoints that are kept, unless told.
const KEEP: usize = 2;
const EVERY_MAX_S: u64 = 7 * 24 * 3600;
/// Checkpoints of a chain, of which a restore reads all.
const FULL_MAX: u32 = 32;

/// `restart=every:SECONDS` and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OnLost {
    pub(super) every_ms: u64,
    pub(super) keep: usize,
    /// Of so many checkpoints one is full.
    pub(super) full: u32,
    pub(super) compress: bool,
    pub(super) no_disk_guarantee: bool,
    pub(super) on_panic: bool,
    pub(super) lazy: bool,
}

impl FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("restart=").ok_or("write restart=every:SECONDS[,...]")?;
        let (mut every, mut keep, mut full) = (None, None, None);
        let (mut compress, mut no_disk_guarantee) = (false, false);
        let (mut on_panic, mut lazy) = (false, false);
        for word in rest.split(',') {
            match word.split_once(':') {
                Some(("every", value)) => {
                    let seconds = value.parse().ok().filter(|of| (1..=EVERY_MAX_S).contains(of));
                    every = Some(seconds.ok_or("every: takes 1 to 604800 seconds")? * 1000);
                }
                Some(("keep", value)) => {
                    let count = value.parse().ok().filter(|count| (1..=1000).contains(count));
                    keep = Some(count.ok_or("keep: takes 1 to 1000 checkpoints")?);
                }
                Some(("full", value)) => {
                    let count = value.parse().ok().filter(|count| (1..=FULL_MAX).contains(count));
                    full = Some(count.ok_or("full: takes 1 to 32 checkpoints")?);
                }
                None if word == "compress" => compress = true,
                None if word == "no-disk-guarantee" => no_disk_guarantee = true,
                None if word == "on-panic" => on_panic = true,
                None if word == "lazy" => lazy = true,
                _ => {
                    return Err(format!(
                        "{word:?} is none of every:, keep:, full:, compress, no-disk-guarantee, on-panic, lazy"
                    ));
                }
            }
        }
        let every_ms = every.ok_or("every: is missing")?;
        let (keep, full) = (keep.unwrap_or(KEEP), full.unwrap_or(1));
        Ok(Self { every_ms, keep, full, compress, no_disk_guarantee, on_panic, lazy })
    }
}

/// `cpus=N,memory=SIZE`: what a host may have of a VM.
pub(super) fn room(text: &str) -> Result<Room, String> {
    let (mut vcpus, mut memory) = (None, None);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("cpus", value)) => {
                let number = value.parse().map_err(|_| format!("cpus={value:?} is no number"))?;
                vcpus = Some(number);
            }
            Some(("memory", value)) => memory = Some(bytes(value)?),
            _ => return Err(format!("{part:?} is neither cpus=N nor memory=SIZE")),
        }
    }
    let vcpus = vcpus.ok_or("cpus= is missing")?;
    Ok(Room { vcpus, memory: memory.ok_or("memory= is missing")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_read_or_refused() {
        let policy: OnLost =
            "restart=every:30,keep:3,full:10,compress,on-panic,lazy".parse().unwrap();
        let (compress, no_disk_guarantee, on_panic, lazy) = (true, false, true, true);
        let (every_ms, keep, full) = (30_000, 3, 10);
        let expected = OnLost { every_ms, keep, full, compress, no_disk_guarantee, on_panic, lazy };
        assert_eq!(policy, expected);
        assert!(!"restart=every:1".parse::<OnLost>().unwrap().lazy);
        assert_eq!("restart=every:1".parse::<OnLost>().unwrap().keep, KEEP);
        for text in [
            "every:30",
            "restart=",
            "restart=keep:2",
            "restart=every:0",
            "restart=every:x",
            "restart=every:9,keep:0",
            "restart=every:9,full:0",
            "restart=every:9,full:33",
            "restart=every:9,often",
        ] {
            assert!(text.parse::<OnLost>().is_err(), "{text}");
        }
    }

    #[test]
    fn room_has_both() {
        assert_eq!(room("cpus=4,memory=2G").unwrap(), Room { vcpus: 4, memory: 2 << 30 });
        for text in ["cpus=4", "memory=2G", "cpus=x,memory=2G", "cpus=4,memory=2G,disk=1", ""] {
            assert!(room(text).is_err(), "{text}");
        }
    }
}
