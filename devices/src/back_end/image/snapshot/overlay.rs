//! Empty qcow2 images over another one, and what the head of one says.

use super::SnapshotError;
use super::head::Head;
use crate::back_end::image::engine::runtime;
use imago::StorageOpenOptions;
use imago::file::File as PlainFile;
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatCreateBuilder, FormatDriverBuilder};
use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// As QEMU and imago have them unless they are told otherwise.
pub(super) const CLUSTER_BYTES: usize = 64 << 10;

/// A file that was not there. What is there already is somebody else's.
pub(super) fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    fchmod(&file, Mode::from_raw_mode(mode & 0o777 | 0o200))?;
    Ok(file)
}

/// Bytes of the clusters of a qcow2 image. What lies over it has as large ones: each can then be put there as a whole, by a merge.
pub(super) fn cluster_of(file: &File) -> io::Result<usize> {
    Ok(Head::read(file)?.map_or(CLUSTER_BYTES, |head| head.cluster_bytes()))
}

/// An empty overlay of so many bytes at `path`, with such clusters, over the qcow2 image `below`, which will be beside it. It is durable,
/// and belongs to whom that belongs to.
pub(super) fn make(
    path: &Path,
    below: &Path,
    (bytes, cluster): (u64, usize),
    (about, mode): (&Metadata, u32),
) -> Result<File, SnapshotError> {
    let failed = SnapshotError::of("make", path);
    let name = below.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| failed(io::Error::other("its name is not UTF-8")))?;
    // QEMU takes what is before a colon for a protocol.
    let name = if name.contains(':') { format!("./{name}") } else { name.to_owned() };
    let file = new_file(path, mode).map_err(&failed)?;
    let owner = (Uid::from_raw(about.uid()), Gid::from_raw(about.gid()));
    // Who may not give files away keeps it; the VM's user can write it then as well.
    let _ = fchown(&file, Some(owner.0), Some(owner.1));
    create(&file, path, (name, cluster), bytes).map_err(&failed)?;
    file.sync_all().map_err(&failed)?;
    Ok(file)
}

fn create(
    file: &File,
    path: &Path,
    (below, cluster): (String, usize),
    bytes: u64,
) -> io::Result<()> {
    let storage = storage(file, path, true)?;
    let builder = Qcow2::<PlainFile>::create_builder(storage).size(bytes).cluster_size(cluster);
    runtime()?.block_on(builder.backing(below, "qcow2".to_owned()).create())
}

pub(super) fn storage(file: &File, path: &Path, writable: bool) -> io::Result<PlainFile> {
    let options = StorageOpenOptions::new().filename(path).write(writable).direct(false);
    PlainFile::from_open_file(file.try_clone()?, options)
}

/// The image that the head of a qcow2 image names, which is beside `path`.
pub(super) fn below(file: &File, path: &Path) -> io::Result<Option<PathBuf>> {
    let storage = storage(file, path, false)?;
    let open = async {
        let builder = Qcow2::<PlainFile>::builder(storage).backing(None).data_file(None);
        builder.open(DenyImplicitOpenGate::default()).await
    };
    let image = runtime()?.block_on(open)?;
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    Ok(image.implicit_backing_file().map(|name| folder.join(name)))
}
