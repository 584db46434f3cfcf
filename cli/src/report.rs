//! Where the report of a run goes.

use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use vmm::slice::RunReport;

#[derive(Args, Clone, Debug)]
pub(crate) struct ReportFile {
    /// Write a report of the run as JSON: of all slices if this one coordinates the VM at its end, else of this one
    ///
    /// docs/operations.md lists its fields.
    #[arg(long = "report", value_name = "FILE")]
    path: Option<PathBuf>,
}

impl ReportFile {
    /// Whether it can be written, as far as one can see before the run, which is not to end without a report because of a
    /// misspelt folder. Creates nothing: the VM may still be refused.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if !folder.is_none_or(Path::is_dir) {
            bail!("cannot write the report {}: its folder does not exist", path.display());
        }
        if path.is_dir() {
            bail!("cannot write the report {}: it is a folder", path.display());
        }
        Ok(())
    }

    /// Writes it. The VM has run, and the exit status tells how it ended: a failure is only logged.
    pub(crate) fn write(&self, report: &RunReport) {
        let Some(path) = &self.path else { return };
        if let Err(error) = write(path, report) {
            tracing::error!("{error:#}");
        }
    }
}

fn write(path: &Path, report: &RunReport) -> Result<()> {
    let text = serde_json::to_string_pretty(report).context("format the report")?;
    fs::write(path, text).with_context(|| format!("write the report {}", path.display()))
}
