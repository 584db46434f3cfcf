//! TOML and YAML, to and from a [`VmFile`].

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options, budget, options};
use thiserror::Error;

use crate::check::CheckError;
use crate::spec::VmFile;

/// A file is no larger.
pub const BYTES_MAX: usize = 256 << 10;
/// A VM file needs six levels.
const DEPTH_MAX: usize = 16;
/// Values, lists and tables, also those that aliases stand for.
const NODES_MAX: usize = 20_000;
const ALIASES_MAX: usize = 64;
/// Errors quote the file; this much of it.
const MESSAGE_CHARS_MAX: usize = 300;

/// How a VM file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// TOML.
    Toml,
    /// YAML, and so JSON.
    Yaml,
}

/// A place in a file; both count from 1, and columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A text that is no VM file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is too long.
    #[error("it has {0} bytes; a VM file has at most {BYTES_MAX}")]
    TooLong(usize),
    /// It is not UTF-8.
    #[error("line {line}: it is not UTF-8 text")]
    NoText {
        /// Where that begins.
        line: usize,
    },
    /// It has not the form of a VM file.
    #[error("{}{message}", .place.map(|place| format!("{place}: ")).unwrap_or_default())]
    Form {
        /// Where, if that is known.
        place: Option<Place>,
        /// What is wrong.
        message: String,
    },
    /// It makes no sense.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// A VM file that cannot be written.
#[derive(Debug, Error)]
#[error("write a VM as {format:?}: {message}")]
pub struct EncodeError {
    format: Format,
    message: String,
}

impl Format {
    /// The format of a file of this name; `None` if its ending says nothing.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension().and_then(OsStr::to_str)? {
            "toml" => Some(Self::Toml),
            "yaml" | "yml" | "json" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// Reads a VM file, and checks it.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn decode(self, bytes: &[u8]) -> Result<VmFile, DecodeError> {
        if bytes.len() > BYTES_MAX {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let text = str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            DecodeError::NoText { line: 1 + before.iter().filter(|byte| **byte == b'\n').count() }
        })?;
        let file: VmFile = match self {
            Self::Toml => toml::from_str(text).map_err(|error| of_toml(text, &error)),
            Self::Yaml => {
                let read = serde_saphyr::from_str_with_options(text, yaml_options());
                read.map_err(|error| of_yaml(&error))
            }
        }?;
        file.check()?;
        Ok(file)
    }

    /// Writes a VM file.
    ///
    /// # Errors
    /// None that is known: every VM has a form in both.
    pub fn encode(self, file: &VmFile) -> Result<String, EncodeError> {
        let message = match self {
            Self::Toml => toml::to_string(file).map_err(|error| error.to_string()),
            Self::Yaml => serde_saphyr::to_string(file).map_err(|error| error.to_string()),
        };
        message.map_err(|message| EncodeError { format: self, message })
    }
}

fn yaml_options() -> Options {
    options! {
        budget: budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 3 * NODES_MAX,
            max_aliases: ALIASES_MAX,
            max_anchors: ALIASES_MAX,
            max_recorded_anchor_events: NODES_MAX,
            max_recorded_anchor_bytes: BYTES_MAX,
            max_total_scalar_bytes: BYTES_MAX,
            max_documents: 1,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        // A field of one more name would be unknown. This one would not be seen.
        merge_keys: MergeKeyPolicy::Error,
        // `no` is a word.
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn of_toml(text: &str, error: &toml::de::Error) -> DecodeError {
    let place = error.span().map(|span| {
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.rsplit_once('\n').map_or(before, |(_, line)| line);
        Place { line: 1 + before.matches('\n').count(), column: 1 + line.chars().count() }
    });
    DecodeError::Form { place, message: on_one_line(error.message()) }
}

fn of_yaml(error: &serde_saphyr::Error) -> DecodeError {
    let place = error.location().and_then(|location| {
        let (line, column) = (location.line().try_into().ok()?, location.column().try_into().ok()?);
        (line > 0).then_some(Place { line, column })
    });
    let said = error.without_snippet().to_string();
    let end = place.map(|place| format!(" at {place}"));
    let message = end.and_then(|end| said.strip_suffix(&end)).unwrap_or(&said);
    DecodeError::Form { place, message: on_one_line(message) }
}

/// Parts of a file may have line breaks, and what moves the cursor of a terminal.
fn on_one_line(message: &str) -> String {
    let mut line = String::new();
    for (count, it) in message.trim_end().chars().enumerate() {
        if count == MESSAGE_CHARS_MAX {
            line.push_str("...");
            break;
        }
        match it {
            '\n' => line.push(' '),
            it if it.is_control() => line.extend(it.escape_default()),
            it => line.push(it),
        }
    }
    line
}
