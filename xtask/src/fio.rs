//! fio in the guest: its command line and what it reports (`--output-format=json`, fio(1)).

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// What fio does to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pattern {
    Read,
    Write,
    RandRead,
    RandWrite,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
        }
    }
}

/// Bytes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Block {
    Small,
    Large,
}

impl Block {
    fn name(self) -> &'static str {
        match self {
            Self::Small => "4k",
            Self::Large => "1m",
        }
    }
}

/// One kind of load on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Job {
    pub(crate) block: Block,
    pub(crate) pattern: Pattern,
    /// Threads, each with one request at a time.
    pub(crate) jobs: u16,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} x{}", self.block.name(), self.pattern.name(), self.jobs)
    }
}

/// Part of a disk that a load uses.
const REGION: &str = "64m";

impl Job {
    /// A shell line for the guest that loads a disk from one CPU, for so many seconds of the guest's clock
    /// after a warm-up as long. fio itself stays on that CPU too.
    pub(crate) fn line(self, disk: &str, cpu: u16, seconds: f64) -> String {
        let Self { block, pattern, jobs } = self;
        let time = Duration::from_secs_f64(seconds).as_millis();
        format!(
            "taskset -c {cpu} fio --name=load --filename={disk} --direct=1 --ioengine=psync \
             --rw={} --bs={} --size={REGION} --numjobs={jobs} --thread --group_reporting \
             --time_based --runtime={time}ms --ramp_time={time}ms --norandommap --cpus_allowed={cpu} \
             --allow_file_create=0 --output-format=json",
            pattern.name(),
            block.name()
        )
    }
}

/// A shell line that starts a load with one thread and fixed buffers in the background: reads and writes
/// of 1 MiB, so many MiB altogether, from one CPU. The result goes into `file` at the end.
pub(crate) fn long_line(disk: &str, cpu: u16, mib: u64, file: &str) -> String {
    format!(
        "rm -f {file}; nohup taskset -c {cpu} fio --name=long --filename={disk} --direct=1 \
         --ioengine=psync --rw=rw --bs=1m --size={REGION} --io_size={mib}m --loops=100000 --thread \
         --cpus_allowed={cpu} --allow_file_create=0 --eta=never --output-format=json \
         --output={file} >/dev/null 2>&1 </dev/null & echo started"
    )
}

/// What a load amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    /// Bytes for each second.
    pub(crate) bandwidth: f64,
    /// Requests for each second.
    pub(crate) rate: f64,
    /// Median time of a request, in nanoseconds.
    pub(crate) p50_ns: f64,
    /// Requests.
    pub(crate) requests: u64,
    /// Bytes.
    pub(crate) bytes: u64,
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Reported>,
}

#[derive(Deserialize)]
struct Reported {
    #[serde(default)]
    error: i64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    bw_bytes: f64,
    iops: f64,
    total_ios: u64,
    clat_ns: Times,
}

#[derive(Deserialize)]
struct Times {
    mean: f64,
    #[serde(default)]
    percentile: Option<Percentiles>,
}

#[derive(Deserialize)]
struct Percentiles {
    #[serde(rename = "50.000000")]
    p50: f64,
}

impl Measured {
    /// Reads fio's report; notes before it are passed over. Reads and writes are added up; the time is that
    /// of the direction with more requests.
    ///
    /// # Errors
    /// No report, an error of fio's, or nothing was read or written.
    pub(crate) fn read(said: &str) -> Result<Self> {
        let Some(at) = said.find('{') else { bail!("fio reported nothing: {}", said.trim()) };
        let output: Output = serde_json::from_str(&said[at..]).context("read fio's report")?;
        let mut sum = Self::default();
        let mut most = 0;
        for job in &output.jobs {
            ensure!(job.error == 0, "fio failed with error {}", job.error);
            for direction in [&job.read, &job.write] {
                sum.bandwidth += direction.bw_bytes;
                sum.rate += direction.iops;
                sum.requests += direction.total_ios;
                sum.bytes += direction.io_bytes;
                if direction.total_ios > most {
                    most = direction.total_ios;
                    let times = &direction.clat_ns;
                    sum.p50_ns = times.percentile.as_ref().map_or(times.mean, |of| of.p50);
                }
            }
        }
        ensure!(sum.requests > 0, "fio finished no request in its time; give it more seconds");
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of fio 3.39, with what is not read left out.
    const REPORT: &str = r#"fio: note: something
{ "fio version" : "fio-3.39", "jobs" : [ { "jobname" : "load", "groupid" : 0, "error" : 0,
  "read" : { "io_bytes" : 8192, "io_kbytes" : 8, "bw_bytes" : 4096, "bw" : 4, "iops" : 1.000000,
    "runtime" : 2000, "total_ios" : 2,
    "clat_ns" : { "min" : 5, "max" : 9, "mean" : 7.0, "N" : 2, "percentile" :
      { "1.000000" : 5, "50.000000" : 6, "99.990000" : 9 } } },
  "write" : { "io_bytes" : 0, "bw_bytes" : 0, "iops" : 0.0, "total_ios" : 0,
    "clat_ns" : { "min" : 0, "max" : 0, "mean" : 0.0, "N" : 0 } } } ], "disk_util" : [] }"#;

    #[test]
    fn report_with_notes_before_it_is_read() {
        let found = Measured::read(REPORT).unwrap();

        let right =
            Measured { bandwidth: 4096.0, rate: 1.0, p50_ns: 6.0, requests: 2, bytes: 8192 };
        assert_eq!(found, right);
    }

    #[test]
    fn failures_of_fio_are_errors() {
        let fails = |text: &str| format!("{:#}", Measured::read(text).unwrap_err());

        assert!(fails("fio: no such disk").contains("no such disk"));
        assert!(fails(&REPORT.replace("\"error\" : 0", "\"error\" : 5")).contains("error 5"));
        let idle = REPORT.replace("\"total_ios\" : 2", "\"total_ios\" : 0");
        assert!(fails(&idle).contains("no request"));
        assert!(fails(&REPORT[..200]).contains("read fio's report"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,200}", at in 0..REPORT.len()) {
            let _ = Measured::read(&text);
            let _ = Measured::read(&format!("{}{text}", &REPORT[..at]));
        }
    }
}
