//! What can happen to a store in a file: its process is killed, its disk is full, its file is damaged or somebody else's.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use redb::{Database, TableDefinition};
use store::{
    CommitError, Limits, OpenError, Page, PageToken, Prefix, RedbStore, Revision, Store, Term, Txn,
    WatchError,
};

use crate::setup::{Folder, runtime};
use crate::suite::{below, candidate, commit, heard, key};

/// Where the file is, for a test that runs once more as the process that is killed.
const CHILD: &str = "TESSERA_TEST_STORE";
const WRITERS: usize = 3;

fn open(path: &Path, limits: Limits) -> RedbStore {
    RedbStore::open(path, limits).unwrap_or_else(|error| panic!("{error}"))
}

async fn everything(store: &RedbStore) -> Page {
    let page = store.list(&Prefix::all(), 256, None).await.unwrap();
    assert_eq!(page.next, None, "more than the test looks at");
    page
}

/// This test once more, in another process.
fn again(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("redb::{test}"), "--nocapture"]).env(CHILD, path);
    command
}

fn child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

#[test]
fn what_was_written_is_there_again() {
    let folder = Folder::new("again");
    let path = folder.join("state");
    let limits = Limits { history_max: 20, ..Limits::default() };
    runtime().block_on(async {
        let store = open(&path, limits);
        for n in 0..50_u8 {
            commit(&store, Txn::unfenced().put(key(&format!("a/{}", n % 7)), [n])).await;
        }
        let third = Txn::unfenced().delete(key("a/3")).put(key("b"), *b"x");
        let last = commit(&store, third).await;
        let first = store.list(&below("a"), 2, None).await.unwrap();
        let rest = store.list(&below("a"), 9, first.next.as_ref()).await.unwrap();
        let before = everything(&store).await;
        store.close().await;
        let closed = store.get(&key("b")).await.unwrap_err();
        assert!(closed.to_string().contains("closed"), "{closed}");

        let store = open(&path, limits);

        assert_eq!(everything(&store).await, before);
        assert_eq!(before.revision, last);
        // Pages and watchers go on where they were.
        let token = first.next.as_ref();
        assert_eq!(store.list(&below("a"), 9, token).await.unwrap(), rest);
        let mut watcher = store.watch(&Prefix::all(), Revision(last.0 - 3)).await.unwrap();
        for revision in last.0 - 2..=last.0 {
            assert_eq!(heard(&mut watcher).await.unwrap().revision, Revision(revision));
        }
        let old = store.watch(&Prefix::all(), Revision(1)).await.map(drop);
        assert!(matches!(old, Err(WatchError::Compacted { .. })), "{old:?}");
        let token = PageToken { revision: Revision(1), after: key("a") };
        assert!(store.list(&below("a"), 9, Some(&token)).await.is_err());
        assert_eq!(commit(&store, Txn::unfenced().put(key("c"), *b"1")).await, last.next());
        store.close().await;
    });
}

#[test]
fn each_opening_is_a_new_term() {
    let folder = Folder::new("terms");
    let path = folder.join("state");
    runtime().block_on(async {
        let mut newest = Term(0);
        for _ in 0..3 {
            let store = open(&path, Limits::default());
            let under = |term| Txn::under(term).put(key("a"), *b"1");
            let refused = store.commit(under(newest)).await;
            assert!(matches!(refused, Err(CommitError::Deposed { .. })), "{refused:?}");
            let leadership = store.campaign(&candidate::<crate::setup::Redb>("a")).await.unwrap();
            assert!(leadership.term() > newest);
            newest = leadership.term();
            commit(&store, under(newest)).await;
            store.close().await;
        }
    });
}

#[test]
fn file_is_of_one_process() {
    let folder = Folder::new("lock");
    let path = folder.join("state");
    let store = open(&path, Limits::default());
    let refused = RedbStore::open(&path, Limits::default()).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
    runtime().block_on(store.close());
    runtime().block_on(open(&path, Limits::default()).close());
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left over");
    let nowhere = RedbStore::open(&folder.join("no/such"), Limits::default()).map(drop);
    assert!(matches!(nowhere, Err(OpenError::Io { .. })), "{nowhere:?}");
}

/// Writes as much as it can, from several tasks, and says what was acknowledged.
fn write_for_ever(path: &Path) {
    let limits = Limits { history_max: 50, ..Limits::default() };
    runtime().block_on(async {
        let store = open(path, limits);
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            tasks.spawn(async move {
                let name = |part: &str| key(&format!("{writer}/{part}"));
                let first = store.get(&name("a")).await.unwrap().entry;
                let mut n = first.map_or(0, |entry| number(&entry.value));
                loop {
                    n += 1;
                    let mut value = n.to_le_bytes().to_vec();
                    value.resize(8 + fastrand::usize(..3000), 0);
                    let txn = Txn::unfenced().put(name("a"), value.clone()).put(name("b"), value);
                    commit(&store, txn).await;
                    println!("ack {writer} {n}");
                }
            });
        }
        tasks.join_all().await;
    });
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

