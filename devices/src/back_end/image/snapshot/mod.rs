//! The state of a disk at one moment, kept while the disk goes on: what QEMU calls an external snapshot.
//!
//! ```text
//!   freeze     PATH: the image                    PATH: the image                PATH: overlay
//!                               --make, fsync-->  NEXT: overlay            -->   PATH.NAME: the image, read-only
//!                                       --link PATH as PATH.NAME, fsync folder, rename overlay to PATH, fsync folder
//!
//!   revert     PATH: overlay A                                                   PATH: overlay B, empty
//!              PATH.NAME: the image  --make B, link PATH as .abandoned-G, -->    PATH.NAME: the image
//!                                      fsync folder, rename B to PATH, fsync    PATH.abandoned-G: overlay A
//! ```
//! NEXT is `PATH.tessera-next-` and 16 drawn digits: nobody has a file of that name, so nothing is in its place.
//! Between any two steps PATH is there, and is the image or an overlay of what is there: after a crash it opens as it is. A file
//! that somebody has open stays the same file, so a process of a former generation writes into what was abandoned.
//! Nothing that a user may need is ever removed, but for the oldest of more than a few files that were abandoned (`users.rs`).
//!
//! Before a revert there is [`hold`]: what can be refused is refused by that, and no file has changed then.
//!
//! A raw image cannot become an overlay, as its user would open it as raw. It is cloned ([`How::Clone`]) where the file system
//! can share blocks (`FICLONE`), and refused elsewhere. What nobody writes is its own state ([`How::Unchanged`]).
//!
//! **States that no checkpoint needs** are *released*, and then merged with the one above or removed ([`tidy`](tidy())), while the VM runs.
//!
//! **A clone** is another VM that goes on from the same state: its image is another overlay, `IMAGE.clone-NAME`, over it. That state stays for as long as
//! the clone's image lies over it, whoever deletes the checkpoint.
//!
//! **Names.** An overlay names its state without a folder, so that the folder can be moved. An image may name its own states
//! (`own.rs` beside this folder) without being trusted with other files.

mod chain;
mod give_up;
mod head;
mod hold;
mod marks;
mod merge;
mod overlay;
mod revert;
mod state;
mod tidy;
mod users;

#[cfg(test)]
mod tests;

pub use super::own::IMAGES_MAX;
pub use chain::{follow, root};
pub use give_up::{Claim, check_owner, give_up};
pub use hold::{Held, hold};
pub use marks::{is_released, release};
pub use revert::{Reverted, revert, verify};
pub use state::{Contents, DiskState, How};
pub use tidy::{Tidied, tidy, tidy_unused};

use super::own::{clone_of, origin};
use super::record::{GenerationRecord, RECORD_SUFFIX, RecordError, sync_folder};
use super::{ImageError, ImageFormat, ImageOptions, Writer, file};
use crate::back_end::sample::SampleError;
use crate::fence::{Fence, Standing};
use rustix::fs::ioctl_ficlone;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Longest name of a state.
const NAME_BYTES_MAX: usize = 64;
/// What the name of a file that is being made has more than that of its image, before digits that are drawn.
const NEXT: &str = "tessera-next-";
const NEXT_DIGITS: usize = 16;

