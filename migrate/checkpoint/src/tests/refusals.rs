//! What is not written, listed or deleted.

use super::support::*;
use crate::{
    Checkpoint, CheckpointError, Compression, Contents, FRAMES_END, PAGE_BYTES, PartSummary,
    PartWriter, State, delete, export, list,
};
use std::iter::once;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs};
use wire::SliceId;

#[test]
fn nothing_is_overwritten() {
    let parent = Folder::new();
    let folder = parent.join("one");
    let parts = write_parts(&folder, 1);
    let create = |slice| PartWriter::create(&folder, &head(1, slice), Compression::None);
    assert!(matches!(create(0), Err(CheckpointError::Io { what: "create", .. })));
    Checkpoint::commit(&folder, &contents(1, None, parts.clone()), None).unwrap();
    assert!(matches!(create(1), Err(CheckpointError::Exists { .. })));
    let again = Checkpoint::commit(&folder, &contents(1, None, parts), None);
    assert!(matches!(again, Err(CheckpointError::Exists { .. })));
    write(&parent.join("other"), 2, None, None);
    let onto = export(&folder, &parent.join("other"), None, &mut |_, _| ());
    assert!(matches!(onto, Err(CheckpointError::Exists { .. })));
}

#[test]
fn only_the_owner_may_read() {
    let parent = Folder::new();
    write(&parent.join("one"), 1, None, None);
    for file in FILES {
        let mode = fs::metadata(parent.join("one").join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let mode = fs::metadata(parent.join("one")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn frame_is_written_once() {
    let parent = Folder::new();
    let mut writer = PartWriter::create(&parent.0, &head(1, 0), Compression::Zstd).unwrap();
    writer.pages(4, &[page(1), page(0)].concat()).unwrap();
    writer.zeros(8..10).unwrap();
    for frame in [4, 5, 8] {
        assert!(matches!(writer.pages(frame, &page(1)), Err(CheckpointError::Twice { .. })));
        assert!(matches!(writer.zeros(frame..frame + 1), Err(CheckpointError::Twice { .. })));
    }
    assert!(matches!(writer.zeros(0..100), Err(CheckpointError::Twice { .. })));
    assert!(matches!(writer.pages(11, &[1; PAGE_BYTES + 1]), Err(CheckpointError::Frames { .. })));
    assert!(matches!(
        writer.zeros(FRAMES_END - 1..FRAMES_END + 1),
        Err(CheckpointError::Frames { .. })
    ));
    assert!(matches!(writer.pages(u64::MAX, &page(1)), Err(CheckpointError::Frames { .. })));
    writer.pages(FRAMES_END - 1, &page(9)).unwrap();
    writer.zeros(20..20).unwrap();
    let summary = writer.finish().unwrap();
    assert_eq!((summary.pages, summary.zero_pages), (2, 3));
    // A frame that can be, and is none of this VM.
    let error = Checkpoint::commit(&parent.0, &contents(1, None, vec![summary]), None).unwrap_err();
    assert!(error.to_string().contains("is no memory of the VM"), "{error}");
}

#[test]
fn sections_have_names_of_their_own() {
    let parent = Folder::new();
    let mut writer = PartWriter::create(&parent.0, &head(1, 0), Compression::Zstd).unwrap();
    writer.section("slice", b"1").unwrap();
    for name in ["slice", "", "Slice", "a b", "../x", &"x".repeat(33), "ü"] {
        assert!(
            matches!(writer.section(name, b"2"), Err(CheckpointError::Section { .. })),
            "{name}"
        );
    }
    for number in 1..64 {
        writer.section(&format!("more-{number}"), b"").unwrap();
    }
    assert!(writer.section("one-too-many", b"").unwrap_err().to_string().contains("as many"));
}

#[test]
fn summaries_of_other_hosts_are_checked() {
    let parent = Folder::new();
    let good = write_parts(&parent.0, 1).remove(0);
    good.check().unwrap();
    let digest = crate::Digest([0; 32]);
    let bad = [
        PartSummary { file: "../../etc/passwd".into(), ..good.clone() },
        PartSummary { file: "part-1".into(), ..good.clone() },
        PartSummary { slice: SliceId(64), file: "part-64".into(), ..good.clone() },
        PartSummary { bytes: 127, ..good.clone() },
        PartSummary { pages: u64::MAX, ..good.clone() },
    ];
    for summary in bad {
        assert!(summary.check().is_err(), "{summary:?}");
        let refused = Checkpoint::commit(&parent.0, &contents(1, None, vec![summary]), None);
        assert!(matches!(refused, Err(CheckpointError::Contents(_))));
    }
    for summary in [
        PartSummary { digest, ..good.clone() },
        PartSummary { bytes: good.bytes + 1, ..good.clone() },
        PartSummary { pages: good.pages + 1, ..good.clone() },
    ] {
        let refused = Checkpoint::commit(&parent.0, &contents(1, None, vec![summary]), None);
        assert!(matches!(refused, Err(CheckpointError::OtherPart { .. })));
    }
}

#[test]
fn slices_that_differ_about_a_page_are_found() {
    let parent = Folder::new();
    let folder = parent.join("one");
    let part = |slice: u16, content| {
        let mut writer = PartWriter::create(&folder, &head(1, slice), Compression::Zstd).unwrap();
        writer.pages(3, &page(content)).unwrap();
        writer.finish().unwrap()
    };
    let parts = vec![part(0, 8), part(1, 9)];
    Checkpoint::commit(&folder, &contents(1, None, parts), None).unwrap();
    let checkpoint = Checkpoint::open(&folder, None).unwrap();
    let error = checkpoint.verify(&mut |_, _| ()).unwrap_err();
    assert_eq!(error.to_string(), "frame 0x3 differs between slice0 and slice1");
}

/// They take no bytes, so that a small file may name more of them than anybody could go through.
#[test]
fn zeros_that_slices_agree_on_are_not_compared_one_by_one() {
    const FRAMES: u64 = 1 << 36;
    let parent = Folder::new();
    let folder = parent.join("one");
    let part = |slice: u16| {
        let mut writer = PartWriter::create(&folder, &head(1, slice), Compression::Zstd).unwrap();
        writer.zeros(0..FRAMES).unwrap();
        writer.finish().unwrap()
    };
    let parts = vec![part(0), part(1)];
    let contents = Contents { frames: once(0..FRAMES).collect(), ..contents(1, None, parts) };
    Checkpoint::commit(&folder, &contents, None).unwrap();
    let checkpoint = Checkpoint::open(&folder, None).unwrap();
    assert_eq!(checkpoint.verify(&mut |_, _| ()).unwrap().compared, FRAMES);
}

#[test]
fn progress_ends_at_all_bytes() {
    let parent = Folder::new();
    let digest = write(&parent.join("full"), 1, None, None);
    write(&parent.join("next"), 2, base("full", digest), None);
    let checkpoint = Checkpoint::open(&parent.join("next"), None).unwrap();
    let (mut last, mut before) = ((0, 1), 0);
    let verified = checkpoint.verify(&mut |bytes, of| {
        assert!(bytes >= before);
        before = bytes;
        last = (bytes, of);
    });
    let verified = verified.unwrap();
    let on_disk = |name: &str| -> u64 {
        FILES.iter().map(|file| fs::metadata(parent.join(name).join(file)).unwrap().len()).sum()
    };
    assert_eq!(last, (on_disk("full") + on_disk("next"), checkpoint.statistics().bytes()));
    assert_eq!((verified.checkpoints, verified.files, verified.bytes), (2, 6, last.0));
    assert_eq!((verified.chunks, verified.compared), (4, 2));
}

#[test]
fn folders_of_something_else_are_left_alone() {
    let parent = Folder::new();
    fs::create_dir(parent.join("photos")).unwrap();
    assert!(matches!(delete(&parent.join("photos")), Err(CheckpointError::NoCheckpoint { .. })));
    fs::write(parent.join("photos").join("cat.jpg"), "").unwrap();
    fs::write(parent.join("part-0"), "").unwrap();
    for name in ["photos", "part-0", "nowhere"] {
        assert!(delete(&parent.join(name)).is_err(), "{name}");
    }
    assert_eq!(list(&parent.0).unwrap(), []);
    write(&parent.join("one"), 1, None, None);
    fs::write(parent.join("one").join("note"), "").unwrap();
    let error = delete(&parent.join("one")).unwrap_err();
    assert!(error.to_string().contains("\"note\""), "{error}");
    let listed = list(&parent.0).unwrap();
    assert!(matches!(&listed[..], [one] if matches!(one.state, State::Complete(_))));
    assert!(parent.join("photos").join("cat.jpg").exists());
}

/// As on a full disk: no file may have a byte. That is so for a whole process, so this test starts itself.
#[test]
fn part_that_cannot_be_begun_leaves_nothing() {
    const FOLDER: &str = "TESSERA_TEST_FOLDER_OF_NO_BYTES";
    const NAME: &str = "tests::refusals::part_that_cannot_be_begun_leaves_nothing";
    if let Some(folder) = env::var_os(FOLDER) {
        let refused = PartWriter::create(Path::new(&folder), &head(1, 0), Compression::None);
        assert!(matches!(refused, Err(CheckpointError::Io { .. })), "{refused:?}");
        return;
    }
    let parent = Folder::new();
    let folder = parent.join("one");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
    shell.arg(env::current_exe().unwrap()).args(["--exact", NAME]).env(FOLDER, &folder);
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert!(!folder.exists());
}
