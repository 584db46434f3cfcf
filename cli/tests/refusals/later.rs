//! What an agent or an orchestrator cannot do now and may be able to do a while later has an exit status of its own: the units of the packages
//! try again then.

use crate::support::Folder;
use std::process::Command;

/// 192.0.2.0/24 is for documentation (RFC 5737): no host has such an address.
const NOT_HERE: &str = "192.0.2.77:1";

/// The exit status, and what was said.
fn end(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn agent_whose_host_has_no_such_address_yet_may_begin_later() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).display().to_string();
    let (state, socket, images) = (path("state"), path("socket"), path("images"));
    let agent = |more: &[&str]| {
        let mut words = vec!["agent", "--slice-address=127.0.0.1", "--keep-cores=0"];
        words.extend(["--keep-memory=0", "--state", &state, "--socket", &socket]);
        words.extend(["--images", &images, "--checkpoints", &images]);
        words.extend(more);
        end(folder.tessera(&words))
    };
    // Where disks are may be mounted later.
    let (status, said) = agent(&["--name=h1"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("as the folder of images"), "{said}");
    std::fs::create_dir(&images).unwrap();
    let (status, said) = agent(&["--name=h1", "--metrics", NOT_HERE]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains(NOT_HERE), "{said}");
    for (address, expected) in [("192.0.2.77", 1), ("0.0.0.0", 2)] {
        let address = format!("--slice-address={address}");
        let words = ["agent", &address, "--name=h1", "--state", &state, "--socket", &socket];
        let folders = ["--images", &images, "--checkpoints", &images];
        let (status, said) = end(folder.tessera(&[&words[..], &folders].concat()));
        assert_eq!(status, Some(expected), "{address}: {said}");
    }
    let (status, said) = agent(&["--name=H 1"]);
    assert_eq!(status, Some(2), "no attempt makes that a name: {said}");
    assert!(said.contains("is no name of a host"), "{said}");
}

#[test]
fn orchestrator_whose_store_is_in_use_may_begin_later() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).display().to_string();
    let (socket, file) = (path("socket"), path("cluster.redb"));
    let store = format!("redb:{file}");
    let orchestrator = |more: &[&str]| {
        let words = ["orchestrator", "--store", &store, "--socket", &socket];
        end(folder.tessera(&[&words[..], more].concat()))
    };
    let (status, said) = orchestrator(&["--metrics", NOT_HERE]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains(NOT_HERE), "{said}");
    std::fs::write(&file, "no store").unwrap();
    let held = std::fs::File::open(&file).unwrap();
    held.lock().unwrap();
    let (status, said) = orchestrator(&[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("in use by another orchestrator"), "{said}");
    held.unlock().unwrap();
    let (status, said) = orchestrator(&[]);
    assert_eq!(status, Some(2), "somebody has to see to it: {said}");
}
