//! How answers are printed: the same fields as a table for people, JSON, YAML, or names alone.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use control::longrunning::Operation;
use control::longrunning::operation::Result as Outcome;
use control::v1::{
    ClusterHost, ClusterProgress, ClusterStatus, ClusterVm, HostResources, PlacedSlice,
    VmExplanation, VmPlan, cluster_host, cluster_vm,
};
use prost::Message;
use serde_json::{Value, json};
use std::io::{Write, stderr, stdout};

/// A line on standard error of what goes on. Who reads only the answer may have closed that.
pub(crate) fn remark(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Format {
    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Words and tables for people
    #[default]
    Table,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// Names only, one a line
    Name,
}

/// One thing that is printed.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) cells: Vec<String>,
    pub(crate) value: Value,
}

/// Text for people, the same as a value, and names.
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) value: Value,
    pub(crate) names: Vec<String>,
}

/// A table of all of them.
pub(crate) fn table(header: &[&str], entries: Vec<Entry>) -> Page {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for entry in entries {
        table.add_row(entry.cells);
        names.push(entry.name);
        values.push(entry.value);
    }
    Page { text: table.to_string(), value: Value::Array(values), names }
}

impl Format {
    pub(crate) fn print(self, page: &Page) -> Result<()> {
        let text = match self.output {
            Output::Table => page.text.trim_end().to_owned(),
            Output::Json => serde_json::to_string_pretty(&page.value)?,
            Output::Yaml => serde_saphyr::to_string(&page.value)?.trim_end().to_owned(),
            Output::Name => page.names.join("\n"),
        };
        writeln!(stdout(), "{text}").context("print the answer")
    }
}

/// The state of what is no more.
pub(crate) const DELETED: &str = "DELETED";

/// Entries that come one after another. Columns are as wide as what has come.
pub(crate) struct Rows {
    format: Format,
    /// Until they are printed.
    titles: Option<Vec<String>>,
    widths: Vec<usize>,
}

impl Rows {
    pub(crate) fn new(format: Format, titles: &[&str]) -> Self {
        let titles = titles.iter().map(ToString::to_string).collect();
        Self { format, titles: Some(titles), widths: Vec::new() }
    }

    /// What is printed of an entry: of two that agree in this, one need not be.
    pub(crate) fn shown(&self, entry: &Entry) -> Value {
        match self.format.output {
            Output::Table => json!(entry.cells),
            Output::Json | Output::Yaml => entry.value.clone(),
            Output::Name => json!(entry.name),
        }
    }

    /// Prints these, and titles before the first of all.
    pub(crate) fn print(&mut self, entries: &[Entry]) -> Result<()> {
        for line in self.lines(entries)? {
            writeln!(stdout(), "{line}").context("print the answer")?;
        }
        Ok(())
    }

    fn lines(&mut self, entries: &[Entry]) -> Result<Vec<String>> {
        let yaml = |entry: &Entry| {
            let document = serde_saphyr::to_string(&entry.value)?;
            anyhow::Ok(format!("---\n{}", document.trim_end()))
        };
        match self.format.output {
            Output::Table => Ok(self.columns(entries)),
            Output::Json => Ok(entries.iter().map(|entry| entry.value.to_string()).collect()),
            Output::Yaml => entries.iter().map(yaml).collect(),
            // A name alone does not tell who has gone from who has come.
            Output::Name => {
                let there = entries.iter().filter(|entry| entry.value["state"] != DELETED);
                Ok(there.map(|entry| entry.name.clone()).collect())
            }
        }
    }

    fn columns(&mut self, entries: &[Entry]) -> Vec<String> {
        let titles = self.titles.take();
        let rows: Vec<&Vec<String>> =
            titles.iter().chain(entries.iter().map(|entry| &entry.cells)).collect();
        for row in &rows {
            self.widths.resize(row.len(), 0);
            for (width, cell) in self.widths.iter_mut().zip(*row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let pad = |(cell, width): (&String, &usize)| format!("{cell:width$}");
        let line = |row: &&Vec<String>| row.iter().zip(&self.widths).map(pad).collect::<Vec<_>>();
        rows.iter().map(|row| line(row).join("  ").trim_end().to_owned()).collect()
    }
}

fn bare(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, rest)| rest)
}

fn resources(resources: Option<&HostResources>) -> Value {
    resources.map_or(Value::Null, |it| json!({ "cores": it.cores, "memoryBytes": it.memory_bytes }))
}

fn places(placement: &[PlacedSlice]) -> Value {
    let part = |part: &PlacedSlice| json!({ "host": bare(&part.host), "vcpus": part.vcpus, "memoryBytes": part.memory_bytes });
    Value::Array(placement.iter().map(part).collect())
}

