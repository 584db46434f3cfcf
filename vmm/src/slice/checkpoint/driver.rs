//! Has a checkpoint written, on the thread of who asks for it. [`migrate::checkpoint`] decides what follows from what, and draws
//! its states; this does it.
//!
//! ```text
//!   request --begin--> Run: effects done one by one, then the next input, until Effect::Over
//!     Send ----> a frame to `member` of that slice
//!     Cut -----> the cut's driver comes to rest and captures, this thread waits --captured, failed--> the machine
//!     Commit --> the VM stays at rest if it ends, manifest, looked at as a restore would --committed, not_committed--> the machine
//!     GoOn ----> the cut's driver has all slices go on, or the VM ends
//!   inputs: what slices say, slices that are lost, time that passes
//! ```

use super::description::Description;
use super::disks::say_home;
use super::error::{CheckpointError, names};
use super::part::tell;
use super::request::{PartRequest, WrittenPart, check_name};
use crate::control::{CheckpointAnswer, CheckpointRequest, Progress, Refusal, WritesCheckpoints};
use crate::crash::PlannedKill;
use crate::slice::channels::Channels;
use crate::slice::checkpoint_link::{DiskPolicy, Input};
use crate::slice::cut_link::{CutError, CutHandle, Input as CutInput};
use crate::slice::events::SliceEvent;
use crate::slice::one_line;
use crate::slice::operations::{Ongoing, Operation};
use crate::slice::refusing::Explains;
use checkpoint::{Base, Checkpoint, Contents, Digest, Key, PartSummary};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use migrate::checkpoint::{Coordinator, Effect, Verdict};
use migrate::saved::{decode, encode};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::SliceId;
use wire::control::EndCause;

/// For all slices to make their files.
const PREPARE_LIMIT: Duration = Duration::from_secs(30);
/// For all slices to write their parts. Who does not want the guest to stand still for so long has the VM resumed.
const WRITE_LIMIT: Duration = Duration::from_secs(3600);
/// Between two words on how it stands.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Has checkpoints written, one at a time. It does not keep the VM alive.
#[derive(Debug)]
pub(in crate::slice) struct Checkpoints {
    channels: Weak<Channels>,
    cuts: CutHandle,
    vm: Arc<Description>,
    /// Of the VM's secret, where it is known.
    key: Option<Key>,
    /// Looks at one before the VM ends with it.
    opens: Opens,
    decides: Mutex<Coordinator>,
    /// The last checkpoint that was written.
    last: Mutex<Option<Last>>,
}

/// A checkpoint of which the next one may be an increment.
#[derive(Clone, Debug)]
struct Last {
    number: u64,
    folder: PathBuf,
    digest: Digest,
}

/// Where a checkpoint goes.
struct Target {
    /// The folder in which its own is.
    parent: PathBuf,
    name: String,
}

impl Target {
    fn of(path: &str) -> Result<Self, CheckpointError> {
        let path = Path::new(path);
        if !path.is_absolute() {
            return Err(CheckpointError::Relative(path.to_owned()));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let no_name = |why| CheckpointError::Name { path: path.to_owned(), why };
        check_name(&name).map_err(no_name)?;
        let parent = path.parent().unwrap_or(path).to_owned();
        Ok(Self { parent, name })
    }

    fn folder(&self) -> PathBuf {
        self.parent.join(&self.name)
    }
}

/// A checkpoint that is being written.
struct Run<'a> {
    of: &'a Checkpoints,
    channels: &'a Arc<Channels>,
    target: &'a Target,
    ends: bool,
    /// The guest runs on while it is written.
    live: bool,
    /// It is an increment of this one.
    base: Option<Last>,
    ongoing: Arc<Ongoing>,
    inputs: Receiver<Input>,
    /// Since when all are at rest, or come to rest.
    at_rest: Option<Instant>,
    /// All have their forms.
    captured: bool,
    /// How long the guest has stood still, once it is over.
    paused: Duration,
    /// When all had come to rest: milliseconds since 1970.
    moment_ms: u64,
    /// By which slices know it.
    number: u64,
    committed: Option<(Digest, Vec<PartSummary>)>,
}

