//! Lines on the control socket.

use super::refusal::Refusal;
use devices::delegate::Counts;
use dsm::{PageTrace, Report};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read};
use std::net::SocketAddr;
use thiserror::Error;

/// Bytes of a request at most, without the end of its line.
pub const REQUEST_MAX: usize = 4096;

/// Something that a slice is asked. Commands to come are further variants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The hottest pages.
    Trace(TraceRequest),
    /// The counters of the memory engine and of delegated devices.
    Report(ReportRequest),
    /// Forgets which pages devices used so far, and tells the counters then.
    ForgetDevicePages(ForgetRequest),
    /// Changes settings of this slice, and tells the counters then.
    Tune(TuneRequest),
    /// Brings the whole VM to rest, until it is resumed. Of the coordinator.
    Pause(PauseRequest),
    /// Has the VM go on that was paused. Of the coordinator.
    Resume(ResumeRequest),
    /// Brings a vCPU to another slice. Of the coordinator.
    MoveVcpu(MoveVcpuRequest),
    /// Brings everything of a slice to others. Of the coordinator.
    Drain(DrainRequest),
    /// Drains all slices that are not needed. Of the coordinator.
    Consolidate(ConsolidateRequest),
    /// Brings vCPUs to slices that have fewer. Of the coordinator.
    Spread(SpreadRequest),
    /// Has a companion join as one slice more. Of the coordinator.
    Add(AddRequest),
    /// Says where groups of vCPUs would be better placed. Of the coordinator.
    Advise(AdviseRequest),
    /// Where each part of the VM is.
    Placement(PlacementRequest),
    /// Which vCPUs the guest has, once it has as many as wished. Of the coordinator.
    Vcpus(VcpusRequest),
    /// Writes down the whole VM. Of the coordinator.
    Checkpoint(CheckpointRequest),
    /// Says what moving parts would come to. Of the coordinator.
    Plan(PlanRequest),
    /// Presses the guest's power button once. Of the coordinator.
    PowerButton(PowerButtonRequest),
    /// Asks for the end of the VM. Of the coordinator.
    Stop(StopRequest),
}

/// Deleted checkpoints that one request tells of. More are told of by the next one.
pub const RELEASED_MAX: usize = 64;

/// Where a checkpoint goes, and what of it is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// Absolute path of its folder, which does not exist yet.
    pub path: String,
    /// The VM ends when it is written.
    #[serde(default)]
    pub end: bool,
    /// The guest stands still until it is written, and not only for its moment. So it does where the VM ends with it, and in a VM
    /// of one slice that no other can join.
    #[serde(default)]
    pub stop: bool,
    /// Only what has changed since the last checkpoint, which is in the same folder, is written.
    #[serde(default)]
    pub incremental: bool,
    /// Pages are made shorter.
    #[serde(default)]
    pub compress: bool,
    /// Disks may go on changing after it.
    #[serde(default)]
    pub no_disk_guarantee: bool,
    /// Numbers (`cut`) of checkpoints that were deleted, [`RELEASED_MAX`] at most: states that disks keep for them are not needed any more.
    #[serde(default)]
    pub released: Vec<u64>,
}

/// Whose pages count from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetRequest {
    /// Only those of this device, by its number in the VM; of all unless given.
    #[serde(default)]
    pub only: Option<u16>,
}

/// Settings that change; what is not given stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneRequest {
    /// Least and most hold window, in microseconds.
    #[serde(default)]
    pub hold_us: Option<(u64, u64)>,
    /// Whether pages that are lacked together are asked for together.
    #[serde(default)]
    pub correlation: Option<bool>,
}

/// All counters: there is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportRequest {}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementRequest {}

/// Which slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// The slice that is to be empty.
    pub slice: u16,
    /// It stays, empty, instead of leaving.
    #[serde(default)]
    pub stay: bool,
    /// All of it goes to this slice, whatever that offers; to those that have room if it is none.
    #[serde(default)]
    pub to: Option<u16>,
}

/// What becomes of slices that are not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsolidateRequest {
    /// They stay, empty, instead of leaving.
    #[serde(default)]
    pub stay: bool,
}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpreadRequest {}

/// Which companion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRequest {
    /// Where it listens.
    pub address: SocketAddr,
    /// It takes no vCPUs for now.
    #[serde(default)]
    pub empty: bool,
    /// The number of the slice, which is above all that there ever were; the next one if it is none.
    #[serde(default)]
    pub number: Option<u16>,
}