/// As `a:4+b:2`.
fn hosts(placement: &[PlacedSlice]) -> String {
    let parts = placement.iter().map(|part| format!("{}:{}", bare(&part.host), part.vcpus.len()));
    let text = parts.collect::<Vec<_>>().join("+");
    if text.is_empty() { "-".to_owned() } else { text }
}

pub(crate) fn state(vm: &ClusterVm) -> String {
    let name = vm.state().as_str_name().to_owned();
    if vm.state() == cluster_vm::State::Unspecified { "-".to_owned() } else { name }
}

pub(crate) const VM: [&str; 7] = ["name", "state", "vCPUs", "MiB", "where", "life", "why"];

pub(crate) fn vm(vm: &ClusterVm) -> Entry {
    let spec = vm.spec.clone().unwrap_or_default();
    let name = bare(&vm.name).to_owned();
    let value = json!({
        "name": name, "uid": vm.uid, "state": state(vm), "why": vm.why, "life": vm.life,
        "vcpus": spec.vcpus, "memoryBytes": spec.memory_bytes, "class": spec.class().as_str_name(),
        "run": spec.run().as_str_name(), "kernel": spec.kernel, "etag": vm.etag,
        "generation": vm.generation, "observedGeneration": vm.observed_generation,
        "placement": places(&vm.placement), "operation": vm.operation,
    });
    let cells = vec![
        name.clone(),
        state(vm),
        spec.vcpus.to_string(),
        (spec.memory_bytes >> 20).to_string(),
        hosts(&vm.placement),
        vm.life.to_string(),
        vm.why.clone(),
    ];
    Entry { name, cells, value }
}

/// A cluster as a whole.
pub(crate) fn status(status: &ClusterStatus) -> Page {
    let ClusterStatus { leader, term, hosts, hosts_up, .. } = status;
    let ClusterStatus { vms, vms_running, vms_waiting, vms_aggregate, .. } = status;
    let (free, percent) = (status.free_cores, status.fragmentation * 100.0);
    let lines = [
        format!("{leader} leads, since term {term}"),
        format!("hosts: {hosts_up} of {hosts} are up"),
        format!(
            "VMs: {vms_running} of {vms} run, {vms_waiting} wait, {vms_aggregate} are on several hosts"
        ),
        format!("free cores: {free}, of which VMs of the usual sizes cannot use {percent:.0} %"),
    ];
    let value = json!({
        "leader": leader, "term": term, "hosts": hosts, "hostsUp": hosts_up, "vms": vms,
        "vmsRunning": vms_running, "vmsWaiting": vms_waiting, "vmsAggregate": vms_aggregate,
        "freeCores": free, "fragmentation": status.fragmentation,
    });
    Page { text: lines.join("\n"), value, names: vec![leader.clone()] }
}

pub(crate) const HOST: [&str; 6] = ["name", "state", "takes VMs", "free cores", "free MiB", "VMs"];

pub(crate) fn host(host: &ClusterHost) -> Entry {
    let name = bare(&host.name).to_owned();
    let of = |it: Option<&HostResources>| it.copied().unwrap_or_default();
    let (total, free) = (of(host.capacity.as_ref()), of(host.free.as_ref()));
    let is_known = host.state() != cluster_host::State::Unspecified;
    let state = if is_known { host.state().as_str_name() } else { "-" };
    let vms: Vec<&str> = host.vms.iter().map(|it| bare(it)).collect();
    let stays: Vec<Value> =
        host.stays.iter().map(|it| json!({ "vm": bare(&it.vm), "why": it.why })).collect();
    let value = json!({
        "name": name, "agent": host.agent, "state": state, "cordoned": host.cordoned,
        "draining": host.draining, "stays": stays,
        "capacity": resources(host.capacity.as_ref()), "free": resources(host.free.as_ref()),
        "vms": vms, "bootId": host.boot_id, "version": host.version, "etag": host.etag,
        "warning": host.warning, "lacks": host.lacks,
    });
    let state = match &host.warning[..] {
        "" => state.to_owned(),
        warning => format!("{state}: {warning}"),
    };
    let is_up = host.state() == cluster_host::State::Up;
    let takes = is_up && !host.cordoned && host.lacks.is_empty();
    let cells = vec![
        name.clone(),
        state,
        if takes { "yes" } else { "no" }.to_owned(),
        format!("{} of {}", free.cores, total.cores),
        format!("{} of {}", free.memory_bytes >> 20, total.memory_bytes >> 20),
        if vms.is_empty() { "-".to_owned() } else { vms.join(" ") },
    ];
    Entry { name, cells, value }
}

pub(crate) const OPERATION: [&str; 5] = ["name", "of", "what", "stands", "step"];