impl Checkpoints {
    /// Of a VM that this describes. Numbers of checkpoints are never used again, also not by the next slice that coordinates, whose
    /// clock may be behind.
    pub(in crate::slice) fn new(
        channels: &Arc<Channels>,
        cuts: CutHandle,
        (vm, key): (Arc<Description>, Option<Key>),
        opens: Opens,
    ) -> Self {
        let decides = Mutex::new(Coordinator::new(unix_ms().max(channels.checkpoints.last())));
        let last = Mutex::default();
        Self { channels: Arc::downgrade(channels), cuts, vm, key, opens, decides, last }
    }

    /// What a checkpoint is an increment of.
    fn base(
        &self,
        request: &CheckpointRequest,
        target: &Target,
    ) -> Result<Option<Last>, CheckpointError> {
        if !request.incremental {
            return Ok(None);
        }
        let last = lock(&self.last).clone().ok_or(CheckpointError::NoBase)?;
        if last.folder.parent() != Some(&target.parent) {
            return Err(CheckpointError::BaseElsewhere(last.folder));
        }
        Ok(Some(last))
    }

    fn write(
        &self,
        request: &CheckpointRequest,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<CheckpointAnswer, CheckpointError> {
        let channels = &self.channels.upgrade().ok_or(CheckpointError::Over)?;
        let target = &Target::of(&request.path)?;
        if let Some(lost) = channels.cut.lost_slices().first() {
            return Err(CheckpointError::Lost(*lost));
        }
        let ongoing = Arc::new(channels.operations.begin(Operation::Checkpoint)?);
        let base = self.base(request, target)?;
        let began = Instant::now();
        let inputs = channels.checkpoints.begin_one(target.parent.clone());
        let mut run = Run {
            of: self,
            channels,
            target,
            ends: request.end,
            base,
            live: !request.end && !request.stop && channels.handle.get().is_some(),
            ongoing,
            inputs,
            at_rest: None,
            captured: false,
            paused: Duration::ZERO,
            moment_ms: 0,
            number: 0,
            committed: None,
        };
        let disks = match request {
            CheckpointRequest { no_disk_guarantee: true, .. } => DiskPolicy::Leave,
            CheckpointRequest { end: true, .. } => DiskPolicy::KeepOrEnd,
            _ => DiskPolicy::Keep,
        };
        let result = run.run((request, disks), tell);
        channels.checkpoints.end_one();
        if result.is_err() {
            // It was given up. What has something in it, or was there before, stays.
            let _ = fs::remove_dir(target.folder());
        }
        result?;
        Ok(run.answer(began.elapsed()))
    }
}

impl Run<'_> {
    fn run(
        &mut self,
        (asked, disks): (&CheckpointRequest, DiskPolicy),
        tell: &mut dyn FnMut(Progress),
    ) -> Result<(), CheckpointError> {
        let identity = self.of.vm.identity;
        let request = PartRequest {
            name: self.target.name.clone(),
            vm: identity.vm,
            generation: identity.generation,
            live: self.live,
            base: self.base.as_ref().map(|base| base.number),
            compressed: asked.compress,
            disks,
            released: asked.released.clone(),
        };
        let request = encode(&request)?;
        let members = self.channels.there();
        let requests = members.iter().map(|slice| (*slice, request.clone())).collect();
        let mut decides = lock(&self.of.decides);
        let verdict = decides.begin(requests, self.live)?;
        if let Some(over) = self.follow(verdict, &mut decides) {
            return over;
        }
        let begun = Instant::now();
        loop {
            let limit = if self.captured { WRITE_LIMIT } else { PREPARE_LIMIT };
            let mut silent = None;
            let verdict = match self.inputs.recv_timeout(TELL_EVERY) {
                Ok(Input::Message(from, message)) => decides.message(from, message),
                Ok(Input::Lost(slice)) => decides.lost(slice),
                Err(RecvTimeoutError::Disconnected) => decides.failed("the VM is over"),
                Err(RecvTimeoutError::Timeout) => {
                    let waiting = decides.waiting();
                    let (total, done) = (members.len(), members.len() - waiting.len());
                    tell(Progress { done, total, next: self.what(&waiting) });
                    if begun.elapsed() < limit {
                        continue;
                    }
                    let error = CheckpointError::Silent { slices: waiting, limit };
                    decides.failed(&one_line(silent.insert(error)))
                }
            };
            if let Some(over) = self.follow(verdict, &mut decides) {
                return silent.map_or(over, Err);
            }
        }
    }

