//! Lines on standard error: which are wanted, and whose they are.

use crate::support::{Companion, End, Folder, Process, can_share, has_kvm, kernel_of};
use serde_json::Value;

const LOCAL: &str = "local,cpus=1,memory=64M";
const NAME: &str = "vms/000000000000000000000000deadbeef/slices/7";

/// A guest that reads a port that nobody has, for ever.
fn idle() -> Vec<u8> {
    kernel_of(&[0xe4, 0x80, 0xeb, 0xfc])
}

/// Each line is an object that says when, how grave and what.
#[track_caller]
fn objects(lines: &[String]) -> Vec<Value> {
    let parse = |line: &String| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        let has = |name: &str| object[name].is_string();
        assert!(has("timestamp") && has("level"), "{line}");
        assert!(object["fields"]["message"].is_string(), "{line}");
        object
    };
    lines.iter().map(parse).collect()
}

/// The VM that all of these lines name, which are of this slice; earlier ones may name none.
#[track_caller]
fn vm_of(end: &End, slice: u16) -> String {
    let objects = objects(&end.said);
    let mut vm = None;
    for object in &objects {
        let keys = object.as_object().unwrap();
        assert!(keys.contains_key("vm") && keys.contains_key("slice"), "{object}");
        // What is known stays.
        match (&vm, object["vm"].as_str()) {
            (None, Some(named)) => vm = Some(named.to_owned()),
            (known, named) => assert_eq!(known.as_deref(), named, "{object}"),
        }
        if !object["slice"].is_null() {
            assert_eq!(object["slice"], slice, "{object}");
        }
    }
    let last = objects.last().unwrap_or_else(|| panic!("{end:?}"));
    assert_eq!(last["slice"], slice, "{last}");
    vm.unwrap_or_else(|| panic!("{end:?}"))
}

#[test]
fn filter_that_cannot_be_followed_is_refused() {
    let folder = Folder::new();
    for (filter, named) in [
        ("verbose", "\"verbose\""),
        ("info,dsm", "\"dsm\""),
        ("dsm=loud", "TESSERA_LOG"),
        ("[vm{", "TESSERA_LOG"),
    ] {
        let mut command = folder.tessera(&folder.bootstrap(&[LOCAL], &[]));

        let line = folder.must_refuse(command.env("TESSERA_LOG", filter));
        assert!(line.contains("TESSERA_LOG") && line.contains(named), "{filter}: {line}");
    }
}

#[test]
fn name_that_is_none_is_refused() {
    let folder = Folder::new();
    let mut command = folder.tessera(&folder.bootstrap(&[LOCAL], &[]));

    let line = folder.must_refuse(command.env("TESSERA_NAME", "vms/7"));
    assert!(line.contains("TESSERA_NAME") && line.contains("vms/7"), "{line}");
}

/// Also of a command line that cannot be read, and with the form from the environment.
#[test]
fn refusals_are_json_where_that_is_wanted() {
    let folder = Folder::new();
    let bootstrap = folder.bootstrap(&[LOCAL], &["--kernel", "nowhere"]);
    let said = |before: &[&str], after: &[&str], form: Option<&str>| {
        let words = [before, &bootstrap, after].concat();
        let mut command = folder.tessera(&words);
        command.envs(form.map(|form| ("TESSERA_LOG_FORMAT", form)));
        let end = Process::start(&mut command).end();
        assert_eq!(end.status, Some(2), "{end:?}");
        end.said
    };
    for (before, after, form) in [
        (&["--log-format", "json"][..], &[][..], None),
        (&[], &["--log-format=json"], None),
        (&[], &["--log-format=json"], Some("text")),
        (&[], &["--no-such-option"], Some("json")),
        (&["--log-format=json"], &["--no-such-option"], None),
    ] {
        let lines = said(before, after, form);
        let [object] = &objects(&lines)[..] else { panic!("{lines:?}") };
        assert_eq!(object["level"], "ERROR", "{object}");
    }
    let wrong = said(&[], &["--log-format=xml"], None);
    assert!(wrong[0].starts_with("tessera: ") && wrong[0].contains("xml"), "{wrong:?}");
    let plain = said(&[], &[], None);
    assert!(plain[0].starts_with("tessera: "), "{plain:?}");
}

#[test]
fn kvm_lines_of_slices_name_their_vm_and_slice() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.file("guest", &idle());
    let words = [&Companion::arguments()[..], &["--log-format", "json"]].concat();
    let companion = Process::start(&mut folder.tessera(&words));
    let waits: Value = serde_json::from_str(&companion.line_with("waiting for")).unwrap();
    assert!(waits["vm"].is_null() && waits["slice"].is_null(), "{waits}");
    let address = waits["fields"]["message"].as_str().unwrap().rsplit(' ').next().unwrap();
    let slices = [LOCAL, &format!("{address},cpus=1,memory=64M")];
    let words = folder.bootstrap(&slices, &["--kernel", "guest", "--limit", "1"]);
    let words = [&["--log-format=json"], &words[..]].concat();
    let end = Process::start(&mut folder.tessera(&words)).end();

    assert_eq!(end.status, Some(7), "{end:?}");
    let vm = vm_of(&end, 0);
    assert!(vm.len() == 32 && vm.bytes().all(|byte| byte.is_ascii_hexdigit()), "{vm}");
    assert_eq!(vm_of(&companion.end(), 1), vm);
}

/// By the name of the agent that has started it, from the first line to that of a panic.
#[test]
fn kvm_lines_of_a_slice_with_a_name_have_that_one() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("guest", &idle());
    let more = ["--kernel", "guest", "--test-panic", "vcpu0", "--log-format=json"];
    let mut command = folder.tessera(&folder.bootstrap(&[LOCAL], &more));

    let end = Process::start(command.env("TESSERA_NAME", NAME)).end();
    assert_eq!(end.signal, Some(9), "{end:?}");
    assert_eq!(vm_of(&end, 7), "000000000000000000000000deadbeef");
    let all = objects(&end.said);
    let panic = all.last().unwrap();
    assert!(panic["fields"]["message"].as_str().unwrap().contains("panicked"), "{panic}");
    assert!(all.iter().all(|object| !object["vm"].is_null()), "{all:?}");
}

/// As text, the VM and the slice are behind the words; and a filter shows more or less.
#[test]
fn kvm_text_names_vm_and_slice_behind_its_words() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.file("guest", &idle());
    let companion = Companion::start(&folder);
    let slices = [LOCAL, &companion.slice(1, "64M")];
    let words = folder.bootstrap(&slices, &["--kernel", "guest", "--limit", "1"]);
    let vm = Process::start(&mut folder.tessera(&words));

    let line = vm.line_with("frames between slices go over tcp");
    let (words, name) = line.split_once(" vm=").unwrap_or_else(|| panic!("{line}"));
    assert!(words.ends_with("over tcp") && name.ends_with(" slice=0"), "{line}");
    assert_eq!(vm.end().status, Some(7));
    let line = companion.process.line_with("frames between slices go over tcp");
    assert!(line.ends_with(&name.replace(" slice=0", " slice=1")), "{line}");

    let quiet = folder.bootstrap(&[LOCAL], &["--kernel", "guest", "--limit", "1", "--sample", "1"]);
    let mut command = folder.tessera(&quiet);
    let end = Process::start(command.env("TESSERA_LOG", "off")).end();
    assert!(end.status == Some(7) && end.said.len() == 1 && end.log.is_empty(), "{end:?}");
}