#[test]
fn killed_process_loses_nothing_that_was_acknowledged() {
    if let Some(path) = child() {
        return write_for_ever(&path);
    }
    let folder = Folder::new("killed");
    let path = folder.join("state");
    let mut acknowledged = [0; WRITERS];
    let mut rounds_with_commits = 0;
    for round in 0..30 {
        let mut child = again("killed_process_loses_nothing_that_was_acknowledged", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader = thread::spawn(move || last_acknowledged(output));
        // Some are killed before they have opened the file, or while they make it.
        thread::sleep(Duration::from_millis(fastrand::u64(..120) + round));
        child.kill().unwrap();
        child.wait().unwrap();
        let heard = reader.join().unwrap();
        rounds_with_commits += u64::from(heard.iter().any(|n| *n > 0));
        for (known, heard) in acknowledged.iter_mut().zip(heard) {
            *known = heard.max(*known);
        }
        if path.exists() {
            acknowledged = found(&path, acknowledged);
        } else {
            assert_eq!(acknowledged, [0; WRITERS]);
        }
    }
    assert!(rounds_with_commits > 5, "{rounds_with_commits} rounds with commits");
}

/// The last number of each writer, of lines that are complete.
fn last_acknowledged(output: impl BufRead) -> [u64; WRITERS] {
    let mut last = [0; WRITERS];
    for line in output.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split(' ');
        if let (Some("ack"), Some(writer), Some(n)) = (words.next(), words.next(), words.next()) {
            // The last line may have been cut: a number that is too small.
            let n: u64 = n.parse().unwrap_or(0);
            let writer: usize = writer.parse().unwrap();
            last[writer] = n.max(last[writer]);
        }
    }
    last
}

/// What is in the file, which must be no less than was acknowledged, and whole.
fn found(path: &Path, acknowledged: [u64; WRITERS]) -> [u64; WRITERS] {
    runtime().block_on(async {
        let store = open(path, Limits { history_max: 50, ..Limits::default() });
        let mut numbers = [0; WRITERS];
        for (writer, known) in acknowledged.into_iter().enumerate() {
            let read = |part: &str| {
                let (store, key) = (store.clone(), key(&format!("{writer}/{part}")));
                async move { store.get(&key).await.unwrap().entry }
            };
            let (a, b) = (read("a").await, read("b").await);
            let found = a.as_ref().map_or(0, |entry| number(&entry.value));
            assert_eq!(a.map(|entry| entry.value), b.map(|entry| entry.value), "half a commit");
            assert!(
                found == known || found == known + 1,
                "writer {writer}: {known} acknowledged, {found} found"
            );
            numbers[writer] = found;
        }
        store.close().await;
        numbers
    })
}

/// Writes until there is no room; how many were acknowledged.
async fn fill(store: &RedbStore) -> (u64, String) {
    for n in 0.. {
        let value = vec![u8::try_from(n % 251).unwrap(); 20_000];
        let txn = Txn::unfenced().put(key(&format!("a/{n:05}")), value.clone());
        match store.commit(txn.put(key(&format!("b/{n:05}")), value)).await {
            Ok(_) => {}
            Err(CommitError::Full(why)) => return (n, why),
            Err(error) => panic!("{n}: {error}"),
        }
    }
    unreachable!("the disk has no end")
}

async fn is_filled(store: &RedbStore, count: u64) {
    for prefix in ["a", "b"] {
        let (mut token, mut found) = (None, 0);
        loop {
            let page = store.list(&below(prefix), 100, token.as_ref()).await.unwrap();
            for entry in &page.entries {
                assert_eq!(entry.key, key(&format!("{prefix}/{found:05}")));
                assert!(entry.value.iter().all(|byte| u64::from(*byte) == found % 251));
                found += 1;
            }
            token = page.next;
            if token.is_none() {
                break;
            }
        }
        assert_eq!(found, count, "of {prefix}");
    }
}

