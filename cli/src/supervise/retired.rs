//! Checkpoints that are not needed any more, until nothing of them is left.
//!
//! ```text
//!   not needed --retire--> only its number is left --told to slices with the next checkpoint--> bury --> gone
//!       ^    \--cannot be deleted now--> left --\                                              /
//!       +------------- with the next one --------+<-----------cannot be deleted now-----------/
//! ```
//! Slices keep the states of their disks for a checkpoint until they are told that it is not there any more. Its number stays in its
//! folder until then, for a supervisor that comes after this one: it finds the folder among those without a manifest. When the VM has
//! ended nobody is left to be told, and the states are given up here.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use vmm::control::RELEASED_MAX;
use vmm::slice::{By, CheckpointDisks, Outcome};

/// One of which only the number is left.
#[derive(Debug)]
struct Left {
    number: u64,
    path: PathBuf,
    /// States of disks that only it needed. None: a supervisor before this one has retired it, or they cannot be read.
    disks: Option<CheckpointDisks>,
}

/// What a thread has done about some.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Those of which only the numbers are left, by which slices know them.
    retired: Vec<Left>,
    /// Those of which more is left than should be.
    left: Vec<PathBuf>,
}

/// What is left of which.
#[derive(Debug, Default)]
pub(super) struct Retired {
    /// Slices have not been told of them.
    untold: VecDeque<Left>,
    left: Vec<PathBuf>,
}

impl Retired {
    pub(super) fn add(&mut self, Done { retired, left }: Done) {
        self.untold.extend(retired);
        self.left.extend(left);
    }

    /// Those that could not be deleted before, and are to be tried again.
    pub(super) fn take_left(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.left)
    }

    /// What slices are to be told, as much as a request takes.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.untold.iter().take(RELEASED_MAX).map(|left| left.number).collect()
    }

    /// They were told of the first ones: nothing of these is needed any more.
    pub(super) fn told(&mut self, count: usize) -> Vec<PathBuf> {
        self.untold.drain(..count.min(self.untold.len())).map(|left| left.path).collect()
    }

    /// The VM has ended, and its slices are told no more: gives up the states that they kept for what is not there any more.
    pub(super) fn end(&mut self) -> Vec<PathBuf> {
        for disks in self.untold.iter().filter_map(|left| left.disks.as_ref()) {
            for gone in disks.give_up(By::Checkpoint) {
                if let Outcome::Stays(why) = gone.outcome {
                    let image = gone.image.display();
                    tracing::warn!(
                        "state {} of {image} is not needed any more, and stays: {why}",
                        gone.state
                    );
                }
            }
        }
        self.told(usize::MAX)
    }
}

/// Deletes what there is of these checkpoints, but for their numbers: states of disks are kept for one that was not written to its end
/// too.
pub(super) fn retire(paths: Vec<PathBuf>) -> Done {
    let mut done = Done::default();
    for path in paths {
        // Of one that was interrupted at the very end, or the beginning, its folder is left.
        if !path.exists() || std::fs::remove_dir(&path).is_ok() {
            continue;
        }
        let disks = CheckpointDisks::of(&path, None).ok();
        match checkpoint::retire(&path) {
            Ok(Some(number)) => done.retired.push(Left { number, path, disks }),
            Ok(None) => {}
            Err(error) => done.left.push(stays(path, error)),
        }
    }
    done
}

/// Deletes what is left of these.
pub(super) fn bury(paths: Vec<PathBuf>) -> Done {
    let bury = |path: PathBuf| match checkpoint::delete(&path) {
        Err(error) if path.exists() => Some(stays(path, error)),
        // Or there was no room to keep its number.
        _ => None,
    };
    Done { retired: Vec::new(), left: paths.into_iter().filter_map(bury).collect() }
}

fn stays(path: PathBuf, error: checkpoint::CheckpointError) -> PathBuf {
    let (shown, error) = (Path::display(&path), anyhow::Error::from(error));
    tracing::warn!(
        "{shown} is not needed any more, and stays until the next checkpoint: {error:#}"
    );
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn number_is_told_once_and_what_cannot_be_deleted_is_tried_again() {
        let folder = std::env::temp_dir().join(format!("tessera-retired-{}", std::process::id()));
        let (first, second) = (folder.join("1"), folder.join("2"));
        fs::create_dir_all(&first).unwrap();
        fs::create_dir_all(&second).unwrap();
        fs::write(first.join("retired-7"), "").unwrap();
        // As an NFS client leaves a file that somebody has open.
        fs::write(second.join(".nfs0001"), "").unwrap();
        let mut all = Retired::default();
        all.add(retire(vec![first.clone(), second.clone(), folder.join("3")]));
        assert_eq!((all.numbers(), all.left.len()), (vec![7], 1));
        fs::remove_file(second.join(".nfs0001")).unwrap();
        let left = all.take_left();
        all.add(retire(left));
        assert!(!second.exists() && all.left.is_empty());
        // A supervisor that starts now is told by the folder.
        assert!(first.exists());
        let told = all.told(1);
        all.add(bury(told));
        assert!(!first.exists() && all.numbers().is_empty() && all.left.is_empty());
        fs::remove_dir_all(folder).unwrap();
    }
}
