//! A disk that takes some pages and fails at others, and is well again later: what a store says then is what the disk has.
//!
//! ```text
//!   store ── ext4 ── loop device ── sparse file ── tmpfs, full: a page that has no place there yet cannot be written
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use store::{CommitError, Limits, RedbStore, Revision, Store, StoreError, Txn};

use crate::setup::{Folder, Redb, runtime};
use crate::suite::{candidate, commit, key};

const MIB: usize = 1 << 20;

fn run(program: &str, words: &[OsString]) -> Result<(), String> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or_else(|| format!("{program}: {}", said()))
}

fn words(all: &[&str], path: PathBuf) -> Vec<OsString> {
    all.iter().map(OsString::from).chain([path.into()]).collect()
}

/// Two file systems, one in the other, gone with the test.
struct FailingDisk {
    folder: Folder,
    mounted: Vec<PathBuf>,
}

impl FailingDisk {
    fn new() -> Result<Self, String> {
        let folder = Folder::new("failing");
        let (below, disk) = (folder.join("below"), folder.join("disk"));
        for folder in [&below, &disk] {
            fs::create_dir(folder).unwrap();
        }
        run("mount", &words(&["-t", "tmpfs", "-o", "size=48m", "tmpfs"], below.clone()))?;
        let new = Self { folder, mounted: vec![below] };
        fs::File::create(new.image()).unwrap().set_len(64 * MIB as u64).unwrap();
        // All that is not of files has its place from the beginning, so only pages of files fail.
        let now = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
        run("mkfs.ext4", &words(&now, new.image()))?;
        new.mount()
    }

    fn image(&self) -> PathBuf {
        self.folder.join("below/image")
    }

    fn mount(mut self) -> Result<Self, String> {
        let mut all = words(&["-o", "loop,nodiscard"], self.image());
        all.push(self.folder.join("disk").into());
        run("mount", &all)?;
        self.mounted.push(self.folder.join("disk"));
        Ok(self)
    }

    fn unmount(&mut self) -> Result<(), String> {
        self.mounted.pop().map_or(Ok(()), |last| run("umount", &words(&[], last)))
    }

    /// What was in memory only is gone.
    fn forget(mut self) -> Self {
        self.unmount().unwrap();
        self.mount().unwrap()
    }

    fn fail(&self) {
        let filler = self.folder.join("below/filler");
        let full = fs::write(filler, vec![1; 64 * MIB]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    }

    fn heal(&self) {
        fs::remove_file(self.folder.join("below/filler")).unwrap();
    }

    fn open(&self) -> RedbStore {
        let path = self.folder.join("disk/state");
        RedbStore::open(&path, Limits::default()).unwrap_or_else(|error| panic!("{error:?}"))
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        while !self.mounted.is_empty() {
            if let Err(why) = self.unmount() {
                eprintln!("the disk is still mounted: {why}");
            }
        }
    }
}

fn large(n: u8) -> Txn {
    let value = vec![n; 100_000];
    Txn::unfenced().put(key(&format!("a/{n}")), value.clone()).put(key(&format!("b/{n}")), value)
}

/// Those that are there; both halves of each.
async fn numbers(store: &RedbStore) -> Vec<u8> {
    let mut found = Vec::new();
    for n in 0..u8::MAX {
        let read = |half: &str| {
            let (store, key) = (store.clone(), key(&format!("{half}/{n}")));
            async move { store.get(&key).await.unwrap().entry.map(|entry| entry.value) }
        };
        let (a, b) = (read("a").await, read("b").await);
        assert_eq!(a, b, "half of {n}");
        found.extend(a.map(|value| value[0]));
    }
    found
}

#[test]
fn store_of_a_disk_that_has_failed_says_what_the_disk_has() {
    let mut disk = match FailingDisk::new() {
        Ok(disk) => disk,
        Err(error) => return needs::skip(&format!("a disk that fails: {error}")),
    };
    runtime().block_on(async {
        let store = disk.open();
        let mut revision = Revision(0);
        for n in 0..10 {
            revision = commit(&store, large(n)).await;
        }
        disk.fail();
        let mut written: Vec<u8> = (0..10).collect();
        // What has its place below already can be written still.
        let lost = loop {
            let n = u8::try_from(written.len()).unwrap();
            match store.commit(large(n)).await {
                Ok(newest) => revision = newest,
                Err(error) => break error,
            }
            written.push(n);
        };
        assert!(matches!(lost, CommitError::Unknown(_)), "{lost:?}");
        let ended = store.campaign(&candidate::<Redb>("a")).await.map(drop);
        assert!(matches!(ended, Err(StoreError::Ended(_))), "{ended:?}");
        store.close().await;
        drop(store);
        disk.heal();

        // Somebody starts it anew, and nothing was unmounted meanwhile.
        let store = disk.open();

        let found = numbers(&store).await;
        assert!(found.starts_with(&written), "{found:?} of {written:?}");
        let next = commit(&store, large(200)).await;
        assert!(next > revision);
        store.close().await;
        drop(store);
        disk = disk.forget();
        let store = disk.open();
        assert_eq!(numbers(&store).await, [&found[..], &[200]].concat());
        store.close().await;
    });
}
