//! Writes cpio archives in the `newc` format, which Linux takes as an initramfs
//! (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive being written. Folders on the way to a file are added by themselves.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// An archive with `/dev/console`, so that an init has its standard streams from the start.
    pub(crate) fn new() -> Self {
        let mut archive = Self::default();
        archive.folder("dev");
        archive.entry("dev/console", CHARACTER_DEVICE, (5, 1), &[]);
        archive
    }

    /// Adds a folder and those above it; a folder that is there already is left alone.
    pub(crate) fn folder(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends.collect::<Vec<_>>() {
            if self.folders.insert(path[..end].to_owned()) {
                self.entry(&path[..end], FOLDER, (0, 0), &[]);
            }
        }
    }

    /// Adds a file with its permission bits. `path` has no leading slash.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
        self.entry(path, FILE | permissions, (0, 0), content);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK, (0, 0), target.as_bytes());
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("files of an initramfs are below 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("a path is short");
        let fields = [
            self.entries, // inode
            mode,
            0, // user
            0, // group
            1, // links
            0, // time: the same content gives the same archive
            size,
            0,
            0, // device the archive was made on
            device.0,
            device.1,
            name_size,
            0, // checksum, unused in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_in_nested_folder_brings_its_folders_once() {
        let mut archive = Archive::default();

        archive.file("a/b/one", 0o644, b"1");
        archive.file("a/b/two", 0o755, b"22");

        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 5, "a, a/b, two files and the trailer");
        assert_eq!(bytes.len() % 4, 0);
    }
}
