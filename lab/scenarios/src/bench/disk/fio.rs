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
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Small => "4k",
            Self::Large => "1m",
        }
    }

    /// Bytes of a request.
    pub(crate) fn bytes(self) -> f64 {
        match self {
            Self::Small => 4096.0,
            Self::Large => 1_048_576.0,
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

/// Times of the guest's clock, for each load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) warm_up: Duration,
    pub(crate) load: Duration,
}

/// A shell line for the guest that puts loads on a disk from one CPU, one after the other, each after a
/// warm-up. One fio does them all, on that CPU too: to start a program may take longer than a load.
pub(crate) fn line(jobs: &[Job], disk: &str, cpu: u16, times: Times) -> String {
    let (load, warm_up) = (times.load.as_millis(), times.warm_up.as_millis());
    let head = format!(
        "taskset -c {cpu} fio --output-format=json --eta=never --name=global --filename={disk} \
         --direct=1 --ioengine=psync --size={REGION} --thread --group_reporting --time_based \
         --runtime={load}ms --ramp_time={warm_up}ms --norandommap --cpus_allowed={cpu} --disk_util=0 \
         --allow_file_create=0"
    );
    let section = |(number, job): (usize, &Job)| {
        let Job { block, pattern, jobs } = job;
        let (pattern, block) = (pattern.name(), block.name());
        format!(" --name=load{number} --stonewall --rw={pattern} --bs={block} --numjobs={jobs}")
    };
    head + &jobs.iter().enumerate().map(section).collect::<String>()
}

/// A shell line that starts a load with one thread and fixed buffers in the background: reads and writes
/// of 1 MiB, so many MiB altogether, from one CPU: fio begins its part of the disk again as often as it takes. The
/// result goes into `file` at the end.
pub(crate) fn long_line(disk: &str, cpu: u16, mib: u64, file: &str) -> String {
    format!(
        "rm -f {file}; nohup taskset -c {cpu} fio --name=long --filename={disk} --direct=1 \
         --ioengine=psync --rw=rw --bs=1m --size={REGION} --io_size={mib}m --thread \
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
    clat_ns: Latencies,
}

#[derive(Deserialize)]
struct Latencies {
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
    /// Reads fio's report of one load; notes before it are passed over.
    ///
    /// # Errors
    /// No report, an error of fio's, or nothing was read or written.
    pub(crate) fn read(said: &str) -> Result<Self> {
        let [only] = Self::read_all(said, 1)?[..] else { bail!("fio reported no load") };
        only.context("fio finished no request in its time; give it more seconds")
    }

    /// Reads fio's report of so many loads. Nothing for a load of which no request was finished in its
    /// time.
    ///
    /// # Errors
    /// No report, of more or fewer loads, or an error of fio's.
    pub(crate) fn read_all(said: &str, loads: usize) -> Result<Vec<Option<Self>>> {
        let Some(at) = said.find('{') else { bail!("fio reported nothing: {}", said.trim()) };
        let output: Output = serde_json::from_str(&said[at..]).context("read fio's report")?;
        ensure!(output.jobs.len() == loads, "fio reported {} of {loads} loads", output.jobs.len());
        output.jobs.iter().map(Self::of).collect()
    }

    /// Reads and writes are added up; the time is that of the direction with more requests.
    fn of(job: &Reported) -> Result<Option<Self>> {
        ensure!(job.error == 0, "fio failed with error {}", job.error);
        let mut sum = Self::default();
        let mut most = 0;
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
        Ok((sum.requests > 0).then_some(sum))
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
        assert!(Measured::read_all(REPORT, 2).is_err());
        let idle = REPORT.replace("\"total_ios\" : 2", "\"total_ios\" : 0");
        assert_eq!(Measured::read_all(&idle, 1).unwrap(), [None]);
    }

    #[test]
    fn line_has_a_section_for_each_load() {
        let job = |pattern, jobs| Job { block: Block::Small, pattern, jobs };
        let jobs = [job(Pattern::RandRead, 1), job(Pattern::Write, 8)];
        let second = Duration::from_millis(250);
        let said = line(&jobs, "/dev/vdb", 1, Times { warm_up: second, load: 2 * second });

        let (head, sections) = said.split_once(" --name=load0 ").unwrap();
        assert!(head.contains("taskset -c 1 fio") && head.contains("--runtime=500ms"));
        let (first, last) = sections.split_once(" --name=load1 ").unwrap();
        assert_eq!(first, "--stonewall --rw=randread --bs=4k --numjobs=1");
        assert_eq!(last, "--stonewall --rw=write --bs=4k --numjobs=8");
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