/// For how long pages are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviseRequest {
    /// Seconds.
    pub seconds: u64,
}

/// What is not to be done, but looked at. The same is refused that would be refused if it were to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanRequest {
    /// [`Request::MoveVcpu`].
    MoveVcpu(MoveVcpuRequest),
    /// [`Request::Drain`].
    Drain(DrainRequest),
    /// [`Request::Consolidate`].
    Consolidate(ConsolidateRequest),
    /// [`Request::Spread`].
    Spread(SpreadRequest),
}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerButtonRequest {}

/// How the VM is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// At once, without the guest. Else its power button is pressed until it hears it, and it has its time.
    #[serde(default)]
    pub force: bool,
}

/// How many vCPUs the guest is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpusRequest {
    /// As many as it has unless given.
    #[serde(default)]
    pub count: Option<u32>,
}

/// Which vCPU, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveVcpuRequest {
    /// The vCPU's number.
    pub vcpu: u32,
    /// The slice where it is to run.
    pub slice: u16,
}

/// Which pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// How many, at most [`super::TOP_MAX`].
    pub top: usize,
    /// What is counted.
    #[serde(default)]
    pub since: Since,
}

/// From when on something is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Since {
    /// The start of the slice, or since it began to remember the page.
    #[default]
    Start,
    /// The last answer to this client.
    Last,
}

/// What a slice says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The hottest pages.
    Trace(TraceAnswer),
    /// The counters.
    Report(Box<ReportAnswer>),
    /// What goes on; more answers to the same request follow.
    Progress(Progress),
    /// It was done.
    Done(DoneAnswer),
    /// Where each part of the VM is.
    Placement(PlacementAnswer),
    /// Where groups of vCPUs would be better placed.
    Advice(AdviceAnswer),
    /// Which vCPUs the guest has.
    Vcpus(VcpusAnswer),
    /// The VM is written down.
    Checkpoint(CheckpointAnswer),
    /// What would be done.
    Plan(PlanAnswer),
    /// Why there is no answer.
    Refused(Refusal),
}

/// What would be done; nothing has been.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanAnswer {
    /// A line for each step, in order.
    pub steps: Vec<String>,
}

/// Proposals; nothing has been done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceAnswer {
    /// A line for each, the most worth first. They exclude each other.
    pub proposals: Vec<String>,
}

/// The vCPUs of a VM in which some can come and go, each in one of the lists, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpusAnswer {
    /// The guest has them. Whether it uses them, it alone knows.
    pub present: Vec<u32>,
    /// It is told of them, and has not said what came of it.
    pub coming: Vec<u32>,
    /// It is asked for them, and has not given them back.
    pub leaving: Vec<u32>,
    /// It does not know them.
    pub absent: Vec<u32>,
}

/// How far something has come that takes long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Parts that have gone.
    pub done: usize,
    /// Parts in all.
    pub total: usize,
    /// What goes now.
    pub next: String,
}

/// What was asked for is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoneAnswer {
    /// How long that took.
    pub milliseconds: f64,
}

/// A checkpoint that is whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointAnswer {
    /// How long it took.
    pub milliseconds: f64,
    /// How long of that the guest stood still.
    pub paused_milliseconds: f64,
    /// Bytes of all parts.
    pub bytes: u64,
    /// Pages in all parts.
    pub pages: u64,
    /// What names it.
    pub digest: String,
    /// The number by which slices know it: `released` names it by that when it was deleted.
    #[serde(default)]
    pub cut: u64,
}

/// Where each part of the VM is, as the slice that was asked sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementAnswer {
    /// Grows by one with each change.
    pub epoch: u32,
    /// The slice that coordinates: requests about the whole VM go to its control socket.
    pub coordinator: u16,
    /// Which life of the VM it is: 0 before it goes on from a checkpoint, and higher each time that it does.
    #[serde(default)]
    pub life: u64,
    /// Each slice, ascending.
    pub slices: Vec<SlicePlaces>,
}

/// What one slice has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlicePlaces {
    /// The slice.
    pub slice: u16,
    /// vCPUs that run there.
    pub vcpus: Vec<u32>,
    /// MiB of memory that it is home of.
    pub memory_mib: u64,
    /// Devices that are on its host, by their numbers.
    pub devices: Vec<u16>,
    /// Queues that it serves: device and queue.
    pub queues: Vec<(u16, u16)>,
}

