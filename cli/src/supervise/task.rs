//! What takes time beside the main thread of a supervisor: each is a thread that sends one event at its end.

use super::child::Exit;
use anyhow::{Context, Result};
use checkpoint::{Checkpoint, CheckpointError, Key};
use migrate::supervise::Cause;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use vmm::control::{
    Answer, CheckpointRequest, Client, ClientError, PlacementRequest, Reason, Request, VcpusRequest,
};
use vmm::slice::{CheckpointDisks, STATUS_OVERTAKEN};

const POLL: Duration = Duration::from_millis(100);

/// Waits until the guest runs: which life of the VM it is; nothing if its process ends before.
///
/// Which VM it is can be asked before that. One that is restored has devices that go on then, and slices that wait for each other: if it
/// fails then it has not run, and its checkpoint may be why. What concerns the whole VM is answered once all have begun.
pub(super) fn runs(control: &Path, is_over: &AtomicBool) -> Option<u64> {
    let asks = |request| Client::connect(control)?.ask(&request);
    while !is_over.load(Ordering::SeqCst) {
        if let Ok(Answer::Placement(answer)) = asks(Request::Placement(PlacementRequest {}))
            && takes_requests(&asks(Request::Vcpus(VcpusRequest::default())))
        {
            return Some(answer.life);
        }
        thread::sleep(POLL);
    }
    None
}

/// Whether this is the answer of a VM of which something can be asked, here or at another slice.
fn takes_requests(answer: &Result<Answer, ClientError>) -> bool {
    match answer {
        Ok(_) => true,
        Err(ClientError::Refused(refusal)) => refusal.reason != Reason::NoVm,
        Err(_) => false,
    }
}

/// A checkpoint of a VM.
#[derive(Clone, Debug)]
pub(super) struct Save {
    pub(super) control: PathBuf,
    pub(super) path: PathBuf,
    pub(super) key: Option<Arc<Key>>,
    /// Only what has changed since the last one.
    pub(super) incremental: bool,
    pub(super) compress: bool,
    pub(super) no_disk_guarantee: bool,
    /// Those that were deleted before, by the numbers that slices know.
    pub(super) released: Vec<u64>,
}

impl Save {
    /// Has it written; what it is an increment of, by its name.
    ///
    /// # Errors
    /// Why it is not there. A checkpoint that is complete, of which only the answer was lost with the VM, is no error.
    pub(super) fn write(&self) -> Result<Option<String>, NotSaved> {
        let path = self.path.display();
        if self.path.symlink_metadata().is_ok() {
            return Err(NotSaved { why: format!("{path} is there already"), is_taken: true });
        }
        let asked = self.ask();
        let failed = |error: anyhow::Error| NotSaved { why: format!("{error:#}"), is_taken: false };
        let there = Checkpoint::open(&self.path, self.key.as_deref());
        let (checkpoint, digest) = match (there, asked) {
            (Ok(checkpoint), asked) => (checkpoint, asked.ok().flatten()),
            (Err(_), Err(why)) => return Err(failed(why.into())),
            (Err(why), Ok(_)) => return Err(failed(why.into())),
        };
        if digest.is_some_and(|digest| digest != checkpoint.digest().to_string()) {
            let why = format!("{path} is another one than that which was written");
            return Err(NotSaved { why, is_taken: true });
        }
        let base = checkpoint.contents().base.as_ref();
        Ok(base.map(|base| base.folder.clone()))
    }

    /// The digest of what is written then.
    fn ask(&self) -> Result<Option<String>, ClientError> {
        let path = self.path.to_string_lossy().into_owned();
        let Self { incremental, compress, no_disk_guarantee, .. } = *self;
        let released = self.released.clone();
        let request = CheckpointRequest {
            path,
            incremental,
            compress,
            no_disk_guarantee,
            released,
            ..CheckpointRequest::default()
        };
        // As long as the VM lives it may come to write the manifest: who gave up before that would delete what it writes. That it takes
        // long is told by the machine.
        match Client::connect(&self.control)?.patient().ask(&Request::Checkpoint(request))? {
            Answer::Checkpoint(answer) => Ok(Some(answer.digest)),
            _ => Ok(None),
        }
    }
}

