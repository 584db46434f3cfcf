//! What to run in a host and how it ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A command to run in a host, as root, in `/` unless [`Command::folder`] says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments; the program is looked up in the host's `PATH`.
    pub arguments: Vec<String>,
    /// Environment variables added to the host's own.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// Working folder as the host sees it.
    #[serde(default)]
    pub folder: Option<String>,
}

impl Command {
    /// A command from its program and arguments.
    pub fn new<I, S>(arguments: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            folder: None,
        }
    }

    /// A command line for `sh -c`.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(["sh".to_owned(), "-c".to_owned(), line.into()])
    }

    /// The same command with one more environment variable.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.arguments.join(" "))
    }
}

/// Which output of a command some bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// True for code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// The code a shell would report: the exit code, or 128 plus the signal.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