/// Why a disk has not been frozen or reverted. It is as it was.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// It cannot be part of a file name, or other files have such names.
    #[error(
        "{0:?} cannot be the name of a disk's state: use letters, digits, '-' and '_', at most 64"
    )]
    Name(String),
    /// It cannot be opened, or somebody has it open.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is nothing beside it that could be its state.
    #[error(
        "{0}: the state of a device that is written cannot be kept; use a qcow2 image in a file, or end the VM with its \
         checkpoint (--end)"
    )]
    Device(PathBuf),
    /// Its states would be beside something else.
    #[error("{0} is a symbolic link: give the name of the image itself")]
    SymbolicLink(PathBuf),
    /// It is not what is open.
    #[error("{0} is another file now")]
    Replaced(PathBuf),
    /// An overlay over it would be of another format than its user says.
    #[error(
        "{path}: the state of a raw image cannot be kept on this file system, which cannot share blocks between files; \
         use a qcow2 image, or end the VM with its checkpoint (--end)"
    )]
    Raw {
        /// The image.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Each state makes reading a little slower.
    #[error(
        "{path} has {images} images, each over the next one, and no more than {IMAGES_MAX} can be: delete checkpoints that are \
         not needed (tessera checkpoint delete), and their states are merged"
    )]
    Deep {
        /// The image.
        path: PathBuf,
        /// All of them.
        images: usize,
    },
    /// Somebody has it open whom no record fences.
    #[error(
        "{0} is in use: end the VM or the program that has it open before a VM goes on with it from a checkpoint"
    )]
    InUse(PathBuf),
    /// There is another state of this name.
    #[error("{0} is there already")]
    Taken(PathBuf),
    /// Another generation of the VM writes it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// This slice may have been given up.
    #[error("the VM is over for this slice")]
    Over,
    /// The state was moved or removed.
    #[error("{0}, which the checkpoint needs, is not there")]
    Missing(PathBuf),
    /// Nobody is to go on from it any more.
    #[error("{0} is not kept any more: its checkpoint was deleted")]
    Released(PathBuf),
    /// A VM has it open, or another process tidies up.
    #[error("{0}: another process has it open")]
    Untidy(PathBuf),
    /// It is not known whose states are there.
    #[error("{0}: no record beside it says which VM's states are there")]
    Unknown(PathBuf),
    /// The state may be that of another VM's checkpoint.
    #[error("{path}: the record beside it is of {theirs}, and the checkpoint of another VM")]
    Foreign {
        /// The image.
        path: PathBuf,
        /// What its record names.
        theirs: Writer,
    },
    /// The state is not what it was.
    #[error("{path} is not what it was at the checkpoint: {why}")]
    Changed {
        /// The state.
        path: PathBuf,
        /// In what it differs.
        why: &'static str,
    },
    /// Somebody has written the image that a VM had left.
    #[error(
        "{path} is not what the VM has left there when it ended with its checkpoint: {why}; give it a copy of then, or go on \
         all the same with --no-disk-guarantee"
    )]
    Written {
        /// The image.
        path: PathBuf,
        /// In what it differs.
        why: &'static str,
    },
    /// The state is of another image, or the disk is given with another format.
    #[error("{path} is no image of which the checkpoint has a state: {why}")]
    Unlike {
        /// The image.
        path: PathBuf,
        /// In what it differs.
        why: &'static str,
    },
    /// The state cannot be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A step failed.
    #[error("{what} {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was to be done.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl SnapshotError {
    /// Whether no state of such an image can be kept, whatever else is so.
    #[must_use]
    pub fn is_of_its_kind(&self) -> bool {
        matches!(self, Self::Raw { .. } | Self::Device(_) | Self::SymbolicLink(_))
    }

    fn of(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { path: path.clone(), what, source }
    }
}

/// A disk whose state is kept.
#[derive(Debug)]
pub struct Frozen {
    /// What a checkpoint has to know.
    pub state: DiskState,
    /// What has the name of the image from now on, if it is another file.
    pub file: Option<File>,
}

/// A step that comes next. Tests stop there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Make,
    Link,
    Rename,
    Protect,
    SyncFolder,
}

/// What is done before each step.
type Before<'a> = &'a dyn Fn(Step);

/// Keeps the state of an image under this name. It is closed and all of it is durable; `contents` is what was in it then.
///
/// # Errors
/// The image is as it was, but for a failure to make names durable: then it may be an overlay of what it was.
pub fn freeze(
    options: &ImageOptions,
    name: &str,
    contents: &Contents,
) -> Result<Frozen, SnapshotError> {
    freeze_before(options, name, contents, &|_| {})
}