/// The hottest pages of a slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceAnswer {
    /// The slice.
    pub slice: u16,
    /// Whether it traces now.
    pub on: bool,
    /// Seconds over which was counted.
    pub seconds: f64,
    /// Times that a vCPU was asked where it is, since the start.
    pub samples_asked: u64,
    /// Answers that were of use.
    pub samples_kept: u64,
    /// Pages of which something happened in that time.
    pub pages_known: usize,
    /// Faults on all of them.
    pub faults: u64,
    /// The hottest of them, the hottest first.
    pub pages: Vec<PageTrace>,
}

/// Counters of a slice since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// The slice.
    pub slice: u16,
    /// The process that it is, on its host.
    pub process: u32,
    /// What the memory engine counted.
    pub memory: Report,
    /// What went between this slice's devices and front ends and those of others; none in a VM without devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated: Option<Counts>,
}

/// Why a line cannot be read.
#[derive(Debug, Error)]
pub enum LineError {
    /// It does not end.
    #[error("a line has more than {0} bytes")]
    TooLong(usize),
    /// The other end is gone, or went in the middle of a line.
    #[error("read a line")]
    Read(#[from] io::Error),
}

/// Reads a line of at most `max` bytes; none at the end.
pub(super) fn read_line(from: &mut impl BufRead, max: usize) -> Result<Option<Vec<u8>>, LineError> {
    let mut line = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    from.by_ref().take(limit).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop_if(|last| *last == b'\n').is_some() {
        return Ok(Some(line));
    }
    if line.len() > max { Err(LineError::TooLong(max)) } else { Err(cut().into()) }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the line is cut")
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// Not JSON, an unknown command, or one with unknown parts.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_read_and_others_refused() {
        let trace = |top, since| Request::Trace(TraceRequest { top, since });
        let parse = |text: &str| Request::parse(text.as_bytes());
        assert_eq!(parse(r#"{"trace":{"top":3}}"#).unwrap(), trace(3, Since::Start));
        let last = parse(r#"{"trace":{"top":3,"since":"last"}}"#).unwrap();
        assert_eq!(last, trace(3, Since::Last));
        let report = Request::Report(ReportRequest {});
        assert_eq!(parse(r#"{"report":{}}"#).unwrap(), report);
        let forget = |only| Request::ForgetDevicePages(ForgetRequest { only });
        assert_eq!(parse(r#"{"forget_device_pages":{}}"#).unwrap(), forget(None));
        assert_eq!(parse(r#"{"forget_device_pages":{"only":3}}"#).unwrap(), forget(Some(3)));
        let tune = TuneRequest { hold_us: Some((20, 500)), correlation: None };
        assert_eq!(parse(r#"{"tune":{"hold_us":[20,500]}}"#).unwrap(), Request::Tune(tune));
        assert!(parse(r#"{"tune":{"hold_us":[20]}}"#).is_err());
        let vcpus = |count| Request::Vcpus(VcpusRequest { count });
        assert_eq!(parse(r#"{"vcpus":{}}"#).unwrap(), vcpus(None));
        assert_eq!(parse(r#"{"vcpus":{"count":3}}"#).unwrap(), vcpus(Some(3)));
        assert!(parse(r#"{"report":{"top":1}}"#).is_err());
        for text in ["", "{}", "trace", r#"{"trace":{}}"#, r#"{"trace":{"top":-1}}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(r#"{"trace":{"top":1,"more":2}}"#).is_err());
        assert!(parse(r#"{"destroy":{}}"#).unwrap_err().to_string().contains("unknown variant"));
    }

    #[test]
    fn line_that_is_too_long_or_cut_is_an_error() {
        let read = |bytes: &[u8]| read_line(&mut &bytes[..], 4);
        assert_eq!(read(b"1234\n5").unwrap().unwrap(), b"1234");
        assert!(matches!(read(b"12345\n"), Err(LineError::TooLong(4))));
        assert!(matches!(read(b"123"), Err(LineError::Read(_))));
        assert!(read(b"").unwrap().is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), max in 0usize..64) {
            let mut rest = &bytes[..];
            while let Ok(Some(line)) = read_line(&mut rest, max) {
                prop_assert!(line.len() <= max);
                let _ = Request::parse(&line);
            }
        }

        #[test]
        fn requests_come_back(top: usize, last: bool) {
            let since = if last { Since::Last } else { Since::Start };
            let request = Request::Trace(TraceRequest { top, since });
            let line = serde_json::to_vec(&request).unwrap();
            prop_assert!(line.len() <= REQUEST_MAX);
            prop_assert_eq!(Request::parse(&line).unwrap(), request);
        }
    }
}
