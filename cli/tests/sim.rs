//! `tessera sim`, seen from outside: the real binary on small pools and traces.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, id};
use std::sync::atomic::{AtomicU32, Ordering};

/// For traces; gone in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tessera-sim-cli-{}-{number}", id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.arg("sim").args(arguments).current_dir(&self.0).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn trace_is_imported_written_and_run() {
    let folder = Folder::new();
    // Two VMs of 6 cores on two hosts of 8, and one of 4 that is split until one of these ends.
    let row = |created: u32, deleted: u32, cores: u32| {
        format!("vm,sub,dep,{created},{deleted},1,1,1,Unknown,{cores},1.75\n")
    };
    let rows = [row(0, 7200, 6), row(0, 36_000, 6), row(60, 36_000, 4)].concat();
    fs::write(folder.0.join("vmtable.csv"), rows).unwrap();

    let imported = folder.run(&["import", "azure2017", "vmtable.csv", "--out", "trace.jsonl"]);
    assert!(imported.status.success(), "{}", text(&imported.stderr));
    let said = text(&imported.stdout);
    assert!(said.contains("3 VMs of 16 cores until hour 10; 2 outlive the trace"), "{said}");

    let pool = ["--hosts", "2", "--cores", "8", "--gib", "64", "--warm-up", "0"];
    let policy = ["--policy", "fragbff-min-nodes", "--trace", "trace.jsonl", "--json"];
    let run = folder.run(&[&["run"], &policy[..], &pool[..]].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    let figures: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(figures["vms"], 3.0);
    assert_eq!(figures["slices_most"], 2.0);
    assert_eq!(figures["broken"], 0.0);
}

#[test]
fn bad_row_is_refused_with_its_number() {
    let folder = Folder::new();
    fs::write(folder.0.join("bad.jsonl"), "\n{\"at_s\":0}\n").unwrap();

    let refused = folder.run(&["import", "jsonl", "bad.jsonl"]);

    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(said.contains("bad.jsonl: line 2: missing field"), "{said}");
}

#[test]
fn policies_are_compared_and_the_table_is_written() {
    let folder = Folder::new();
    let scenario = ["--hosts", "6", "--days", "2", "--warm-up", "1", "--seeds", "1"];
    let names = ["compare", "--policies", "bff,ours", "--out", "out"];

    let run = folder.run(&[&names[..], &scenario[..]].concat());

    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("fluid (bound)"), "{}", text(&run.stdout));
    for name in ["scheduler.json", "scheduler.txt", "scheduler.svg", "scheduler-frontier.svg"] {
        assert!(folder.0.join("out").join(name).exists(), "{name}");
    }
    let wrong = folder.run(&["run", "--policy", "best"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("there is no policy \"best\""), "{}", text(&wrong.stderr));
}