fn freeze_before(
    options: &ImageOptions,
    name: &str,
    contents: &Contents,
    before: Before<'_>,
) -> Result<Frozen, SnapshotError> {
    if !is_name(name) {
        return Err(SnapshotError::Name(name.to_owned()));
    }
    if !options.fence.pass() {
        return Err(SnapshotError::Over);
    }
    // With its lock, until this is done.
    let (opened, record) = file::open(&ImageOptions { direct: false, ..options.clone() })?;
    let path = &options.path;
    let about = opened.file.metadata().map_err(SnapshotError::of("look at", path))?;
    if !opened.writable {
        return Ok(Frozen {
            state: contents.state(options, How::Unchanged, None, &about),
            file: None,
        });
    }
    if !about.is_file() {
        return Err(SnapshotError::Device(path.clone()));
    }
    is_still(path, &opened.file)?;
    let state = beside(path, &format!(".{name}"));
    let next = next_beside(path);
    let old = Old { file: &opened.file, about: &about };
    opened.file.sync_all().map_err(SnapshotError::of("flush", path))?;
    let file = exclusively(record.as_ref(), || {
        is_still(path, &opened.file)?;
        if record.is_some() {
            // They take room, and are in nobody's way.
            let _ = remove_left_over(path);
        }
        // Storage may have hung up to here, and the VM be over meanwhile.
        if options.fence.look(Fence::now()) == Standing::Over {
            return Err(SnapshotError::Over);
        }
        let done = match options.format {
            ImageFormat::Qcow2 => lay_over(path, (&state, &next), &old, contents.bytes, before),
            ImageFormat::Raw => clone_aside(path, (&state, &next), &old, before),
        };
        done.inspect_err(|_| {
            // It was never used. Where it is not, there is nothing to remove.
            let _ = fs::remove_file(&next);
        })
    })?;
    let how = if file.is_some() { How::Overlay } else { How::Clone };
    let kept = fs::metadata(&state).map_err(SnapshotError::of("look at", &state))?;
    let name = state.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let state =
        DiskState { mode: about.mode() & 0o7777, ..contents.state(options, how, name, &kept) };
    Ok(Frozen { state, file })
}

/// What a VM leaves in an image of which no state can be kept: for a VM that ends with its checkpoint.
///
/// # Errors
/// The image cannot be looked at.
pub fn leave(options: &ImageOptions, contents: &Contents) -> Result<DiskState, SnapshotError> {
    let path = &options.path;
    let about = fs::metadata(options.at.as_ref().unwrap_or(path));
    let about = about.map_err(SnapshotError::of("look at", path))?;
    Ok(contents.state(options, How::Left, None, &about))
}

/// An image that is to be frozen.
struct Old<'a> {
    file: &'a File,
    about: &'a fs::Metadata,
}

/// Changes names while nobody claims the image.
fn exclusively<T>(
    record: Option<&GenerationRecord>,
    change: impl FnOnce() -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let Some(record) = record else { return change() };
    let _claiming = record.exclusively()?;
    record.still_ours()?;
    change()
}

/// Removes what others were making beside the image when they were interrupted. Nobody changes names meanwhile.
fn remove_left_over(path: &Path) -> io::Result<()> {
    users::left_over(path)?.iter().try_for_each(fs::remove_file)
}

/// Puts an overlay at PATH and keeps what was there.
fn lay_over(
    path: &Path,
    (state, next): (&Path, &Path),
    old: &Old<'_>,
    bytes: u64,
    before: Before<'_>,
) -> Result<Option<File>, SnapshotError> {
    let images = chain::images(path, old.file).map_err(SnapshotError::of("read", path))?;
    if images.len() >= IMAGES_MAX {
        return Err(SnapshotError::Deep { path: path.to_owned(), images: images.len() });
    }
    before(Step::Make);
    let cluster = overlay::cluster_of(old.file).map_err(SnapshotError::of("read", path))?;
    let file = overlay::make(next, state, (bytes, cluster), (old.about, old.about.mode()))?;
    before(Step::Link);
    let linked = keep(path, state, old.file)?;
    before(Step::Rename);
    // The second name is durable before the first one is another file's: else a crash could leave the image without any.
    let synced = sync_folder(path).and_then(|()| fs::rename(next, path));
    synced.map_err(SnapshotError::of("replace", path)).inspect_err(|_| {
        if linked {
            // The image is at PATH still.
            let _ = fs::remove_file(state);
        }
    })?;
    before(Step::Protect);
    protect(state);
    before(Step::SyncFolder);
    sync_folder(path).map_err(SnapshotError::of("flush the folder of", path))?;
    Ok(Some(file))
}

