//! `tessera checkpoint`, seen from outside: the real binary on checkpoints that an earlier program has written.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, id};
use std::sync::atomic::{AtomicU32, Ordering};

/// Copies of the golden files, their secret and that of another VM.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tessera-checkpoint-cli-{}-{number}", id()));
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrate/checkpoint/golden/v1");
        for name in ["full", "increment"] {
            fs::create_dir_all(path.join(name)).unwrap();
            for file in ["manifest", "part-0", "part-1"] {
                fs::copy(golden.join(name).join(file), path.join(name).join(file)).unwrap();
            }
        }
        for (name, secret) in
            [("vm.key", "golden secret of a virtual machine"), ("other.key", "of another machine")]
        {
            fs::write(path.join(name), secret).unwrap();
            fs::set_permissions(path.join(name), Permissions::from_mode(0o600)).unwrap();
        }
        Self(path)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.arg("checkpoint").args(arguments).current_dir(&self.0).output().unwrap()
    }

    /// What is printed by a verb that does what it is asked.
    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// The one line of a verb that refuses.
    fn refuse(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
        error
    }

    /// Changes a byte of a page of the full checkpoint.
    fn damage(&self) {
        let path = self.0.join("full").join("part-1");
        let mut bytes = fs::read(&path).unwrap();
        bytes[3000] ^= 1;
        fs::write(path, bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn checkpoints_are_listed_and_shown() {
    let folder = Folder::new();
    fs::create_dir(folder.0.join("half")).unwrap();
    fs::copy(folder.0.join("full/part-0"), folder.0.join("half/part-0")).unwrap();
    let listed = folder.json(&["list", "."]);
    let states: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["complete", "unfinished", "complete"]);
    assert_eq!(listed[2]["base"], "full");
    assert!(folder.say(&["list", "."]).contains("unfinished"));

    let shown = folder.json(&["show", "increment"]);
    assert_eq!((&shown["cut"], &shown["authenticity"]), (&8.into(), &"not checked".into()));
    assert_eq!(shown["chain"][1]["name"], "full");
    assert_eq!(shown["chain"][1]["pages_in_several_parts"], 1);
    let text = folder.say(&["show", "full"]);
    assert!(text.contains("slice (24 bytes)"), "{text}");
}

#[test]
fn every_byte_is_verified() {
    let folder = Folder::new();
    let verified = folder.json(&["verify", "increment", "--secret-file", "vm.key"]);
    assert_eq!((&verified["checkpoints"], &verified["files"]), (&2.into(), &6.into()));
    assert_eq!(verified["authenticity"], "checked");
    assert!(folder.say(&["verify", "full"]).contains("was not checked"));
    let line = folder.refuse(&["verify", "full", "--secret-file", "other.key"]);
    assert!(line.contains("is not authenticated by this secret"), "{line}");

    folder.damage();
    folder.say(&["show", "full"]);
    for name in ["full", "increment"] {
        let line = folder.refuse(&["verify", name]);
        assert!(line.contains("full/part-1 is damaged: the digest of the chunk"), "{line}");
    }
}

#[test]
fn increment_is_merged_with_its_base_which_can_go_then() {
    let folder = Folder::new();
    let line = folder.refuse(&["export", "increment", "merged"]);
    let told = "increment/manifest is authenticated: give the secret of its VM (--secret-file)";
    assert!(line.contains(told), "{line}");
    let exported = folder.json(&["export", "increment", "merged", "--secret-file", "vm.key"]);
    let shown = folder.json(&["show", "merged"]);
    assert_eq!((&shown["base"], &shown["digest"]), (&Value::Null, &exported["digest"]));
    assert_eq!(shown["chain"][0]["pages"], 5);
    let line = folder.refuse(&["export", "full", "merged", "--secret-file", "vm.key"]);
    assert!(line.contains("merged exists already"), "{line}");

    let line = folder.refuse(&["delete", "full"]);
    assert!(line.contains("increment is an increment of it"), "{line}");
    folder.say(&["delete", "increment"]);
    assert_eq!(folder.json(&["delete", "full"])["deleted"], true);
    folder.say(&["verify", "merged", "--secret-file", "vm.key"]);
    let listed = folder.json(&["list", "."]);
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let folder = Folder::new();
    fs::remove_file(folder.0.join("full/manifest")).unwrap();
    for (arguments, cause) in [
        (&["show", "nowhere"][..], "open nowhere: No such file or directory"),
        (&["show", "vm.key"], "vm.key is no folder of a checkpoint: it is a file"),
        (&["show", "full"], "full is no checkpoint: it has no manifest"),
        (&["verify", "increment"], "it has no manifest"),
        (&["verify", "increment", "--secret-file", "nothing"], "load the VM's secret"),
        (&["delete", "."], "is no folder of a checkpoint: it has a file"),
        (&["list", "nowhere"], "read the folder nowhere"),
    ] {
        let line = folder.refuse(arguments);
        assert!(line.contains(cause), "{arguments:?}: {line}");
    }
    // What is left of a base can go once its increment has.
    folder.refuse(&["delete", "full"]);
    folder.say(&["delete", "increment"]);
    folder.say(&["delete", "full"]);
}
