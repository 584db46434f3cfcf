//! From a request to the words of a slice. Pure.
//!
//! ```text
//!   EnsureSliceRequest, folders of the host, files of the slice, its port --> Order: words of `tessera bootstrap` or `companion`
//!                                                                        \--> Invalid: which field, and why
//! ```
//! The same request with the same port gives the same words: that is how a request that comes twice is known, and the words of the
//! journal say what the port was. Each word is `--option=value`, so no value becomes an option, and a value in which the options have
//! words of their own has no comma.

mod spec;

use agent::decide::{Generation, Order, SliceName};
use control::v1::ensure_slice_request::Role;
use control::v1::{EnsureSliceRequest, HostResources};
use scheduler::Resources;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// A unit of memory.
pub(crate) const UNIT: u64 = 2 << 20;

/// A field of a request that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// Which.
    pub(crate) field: String,
    /// Why.
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Invalid>;

pub(crate) fn invalid<T>(field: impl Into<String>, message: impl Into<String>) -> Result<T> {
    Err(Invalid { field: field.into(), message: message.into() })
}

/// Folders of the host from which requests name files. They are absolute, and have no comma.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folders {
    pub(crate) images: String,
    pub(crate) checkpoints: String,
}

/// Files of one slice in one life of its VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) secret: String,
    pub(crate) control: String,
    pub(crate) console: String,
    pub(crate) report: String,
}

/// What a request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ordered {
    pub(crate) order: Order,
    /// Files of this host that it names. They must not lead out of their folder.
    pub(crate) named: Vec<Named>,
}

/// A file that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// In which field.
    pub(crate) field: String,
    pub(crate) folder: String,
    pub(crate) path: String,
}

/// Which slice a request is for, in which life of its VM, and whether it is to listen.
pub(crate) fn subject(request: &EnsureSliceRequest) -> Result<(SliceName, Generation, bool)> {
    let slice = slice("slice", &request.slice)?;
    let life = life(request.life)?;
    match request.role {
        Some(Role::Bootstrap(_)) => Ok((slice, life, false)),
        Some(Role::Companion(_)) => Ok((slice, life, true)),
        None => invalid("role", "it is neither a bootstrap nor a companion"),
    }
}

/// The words. `listen` is where a companion waits.
pub(crate) fn order(
    request: &EnsureSliceRequest,
    folders: &Folders,
    files: &Files,
    listen: Option<SocketAddr>,
) -> Result<Ordered> {
    const SECRET: RangeInclusive<usize> = 16..=4096;
    if !SECRET.contains(&request.secret.len()) {
        return invalid("secret", "a secret has 16 to 4096 bytes");
    }
    let resources = resources("resources", request.resources.as_ref())?;
    let mut words = Words::default();
    match (&request.role, listen) {
        (Some(Role::Bootstrap(spec)), None) => {
            words.plain("bootstrap");
            spec::bootstrap(spec, resources, folders, &mut words)?;
            words.option("console", &format!("socket={}", files.console));
        }
        (Some(Role::Companion(spec)), Some(listen)) => {
            words.plain("companion");
            words.option("listen", &listen.to_string());
            spec::companion(spec, folders, &mut words)?;
        }
        _ => return invalid("role", "a companion listens, a bootstrap does not"),
    }
    words.option("secret-file", &files.secret);
    words.option("control", &files.control);
    words.option("report", &files.report);
    words.option("checkpoints", &folders.checkpoints);
    words.option("offer-cpus", &resources.cores.to_string());
    words.option("offer-memory", &bytes(resources).to_string());
    let Words { words, named } = words;
    Ok(Ordered { order: Order { resources, words }, named })
}

/// Where the slice of an order listens.
pub(crate) fn listens(order: &Order) -> Option<SocketAddr> {
    order.words.iter().find_map(|word| word.strip_prefix("--listen=")?.parse().ok())
}

/// Bytes of memory.
pub(crate) fn bytes(resources: Resources) -> u64 {
    u64::from(resources.memory) * UNIT
}

/// Words, and the files that they name.
#[derive(Debug, Default)]
struct Words {
    words: Vec<String>,
    named: Vec<Named>,
}

impl Words {
    fn plain(&mut self, word: &str) {
        self.words.push(word.to_owned());
    }

    fn option(&mut self, name: &str, value: &str) {
        self.words.push(format!("--{name}={value}"));
    }

    /// The path of a file that is named from a folder.
    fn path(&self, field: &str, folder: &str, name: &str) -> Result<String> {
        const NAME_MAX: usize = 1024;
        if name.is_empty() || name.len() > NAME_MAX {
            return invalid(field, format!("a name has 1 to {NAME_MAX} bytes"));
        }
        if name.chars().any(|letter| letter.is_control() || letter == ',') {
            return invalid(field, "a name has no commas and no control characters");
        }
        if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return invalid(field, format!("{name:?} is not a name below {folder}"));
        }
        Ok(format!("{}/{name}", folder.trim_end_matches('/')))
    }

    /// The same of a file on this host.
    fn own_path(&mut self, field: &str, folder: &str, name: &str) -> Result<String> {
        let path = self.path(field, folder, name)?;
        let (field, folder) = (field.to_owned(), folder.to_owned());
        self.named.push(Named { field, folder, path: path.clone() });
        Ok(path)
    }
}

/// A slice by its name.
pub(crate) fn slice(field: &str, name: &str) -> Result<SliceName> {
    let form = "it is not vms/VM/slices/NUMBER, where VM has 32 hexadecimal digits";
    crate::names::slice(name).map_or_else(|| invalid(field, form), Ok)
}

/// A life of a VM: they are counted from 1.
pub(crate) fn life(life: u64) -> Result<Generation> {
    if life == 0 { invalid("life", "lives are counted from 1") } else { Ok(Generation(life)) }
}

/// Cores and memory that are asked for.
pub(crate) fn resources(field: &str, asked: Option<&HostResources>) -> Result<Resources> {
    let Some(asked) = asked else { return invalid(field, "it is missing") };
    let memory = u32::try_from(asked.memory_bytes.div_ceil(UNIT));
    let Ok(memory) = memory else { return invalid(field, "no host has so much memory") };
    Ok(Resources::new(asked.cores, memory))
}

#[cfg(test)]
mod tests;