/// Why there is no checkpoint.
#[derive(Debug)]
pub(super) struct NotSaved {
    pub(super) why: String,
    /// What has its name was not written for this supervisor.
    pub(super) is_taken: bool,
}

/// How a life of a VM has ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) cause: Cause,
    /// What may change until the next start, if it was refused.
    pub(super) waits_for: Option<String>,
}

impl End {
    pub(super) fn of(cause: Cause) -> Self {
        Self { cause, waits_for: None }
    }

    fn refused(waits_for: String) -> Self {
        Self { cause: Cause::Refused, waits_for: Some(waits_for) }
    }
}

/// What the end of a bootstrap means. One that was refused is asked why: whether each byte of its checkpoint is as it was
/// written, and, if slices of before have surely stopped (`fenced`), the states of disks that are here. `record` lies beside them: where
/// it is not there, their file system is not.
pub(super) fn end(
    (exit, fenced): (Exit, bool),
    from: Option<&Path>,
    key: Option<&Key>,
    record: &Path,
) -> End {
    let said = "what the line above names (a disk in use, a record that is busy, storage or a host that does not answer)";
    match (exit, from) {
        (Exit::Status(0 | 3 | 7 | 8), _) => End::of(Cause::Wanted),
        (Exit::Status(2), None) => End::refused(said.to_owned()),
        (Exit::Status(2), Some(path)) => match verify(path, key) {
            Ok(()) => {
                // A slice of before may write to one, and finds out that it may not.
                let disks = fenced.then(|| CheckpointDisks::of(path, key).ok()).flatten();
                match disks.and_then(|disks| disks.spoiled()) {
                    Some(why) => damaged(path, &why),
                    None => End::refused(format!("{said}; its checkpoint is whole")),
                }
            }
            // A server that does not answer may do so later.
            Err(error) if error.is_refused() || !record.exists() => {
                End::refused(format!("storage: {:#}", anyhow::Error::from(error)))
            }
            Err(error) => damaged(path, &format!("{:#}", anyhow::Error::from(error))),
        },
        (Exit::Status(4), _) => End::of(Cause::Panicked),
        (Exit::Status(STATUS_OVERTAKEN), _) => End::of(Cause::Overtaken),
        (Exit::Status(_) | Exit::Signal(_), _) => End::of(Cause::Lost),
    }
}

fn damaged(path: &Path, why: &str) -> End {
    tracing::error!("{} cannot be gone on from: {why}", path.display());
    End::of(Cause::Damaged)
}

fn verify(path: &Path, key: Option<&Key>) -> Result<(), CheckpointError> {
    Checkpoint::open(path, key)?.verify(&mut |_, _| {}).map(drop)
}

/// Has something done on a thread of its own.
///
/// # Errors
/// There is none.
pub(super) fn beside(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).with_context(|| format!("start a thread ({name})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env::temp_dir;
    use std::fs;
    use vmm::control::Refusal;

    #[test]
    fn vm_whose_slices_have_not_all_begun_does_not_run() {
        let refused = |reason| Err(ClientError::Refused(Refusal::new(reason, "")));
        assert!(!takes_requests(&refused(Reason::NoVm)));
        assert!(!takes_requests(&Err(ClientError::Gone)));
        assert!(takes_requests(&refused(Reason::NotLeader { leader: Some(1) })));
    }

    #[test]
    fn checkpoint_is_not_damaged_because_nothing_is_mounted_there() {
        let folder = temp_dir().join(format!("tessera-not-mounted-{}", std::process::id()));
        let (checkpoint, record) = (folder.join("supervised-0-1"), folder.join("vm-0.supervised"));
        let cause = || end((Exit::Status(2), true), Some(&checkpoint), None, &record).cause;
        assert_eq!(cause(), Cause::Refused);
        fs::create_dir(&folder).unwrap();
        assert_eq!(cause(), Cause::Refused);
        fs::write(&record, "").unwrap();
        assert_eq!(cause(), Cause::Damaged, "all is there but the checkpoint");
        fs::remove_dir_all(folder).unwrap();
    }
}