#[test]
fn file_that_may_not_grow_is_a_full_store() {
    if let Some(path) = child() {
        return runtime().block_on(async {
            let store = open(&path, Limits::default());
            let (count, why) = fill(&store).await;
            // It goes on as it is.
            is_filled(&store, count).await;
            // What fits into the file as it is may still be taken.
            let mut tries = 0..100;
            let refused = loop {
                tries.next().expect("the file is full");
                let large = Txn::unfenced().put(key("c"), vec![0; 100_000]);
                if let Err(error) = store.commit(large).await {
                    break error;
                }
            };
            assert!(matches!(refused, CommitError::Full(_)), "{refused}");
            is_filled(&store, count).await;
            store.close().await;
            println!("ack 0 {count}");
            println!("full: {why}");
        });
    }
    let folder = Folder::new("limit");
    let path = folder.join("state");
    let program = again("file_that_may_not_grow_is_a_full_store", &path);
    // A file of 4 MiB, and no signal about it.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\""])
        .arg(program.get_program())
        .args(program.get_args())
        .env(CHILD, &path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let [count, ..] = last_acknowledged(&*output.stdout);
    assert!(count > 10, "{text}");
    runtime().block_on(async {
        let store = open(&path, Limits::default());
        is_filled(&store, count).await;
        commit(&store, Txn::unfenced().put(key("c"), vec![0; 100_000])).await;
        store.close().await;
    });
}

/// A small file system in memory, gone with the test.
struct SmallDisk(Folder);

impl SmallDisk {
    fn new() -> Result<Self, String> {
        let folder = Folder::new("disk");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
            .arg(folder.join(""))
            .output()
            .map_err(|error| format!("mount: {error}"))?;
        if !mounted.status.success() {
            return Err(String::from_utf8_lossy(&mounted.stderr).trim().to_owned());
        }
        Ok(Self(folder))
    }

    fn grow(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-o", "remount,size=64m"]).arg(self.0.join(""));
        assert!(mount.status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let folder: OsString = self.0.join("").into();
        let unmounted = Command::new("umount").arg(folder).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "the disk is still mounted");
    }
}

#[test]
fn full_disk_loses_nothing_and_goes_on_when_there_is_room() {
    let disk = match SmallDisk::new() {
        Ok(disk) => disk,
        Err(error) => return needs::skip(&format!("a small file system: {error}")),
    };
    let path = disk.0.join("state");
    runtime().block_on(async {
        let store = open(&path, Limits::default());
        let (count, why) = fill(&store).await;
        assert!(count > 10, "{count} commits, then {why}");
        is_filled(&store, count).await;
        disk.grow();
        commit(&store, Txn::unfenced().put(key("c"), vec![0; 100_000])).await;
        is_filled(&store, count).await;
        store.close().await;
        let store = open(&path, Limits::default());
        is_filled(&store, count).await;
        assert_eq!(store.get(&key("c")).await.unwrap().entry.unwrap().value.len(), 100_000);
        store.close().await;
    });
}

#[test]
fn damaged_file_is_an_error_or_as_it_was() {
    let folder = Folder::new("damaged");
    let (good, bad) = (folder.join("good"), folder.join("bad"));
    let limits = Limits { history_max: 10, ..Limits::default() };
    let before = runtime().block_on(async {
        let store = open(&good, limits);
        for n in 0..60_u8 {
            let txn = Txn::unfenced().put(key(&format!("a/{}", n % 20)), vec![n; 700]);
            commit(&store, txn).await;
        }
        let page = everything(&store).await;
        store.close().await;
        page
    });
    let bytes = fs::read(&good).unwrap();
    let mut refused = 0;
    for round in 0..150 {
        let mut damaged = bytes.clone();
        let at = if round < 40 { round * 16 } else { fastrand::usize(..bytes.len()) };
        damaged[at] ^= 1 << fastrand::u8(..8);
        fs::write(&bad, &damaged).unwrap();
        match RedbStore::open(&bad, limits) {
            // Nothing is there, or nothing that counts.
            Ok(store) => runtime().block_on(async {
                assert_eq!(everything(&store).await, before, "byte {at}");
                store.close().await;
            }),
            Err(OpenError::Corrupt { .. } | OpenError::Format { .. }) => refused += 1,
            Err(OpenError::Io { .. } | OpenError::TooLarge { .. }) => refused += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(refused > 10, "{refused} of 150 were noticed");
    for length in [0, 1, 100, 4096, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&bad, &bytes[..length]).unwrap();
        let cut = RedbStore::open(&bad, limits).map(drop).unwrap_err();
        assert!(matches!(cut, OpenError::Corrupt { .. } | OpenError::Io { .. }), "{length}: {cut}");
        assert_eq!(fs::read(&bad).unwrap(), bytes[..length], "{length}: it is left as it is");
    }
    fs::write(&bad, "[orchestrator]\nname = 'a'\n".repeat(1000)).unwrap();
    let text = RedbStore::open(&bad, limits).map(drop).unwrap_err();
    assert!(text.to_string().contains("damaged or no store"), "{text}");
}

#[test]
fn file_of_a_newer_version_is_refused() {
    const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
    let folder = Folder::new("newer");
    let path = folder.join("state");
    runtime().block_on(open(&path, Limits::default()).close());
    let set = |name: &str, value: u64| {
        let database = Database::open(&path).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(META).unwrap().insert(name, value).unwrap();
        write.commit().unwrap();
    };
    set("format", 2);
    let refused = RedbStore::open(&path, Limits::default()).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Format { found: 2, known: 1, .. }), "{refused}");
    set("format", 1);
    set("revision", 5);
    let refused = RedbStore::open(&path, Limits::default()).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Corrupt { .. }), "{refused}");
    set("revision", 0);
    runtime().block_on(open(&path, Limits::default()).close());
}