    /// For a person who waits.
    fn what(&self, waiting: &[SliceId]) -> String {
        let what = if self.captured { "written by" } else { "begun by" };
        format!("part {what} {}", names(waiting))
    }

    /// Does what is to be done; the result when it is over.
    fn follow(
        &mut self,
        verdict: Verdict,
        decides: &mut Coordinator,
    ) -> Option<Result<(), CheckpointError>> {
        let mut effects: VecDeque<Effect> = verdict.into();
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Send(to, message) => tell(self.channels, to, message),
                Effect::Cut(number) => effects.extend(self.cut(number, decides)),
                Effect::Commit(parts) => {
                    let committed = self.hold().and_then(|()| self.commit(decides, &parts));
                    effects.extend(match committed {
                        Ok(committed) => {
                            self.committed = Some(committed);
                            decides.committed()
                        }
                        Err(error) => decides.not_committed(&one_line(&error)),
                    });
                }
                Effect::GoOn => self.go_on(),
                Effect::Over(Ok(())) => return Some(Ok(())),
                Effect::Over(Err(why)) => return Some(Err(CheckpointError::GivenUp(why))),
            }
        }
        None
    }

    fn cut(&mut self, number: u64, decides: &mut Coordinator) -> Verdict {
        let ongoing = Arc::clone(&self.ongoing);
        let began = Instant::now();
        match self.of.cuts.ask(|reply| CutInput::Capture(number, ongoing, reply)) {
            Ok(_) => {
                (self.at_rest, self.moment_ms) = (Some(began), unix_ms());
                (self.captured, self.number) = (true, number);
                decides.captured()
            }
            Err(error) => decides.failed(&one_line(&error)),
        }
    }

    /// A guest that ends with the checkpoint never runs again once that may exist: it could write to disks of which the
    /// checkpoint says what is on them.
    fn hold(&self) -> Result<(), CheckpointError> {
        if self.ends {
            self.of.cuts.ask(CutInput::Hold).map_err(CheckpointError::Runs)?;
        }
        Ok(())
    }

    /// The guest goes on, or the VM ends with what was written. Nothing is ended but the cut of this checkpoint: nobody has
    /// the VM pause while one is written.
    fn go_on(&mut self) {
        let Some(began) = self.at_rest.take() else { return };
        let ends = self.ends && self.committed.is_some();
        if ends {
            let local = self.channels.local();
            self.channels.event(SliceEvent::WantEnd(local, EndCause::Saved));
        } else {
            self.of.cuts.release();
            match self.of.cuts.ask(CutInput::Resume) {
                // It went on by itself.
                Ok(_) | Err(CutError::NotPaused | CutError::Over) => {}
                Err(error) => tracing::warn!("after a checkpoint: {error}"),
            }
        }
        self.paused = began.elapsed();
    }

    fn commit(
        &self,
        decides: &Coordinator,
        parts: &[(SliceId, Vec<u8>)],
    ) -> Result<(Digest, Vec<PartSummary>), CheckpointError> {
        let read = |(slice, bytes): &(SliceId, Vec<u8>)| {
            let WrittenPart(summary) = decode(bytes)?;
            let same = summary.slice == *slice;
            let other = || CheckpointError::GivenUp(format!("{slice} has written another part"));
            if same { Ok(summary) } else { Err(other()) }
        };
        let parts: Vec<PartSummary> = parts.iter().map(read).collect::<Result<_, _>>()?;
        let vm = &self.of.vm;
        let contents = Contents {
            vm: vm.identity.vm,
            generation: vm.identity.generation,
            cut: decides.number(),
            created_unix_ms: self.moment_ms,
            base: self.base.as_ref().map(|base| Base {
                folder: base.folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                digest: base.digest,
            }),
            frames: self.channels.placement.load().frames(),
            parts: parts.clone(),
            spec: serde_json::to_string(&**vm)?,
            extra: say_home(&self.target.parent),
            producer: concat!("tessera ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let (folder, opens) = (self.target.folder(), self.ends.then_some(self.of.opens));
        let digest = commit_if(&folder, (&contents, self.of.key.as_ref()), opens)?;
        let number = decides.number();
        *lock(&self.of.last) = Some(Last { number, folder, digest });
        Ok((digest, parts))
    }

    fn answer(&self, took: Duration) -> CheckpointAnswer {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let (digest, parts) = match &self.committed {
            Some((digest, parts)) => (digest.to_string(), &parts[..]),
            None => (String::new(), &[][..]),
        };
        CheckpointAnswer {
            milliseconds: milliseconds(took),
            paused_milliseconds: milliseconds(self.paused),
            bytes: parts.iter().map(|part| part.bytes).sum(),
            pages: parts.iter().map(|part| part.pages).sum(),
            digest,
            cut: self.number,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says whether a VM could go on from the checkpoint in a folder, as far as can be told without reading memory, or why not.
pub(in crate::slice) type Opens = fn(&Path) -> Result<(), String>;

/// Writes the manifest. It stays there only if a VM could go on from it.
fn commit_if(
    folder: &Path,
    (contents, key): (&Contents, Option<&Key>),
    opens: Option<Opens>,
) -> Result<Digest, CheckpointError> {
    let digest = Checkpoint::commit_with_points(folder, contents, key, &PlannedKill)?;
    if let Some(Err(why)) = opens.map(|opens| opens(folder)) {
        let withdrawn = checkpoint::withdraw(folder);
        // Its parts go too, so nothing goes on from it.
        let _ = withdrawn.inspect_err(|error| tracing::warn!("{}", one_line(error)));
        return Err(CheckpointError::NotOpened(why));
    }
    Ok(digest)
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl WritesCheckpoints for Checkpoints {
    fn checkpoint(
        &self,
        request: &CheckpointRequest,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<CheckpointAnswer, Refusal> {
        self.write(request, tell).map_err(|error| error.refusal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::restore::opens;
    use checkpoint::{Compression, PartHead, PartWriter};
    use std::collections::BTreeMap;
    use std::iter::once;
    use std::process::id;

    #[test]
    fn checkpoint_from_which_no_vm_could_go_on_is_withdrawn() {
        let folder = std::env::temp_dir().join(format!("tessera-withdrawn-{}", id()));
        let (vm, generation, cut) = ([1; 16], 0, 3);
        let head = PartHead { vm, generation, cut, slice: SliceId(0) };
        let part = PartWriter::create(&folder, &head, Compression::None).unwrap().finish();
        let contents = Contents {
            vm,
            generation,
            cut,
            created_unix_ms: 0,
            base: None,
            frames: once(0..16).collect(),
            parts: vec![part.unwrap()],
            spec: "{}".into(),
            extra: BTreeMap::new(),
            producer: "a test".into(),
        };
        let manifest = folder.join("manifest");
        let why = commit_if(&folder, (&contents, None), Some(opens)).unwrap_err();
        assert!(
            matches!(&why, CheckpointError::NotOpened(why) if why.contains("what VM")),
            "{why}"
        );
        assert!(!manifest.exists());
        // To whom it does not matter it is one.
        commit_if(&folder, (&contents, None), None).unwrap();
        assert!(manifest.exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn path_has_a_folder_and_a_name() {
        let target = Target::of("/var/lib/checkpoints/monday").unwrap();
        assert_eq!(target.parent, Path::new("/var/lib/checkpoints"));
        assert_eq!(target.folder(), Path::new("/var/lib/checkpoints/monday"));
        for path in ["monday", "/", "/a/..", "/a/b c", "/a/.b"] {
            assert!(Target::of(path).is_err(), "{path}");
        }
    }
}
