//! A file system that is full: a real one, of one MiB.

use super::{ask, done, open_again, submit};
use crate::back_end::image::{ImageDisk, ImageFormat, ImageOptions, OnFull};
use crate::back_end::{Disk, DiskReply, DiskRequest};
use std::env;
use std::fs::{self, File, remove_file};
use std::io::Write;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// A small file system with an image of 4 MiB on it, and not much room. Goes away with its test.
pub(in super::super) struct Small(PathBuf);

impl Small {
    pub(in super::super) fn mount(name: &str) -> Option<Self> {
        let path = env::temp_dir().join(format!("tessera-full-{}-{name}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        let small = Self(path);
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(&small.0)
            .output();
        if !mount.is_ok_and(|done| done.status.success()) {
            needs::skip("mount -t tmpfs fails here (it needs root)");
            return None;
        }
        File::create(small.image()).and_then(|file| file.set_len(4 << 20)).expect("an image");
        let mut filler = File::create(small.filler()).expect("a filler");
        while filler.write_all(&[1; 4096]).is_ok() {}
        Some(small)
    }

    pub(in super::super) fn image(&self) -> PathBuf {
        self.0.join("image")
    }

    pub(in super::super) fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // It was not mounted if this fails.
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write() -> DiskRequest {
    DiskRequest::Write { sector: 8, data: vec![7; 4096] }
}

#[test]
fn full_disk_is_an_error_or_waits_for_room_as_chosen() {
    for ring in [false, true] {
        let Some(small) = Small::mount(if ring { "ring" } else { "threads" }) else { return };
        let options = |on_full| {
            let options = ImageOptions::new(small.image(), ImageFormat::Raw);
            ImageOptions { ring, on_full, ..options }
        };
        let disk = ImageDisk::open(&options(OnFull::Report)).expect("an image");
        assert_eq!(ask(&disk, write()), DiskReply::Failed);
        drop(disk);

        let disk = open_again(&options(OnFull::Pause));
        let answer = submit(&disk, write());
        let short = Duration::from_millis(500);
        assert_eq!(answer.recv_timeout(short), Err(RecvTimeoutError::Timeout));
        // Others are served meanwhile.
        let read = DiskRequest::Read { sector: 0, bytes: 512 };
        assert_eq!(ask(&disk, read), DiskReply::Done(vec![0; 512]));
        remove_file(small.filler()).expect("the filler");
        assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(done()));
        let read = DiskRequest::Read { sector: 8, bytes: 4096 };
        assert_eq!(ask(&disk, read), DiskReply::Done(vec![7; 4096]));
    }
}

/// A device's reset: what it waits for must not be written once the guest goes on.
#[test]
fn request_that_waits_for_room_fails_when_it_may_not_wait_any_more() {
    for ring in [false, true] {
        let name = if ring { "reset-ring" } else { "reset-threads" };
        let Some(small) = Small::mount(name) else { return };
        let options = ImageOptions::new(small.image(), ImageFormat::Raw);
        let options = ImageOptions { ring, on_full: OnFull::Pause, ..options };
        let disk = ImageDisk::open(&options).expect("an image");
        let old = submit(&disk, write());
        // It waits, or will.
        disk.may_wait(false);
        assert_eq!(old.recv(), Ok(DiskReply::Failed), "ring {ring}");
        assert_eq!(ask(&disk, write()), DiskReply::Failed, "ring {ring}");

        disk.may_wait(true);
        let new = DiskRequest::Write { sector: 8, data: vec![2; 4096] };
        let new = submit(&disk, new);
        remove_file(small.filler()).expect("the filler");
        assert_eq!(new.recv(), Ok(done()), "ring {ring}");
        assert_eq!(ask(&disk, DiskRequest::Flush), done());
        let read = DiskRequest::Read { sector: 8, bytes: 4096 };
        assert_eq!(ask(&disk, read), DiskReply::Done(vec![2; 4096]));
    }
}