/// How it stands, in a word.
fn stands(operation: &Operation) -> (&'static str, String) {
    match &operation.result {
        None => ("goes on", String::new()),
        Some(Outcome::Response(_)) => ("done", String::new()),
        Some(Outcome::Error(error)) => ("failed", error.message.clone()),
    }
}

fn far(operation: &Operation) -> ClusterProgress {
    let metadata = operation.metadata.as_ref();
    metadata.and_then(|it| ClusterProgress::decode(&it.value[..]).ok()).unwrap_or_default()
}

fn steps(progress: &ClusterProgress) -> Value {
    let step = |step: &control::v1::ProgressStep| json!({ "what": step.what, "done": step.done, "undone": step.undone });
    Value::Array(progress.steps.iter().map(step).collect())
}

pub(crate) fn operation(operation: &Operation) -> Entry {
    let (progress, (stands, error)) = (far(operation), stands(operation));
    let name = bare(&operation.name).to_owned();
    let value = json!({
        "name": name, "target": progress.target, "verb": progress.verb, "state": stands,
        "error": error, "steps": steps(&progress), "undoing": progress.undoing,
    });
    let next = progress.steps.iter().find(|step| !step.done && !operation.done);
    let cells = vec![
        name.clone(),
        bare(&progress.target).to_owned(),
        progress.verb,
        stands.to_owned(),
        next.map_or(error, |step| step.what.clone()),
    ];
    Entry { name, cells, value }
}

/// Lines about hosts that are not taken.
fn rejected(all: &[control::v1::RejectedHost]) -> (String, Value) {
    let line = |it: &control::v1::RejectedHost| format!("  {}: {}\n", bare(&it.host), it.why);
    let value = |it: &control::v1::RejectedHost| json!({ "host": bare(&it.host), "why": it.why });
    (all.iter().map(line).collect(), all.iter().map(value).collect())
}

pub(crate) fn plan(name: &str, plan: &VmPlan) -> Page {
    let (lines, hosts_not_taken) = rejected(&plan.rejected);
    let mut text = match (plan.unchanged, plan.placement.is_empty()) {
        (true, _) => format!("{name} wants just that already: nothing to do"),
        (false, true) => format!("{name} would wait: {}", plan.why),
        (false, false) => {
            format!("{name} would run on {} ({})", hosts(&plan.placement), plan.why)
        }
    };
    if !plan.unchanged {
        if !lines.is_empty() {
            text = format!("{text}\nnot taken:\n{}", lines.trim_end());
        }
        text = format!("{text}\nplan: {}", plan.token);
    }
    let value = json!({
        "name": name, "unchanged": plan.unchanged, "placement": places(&plan.placement),
        "why": plan.why, "rejected": hosts_not_taken, "plan": plan.token,
    });
    Page { text, value, names: vec![name.to_owned()] }
}

pub(crate) fn explanation(told: &VmExplanation) -> Page {
    let known = told.vm.clone().unwrap_or_default();
    let entry = vm(&known);
    let mut text = format!("{} is {} on {}", entry.name, state(&known), hosts(&known.placement));
    text = format!(
        "{text}\nwhy: {}\nhosts that all of it would fit on now: {}",
        told.why, told.hosts_that_fit
    );
    let (lines, hosts_not_taken) = rejected(&told.rejected);
    if !lines.is_empty() {
        text = format!("{text}\nit would not fit on:\n{}", lines.trim_end());
    }
    let progress = told.operation.clone().unwrap_or_default();
    for step in &progress.steps {
        let mark = if step.undone {
            "undone"
        } else if step.done {
            "done"
        } else {
            "to do"
        };
        text = format!("{text}\n{}: {} ({mark})", progress.verb, step.what);
    }
    let value = json!({
        "vm": entry.value, "why": told.why, "hostsThatFit": told.hosts_that_fit,
        "rejected": hosts_not_taken, "verb": progress.verb, "steps": steps(&progress),
        "undoing": progress.undoing,
    });
    Page { text, value, names: vec![entry.name] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_rows_are_as_wide_as_what_has_come() {
        let entry = |name: &str, state: &str| Entry {
            name: name.to_owned(),
            cells: vec![name.to_owned(), state.to_owned()],
            value: json!({ "name": name }),
        };
        let mut rows = Rows::new(Format { output: Output::Table }, &["name", "state"]);
        let first = [entry("web", "-"), entry("database", "RUNNING")];
        let lines = ["name      state", "web       -", "database  RUNNING"];
        assert_eq!(rows.lines(&first).unwrap(), lines);
        assert_eq!(rows.lines(&[entry("web", "LOST")]).unwrap(), ["web       LOST"]);
        let mut none = Rows::new(Format { output: Output::Table }, &["name"]);
        assert_eq!(none.lines(&[]).unwrap(), ["name"]);
    }
}