/// Gives the image its second name. False: it has it, as somebody was interrupted here.
fn keep(path: &Path, state: &Path, file: &File) -> Result<bool, SnapshotError> {
    match fs::hard_link(path, state) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if chain::is_file(state, file) {
                return Ok(false);
            }
            Err(SnapshotError::Taken(state.to_owned()))
        }
        Err(error) => Err(SnapshotError::of("make another name for", path)(error)),
    }
}

/// Makes a file that shares all blocks of the image.
fn clone_aside(
    path: &Path,
    (state, next): (&Path, &Path),
    old: &Old<'_>,
    before: Before<'_>,
) -> Result<Option<File>, SnapshotError> {
    before(Step::Make);
    clone_as(next, old.file, old.about.mode(), path)?;
    before(Step::Protect);
    protect(next);
    before(Step::Link);
    match fs::hard_link(next, state) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(SnapshotError::Taken(state.to_owned()));
        }
        linked => linked.map_err(SnapshotError::of("make", state))?,
    }
    before(Step::Rename);
    fs::remove_file(next).map_err(SnapshotError::of("remove", next))?;
    before(Step::SyncFolder);
    sync_folder(path).map_err(SnapshotError::of("flush the folder of", path))?;
    Ok(None)
}

/// A clone of `from`, durable; `path` is for who reads messages.
fn clone_as(to: &Path, from: &File, mode: u32, path: &Path) -> Result<File, SnapshotError> {
    let clone = overlay::new_file(to, mode).map_err(SnapshotError::of("make", to))?;
    if let Err(error) = ioctl_ficlone(&clone, from) {
        let source = io::Error::from(error);
        let cannot = matches!(
            source.raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EXDEV | libc::EINVAL | libc::ENOSYS)
        );
        let path = path.to_owned();
        return Err(if cannot {
            SnapshotError::Raw { path, source }
        } else {
            SnapshotError::File { path, what: "clone", source }
        });
    }
    clone.sync_all().map_err(SnapshotError::of("flush", to))?;
    Ok(clone)
}

/// That the image's name is still that of the file which is open.
fn is_still(path: &Path, file: &File) -> Result<(), SnapshotError> {
    let about = fs::symlink_metadata(path).map_err(SnapshotError::of("look at", path))?;
    if about.is_symlink() {
        return Err(SnapshotError::SymbolicLink(path.to_owned()));
    }
    if chain::is_file(path, file) { Ok(()) } else { Err(SnapshotError::Replaced(path.to_owned())) }
}

/// Takes away the right to write. Who does not own the file cannot; Tessera never writes it anyway.
fn protect(state: &Path) {
    let _ = fs::set_permissions(state, Permissions::from_mode(0o444));
}

/// A name beside a file, which begins with its name.
fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(more);
    name.into()
}

/// A name beside a file that nobody else has.
fn next_beside(path: &Path) -> PathBuf {
    let drawn = RandomState::new().hash_one(path);
    beside(path, &format!(".{NEXT}{drawn:0NEXT_DIGITS$x}"))
}

/// The image of a clone beside that which it is a clone of, and which its overlay lies over. Nothing: a clone cannot have this name.
#[must_use]
pub fn image_of_clone(image: &Path, name: &str) -> Option<PathBuf> {
    clone_of(image, name)
}

/// The image that this one is a clone of, by its name.
#[must_use]
pub fn cloned_from(image: &Path) -> Option<PathBuf> {
    origin(image)
}

/// Whether a state may have this name.
fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let reserved = RECORD_SUFFIX.strip_prefix('.') == Some(name)
        || name.starts_with("tessera-")
        || name.starts_with("abandoned-")
        || name.starts_with("clone-");
    !reserved && !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed)
}
