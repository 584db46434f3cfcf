//! The other end of a control socket.

use super::message::{Answer, LineError, Progress, Request, read_line};
use super::refusal::Refusal;
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Bytes of an answer at most: pages times what one may take, and much to spare.
const ANSWER_MAX: usize = 16 << 20;
/// The slice answers sooner, or not at all.
const LIMIT: Duration = Duration::from_secs(10);
/// The same when all slices of a VM must do something first.
const LIMIT_OF_ALL: Duration = Duration::from_secs(90);
/// The same for each part of a VM that goes to another slice.
const LIMIT_OF_A_PART: Duration = Duration::from_secs(300);

/// Why a slice could not be asked.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("connect to the control socket {}, which a running slice makes (--control)", .path.display())]
    Connect {
        /// Where.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The request cannot be sent.
    #[error("send a request")]
    Send(#[source] io::Error),
    /// The answer does not come.
    #[error("wait for the answer")]
    Line(#[from] LineError),
    /// The slice is gone.
    #[error("the slice has ended")]
    Gone,
    /// The answer is none.
    #[error("read the answer")]
    Parse(#[source] serde_json::Error),
    /// The slice refused.
    #[error("the slice refuses: {0}")]
    Refused(Refusal),
}

/// A connection to a slice.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    is_patient: bool,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or this user may not.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_write_timeout(Some(LIMIT)).map_err(failed)?;
        Ok(Self { stream: BufReader::new(stream), is_patient: false })
    }

    /// Waits for answers as long as the slice lives.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { is_patient: true, ..self }
    }

    /// Asks and waits for the answer, which is no refusal.
    ///
    /// # Errors
    /// The slice is gone, is silent, or refuses.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        self.ask_with(request, |_| {})
    }

    /// The same; `progress` hears how far it has come, where that takes long.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn ask_with(
        &mut self,
        request: &Request,
        mut progress: impl FnMut(Progress),
    ) -> Result<Answer, ClientError> {
        let mut line = serde_json::to_vec(request).map_err(ClientError::Parse)?;
        line.push(b'\n');
        let limit = match request {
            Request::Pause(_) | Request::Resume(_) => LIMIT_OF_ALL,
            Request::MoveVcpu(_)
            | Request::Drain(_)
            | Request::Consolidate(_)
            | Request::Spread(_)
            | Request::Add(_)
            | Request::Vcpus(_)
            | Request::Checkpoint(_)
            | Request::Plan(_)
            | Request::Advise(_) => LIMIT_OF_A_PART,
            _ => LIMIT,
        };
        let limit = (!self.is_patient).then_some(limit);
        self.stream.get_ref().set_read_timeout(limit).map_err(ClientError::Send)?;
        self.stream.get_mut().write_all(&line).map_err(ClientError::Send)?;
        loop {
            let line = read_line(&mut self.stream, ANSWER_MAX)?.ok_or(ClientError::Gone)?;
            match serde_json::from_slice(&line).map_err(ClientError::Parse)? {
                Answer::Refused(refusal) => return Err(ClientError::Refused(refusal)),
                Answer::Progress(far) => progress(far),
                answer => return Ok(answer),
            }
        }
    }
}
