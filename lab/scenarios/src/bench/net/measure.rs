//! One turn of a mode: a load on its server.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use lab::distro::{CPU_PORT, GUEST_ADDRESS, Object};
use lab::http::LoadReport;

use super::load::load;
use super::plan::{MODES, Mode, Plan, objects};
use super::raw::raw_url;
use super::second::ADDRESS;
use crate::bench::devices::{LOCAL_CPU, REMOTE_CPU, Setup};
use crate::bench::rig::{Figures, order};

/// Requests on their way at a time.
pub(crate) const CONNECTIONS: usize = 2;

/// An object of the server of a mode.
fn url(setup: &Setup<'_>, mode: Mode, object: &str) -> Result<String> {
    let (address, cpu) = match mode {
        Mode::Raw => return raw_url(setup, object),
        Mode::Local => (GUEST_ADDRESS, LOCAL_CPU),
        Mode::Bypass => (GUEST_ADDRESS, REMOTE_CPU),
        Mode::Coherent => (ADDRESS, REMOTE_CPU),
    };
    Ok(format!("http://{address}:{}/{object}", CPU_PORT + cpu))
}

/// Loads on the servers of a VM that is up.
#[derive(Debug)]
pub(crate) struct Loads<'a> {
    pub(crate) setup: &'a Setup<'a>,
    /// Of one load.
    pub(crate) seconds: u32,
    /// Whether the client has a line of its own.
    pub(crate) line: bool,
    /// Loads that were given up, and why.
    pub(crate) failed: BTreeSet<String>,
}

impl Loads<'_> {
    fn load(&self, mode: Mode, object: Object) -> Result<LoadReport> {
        let url = url(self.setup, mode, object.name)?;
        load(self.setup, &url, (CONNECTIONS, self.seconds), self.line && mode != Mode::Raw)
    }

    /// Loads of which nothing is kept.
    pub(crate) fn warm_up(&self, plan: Plan) {
        let Some(object) = objects(plan.objects).into_iter().next() else { return };
        for mode in MODES {
            let how = match self.load(mode, object) {
                Ok(report) => format!("{} requests", report.requests),
                // It is told if it fails again.
                Err(error) => format!("{error:#}"),
            };
            self.setup.rig.say(&format!("warm-up, {} {mode}: {how}", object.name));
        }
    }

    /// All loads in turn. A mode that fails for an object is not asked for that one again.
    pub(crate) fn measure(
        &mut self,
        objects: &[Object],
        modes: &[Mode],
        times: usize,
        figures: &mut Figures<usize, Mode>,
    ) -> Result<()> {
        let mut out = BTreeSet::new();
        for (round, object) in
            (0..times).flat_map(|round| objects.iter().map(move |object| (round, *object)))
        {
            for mode in order(modes, round) {
                self.setup.rig.check()?;
                if out.contains(&(object.bytes, mode)) {
                    continue;
                }
                let name = format!("{} {mode}", object.name);
                match self.load(mode, object) {
                    Ok(report) => {
                        #[expect(clippy::cast_precision_loss, reason = "minutes at most")]
                        let p50 = report.latency_us.p50 as f64 / 1e3;
                        let (rate, requests) = (report.requests_per_second, report.requests);
                        let free = if self.line { "" } else { ", no line" };
                        self.setup.rig.say(&format!(
                            "round {} of {times}, {name}: {rate:.2} requests/s, p50 {p50:.1} ms, {requests} \
                             requests{free}",
                            round + 1,
                        ));
                        figures.add(object.bytes, mode, round, vec![rate, p50]);
                    }
                    Err(error) if mode == Mode::Coherent => {
                        let why = format!("{name} was given up: {error:#}");
                        self.setup.rig.say(&why);
                        self.failed.insert(why);
                        out.insert((object.bytes, mode));
                    }
                    Err(error) => return Err(error).context(name),
                }
            }
        }
        Ok(())
    }
}
