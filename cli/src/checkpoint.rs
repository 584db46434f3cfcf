//! `tessera checkpoint`: looks into the folders of checkpoints, of which no VM needs to run.

mod deletion;

use ::checkpoint::{
    Authenticity, Checkpoint, Contents, Digest, Key, LayerStatistics, Listed, PartSummary, State,
    export, list,
};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::io::{Write, stdout};
use std::path::PathBuf;
use transport::Secret;
use wire::SliceId;

const MIB: f64 = 1_048_576.0;

#[derive(Args, Debug)]
#[command(
    after_help = "To write one: tessera vm checkpoint. To go on from one: tessera bootstrap --restore."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the checkpoints in a folder: which are complete, unfinished or damaged. Pages are not read.
    List(ListArguments),
    /// Show what a checkpoint is of, and what it and its bases consist of. Pages are not read.
    Show(ShowArguments),
    /// Read every byte of a checkpoint and of its bases, and compare it with its digest.
    Verify(VerifyArguments),
    /// Delete a checkpoint, or what an interruption has left of one, with the states of its disks. Refused while another is an increment
    /// of it.
    ///
    /// A state is merged with the next one or removed at once if no VM has the disk open, and else at the next checkpoint of that VM. What
    /// is on other hosts stays there. Where others may need them one has to say whether they go: those of a copy or an export, in another
    /// folder than that in which the checkpoint was made; and those of a disk that another VM has now.
    Delete(DeleteArguments),
    /// Write a checkpoint and its bases as one that needs no base.
    Export(ExportArguments),
}

#[derive(Args, Debug)]
struct ListArguments {
    /// Folder that the folders of checkpoints are in
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ShowArguments {
    /// Folder of the checkpoint
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct VerifyArguments {
    /// Folder of the checkpoint
    path: PathBuf,
    #[command(flatten)]
    secret: SecretArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct DeleteArguments {
    /// Folder of the checkpoint
    path: PathBuf,
    /// Keep the states of its disks: the original, or an export or a copy elsewhere, needs them. One in the same folder keeps them by itself
    #[arg(long)]
    keep_disks: bool,
    /// Give up the states of its disks also if it is a copy or an export, or another VM has the disk now: nobody else needs them
    #[arg(long, conflicts_with = "keep_disks")]
    give_up_disks: bool,
    #[command(flatten)]
    secret: SecretArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ExportArguments {
    /// Folder of the checkpoint
    path: PathBuf,
    /// Folder to make for the new one
    target: PathBuf,
    #[command(flatten)]
    secret: SecretArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct SecretArguments {
    /// File with the VM's secret: the checkpoint and its bases must then be authenticated by it
    #[arg(long = "secret-file", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl SecretArguments {
    fn key(&self) -> Result<Option<Key>> {
        let secret = self.file.as_deref().map(Secret::load).transpose();
        let secret = secret.context("load the VM's secret")?;
        Ok(secret.map(|secret| secret.derive(Key::of_secret)))
    }
}

/// Does what is asked, and prints what there is to say.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let text = match &arguments.verb {
        Verb::List(ListArguments { folder, json }) => {
            let listed = list(folder)?;
            match (*json, listed.is_empty()) {
                (true, _) => list_json(&listed).to_string(),
                (false, true) => format!("no checkpoints in {}", folder.display()),
                (false, false) => list_table(&listed),
            }
        }
        Verb::Show(ShowArguments { path, json }) => {
            let checkpoint = Checkpoint::open(path, None)?;
            if *json { show_json(&checkpoint).to_string() } else { show_tables(&checkpoint) }
        }
        Verb::Verify(arguments) => verify(arguments)?,
        Verb::Delete(arguments) => deletion::delete(arguments)?,
        Verb::Export(arguments) => exported(arguments)?,
    };
    writeln!(stdout(), "{text}").context("print the answer")
}

fn verify(VerifyArguments { path, secret, json }: &VerifyArguments) -> Result<String> {
    let checkpoint = Checkpoint::open(path, secret.key()?.as_ref())?;
    let bar = bar();
    let verified = checkpoint.verify(&mut |bytes, of| advance(&bar, bytes, of));
    bar.finish_and_clear();
    let verified = verified?;
    Ok(if *json {
        let (files, bytes, chunks) = (verified.files, verified.bytes, verified.chunks);
        let authenticity = word(checkpoint.authenticity());
        json!({ "verified": true, "checkpoints": verified.checkpoints, "files": files, "bytes": bytes,
            "chunks": chunks, "pages_compared": verified.compared, "authenticity": authenticity })
        .to_string()
    } else {
        let (files, bytes) = (verified.files, mib(verified.bytes));
        let who = sentence(checkpoint.authenticity());
        format!("every byte is as it was written: {files} files, {bytes} MiB; {who}")
    })
}

fn exported(arguments: &ExportArguments) -> Result<String> {
    let ExportArguments { path, target, secret, json } = arguments;
    let key = secret.key()?;
    let bar = bar();
    let digest = export(path, target, key.as_ref(), &mut |bytes, of| advance(&bar, bytes, of));
    bar.finish_and_clear();
    let digest: Digest = digest?;
    Ok(if *json {
        json!({ "exported": true, "digest": digest }).to_string()
    } else {
        format!("exported to {}, digest {digest}", target.display())
    })
}

/// Shown on a terminal only, once there is something to tell.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}");
    let bar = ProgressBar::new(0);
    style.map_or_else(|_| ProgressBar::hidden(), |style| bar.with_style(style))
}

fn advance(bar: &ProgressBar, bytes: u64, of: u64) {
    bar.set_length(of);
    bar.set_position(bytes);
}

fn list_table(listed: &[Listed]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["name", "VM", "generation", "cut", "created (UTC)", "base", "MiB", "state"]);
    for Listed { name, state } in listed {
        let row = match state {
            State::Complete(complete) => {
                let Contents { generation, cut, created_unix_ms, base, .. } = &complete.contents;
                let base = base.as_ref().map_or("-", |base| &base.folder);
                let (vm, created) = (vm(&complete.contents), date(*created_unix_ms));
                let (generation, cut) = (generation.to_string(), cut.to_string());
                let bytes = mib(complete.bytes);
                [
                    name.clone(),
                    vm,
                    generation,
                    cut,
                    created,
                    base.to_owned(),
                    bytes,
                    "complete".to_owned(),
                ]
            }
            State::Unfinished => unknown(name, "unfinished"),
            State::Damaged(why) => unknown(name, &format!("damaged: {why}")),
            State::Unreadable(why) => unknown(name, &format!("cannot be read: {why}")),
        };
        table.add_row(row);
    }
    table.to_string()
}

fn unknown(name: &str, state: &str) -> [String; 8] {
    [name, "-", "-", "-", "-", "-", "-", state].map(str::to_owned)
}

fn list_json(listed: &[Listed]) -> Value {
    let one = |Listed { name, state }: &Listed| match state {
        State::Complete(complete) => {
            let Contents { generation, cut, created_unix_ms, base, .. } = &complete.contents;
            let base = base.as_ref().map(|base| &base.folder);
            json!({ "name": name, "state": "complete", "vm": vm(&complete.contents), "generation": generation,
                "cut": cut, "created_unix_ms": created_unix_ms, "base": base, "bytes": complete.bytes,
                "authenticated": complete.authenticated })
        }
        State::Unfinished => json!({ "name": name, "state": "unfinished" }),
        State::Damaged(why) => json!({ "name": name, "state": "damaged", "why": why }),
        State::Unreadable(why) => json!({ "name": name, "state": "unreadable", "why": why }),
    };
    listed.iter().map(one).collect()
}

fn show_tables(checkpoint: &Checkpoint) -> String {
    let contents = checkpoint.contents();
    let statistics = checkpoint.statistics();
    let mut facts = Table::new();
    facts.load_style(presets::NOTHING);
    let memory = format!("{} MiB", statistics.frames / 256);
    let extra: Vec<_> = contents.extra.keys().map(String::as_str).collect();
    for (name, value) in [
        ("VM", vm(contents)),
        ("generation", contents.generation.to_string()),
        ("cut", contents.cut.to_string()),
        ("created (UTC)", date(contents.created_unix_ms)),
        ("written by", contents.producer.clone()),
        ("memory", memory),
        ("digest", checkpoint.digest().to_string()),
        ("manifest", sentence(checkpoint.authenticity()).to_owned()),
        ("blobs", if extra.is_empty() { "-".to_owned() } else { extra.join(" ") }),
    ] {
        facts.add_row([name.to_owned(), value]);
    }
    let parts = parts_table(checkpoint);
    let mut layers = Table::new();
    layers.load_style(presets::NOTHING);
    layers.set_header(["checkpoint", "MiB", "pages", "zero pages", "in several parts"]);
    for LayerStatistics { name, bytes, pages, zero_pages, shared, .. } in &statistics.layers {
        let numbers = [pages, zero_pages, shared].map(u64::to_string);
        let [pages, zeros, shared] = numbers;
        layers.add_row([name.clone(), mib(*bytes), pages, zeros, shared]);
    }
    format!("{facts}\n\n{parts}\n\n{layers}")
}

fn parts_table(checkpoint: &Checkpoint) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["slice", "MiB", "pages", "zero pages", "sections"]);
    for part in &checkpoint.contents().parts {
        let sections = sections(checkpoint, part.slice);
        let words = sections.iter().map(|(name, bytes)| format!("{name} ({bytes} bytes)"));
        let sections = words.collect::<Vec<_>>().join(", ");
        let slice = part.slice.0.to_string();
        let (pages, zeros) = (part.pages.to_string(), part.zero_pages.to_string());
        table.add_row([slice, mib(part.bytes), pages, zeros, sections]);
    }
    table
}

fn show_json(checkpoint: &Checkpoint) -> Value {
    let contents = checkpoint.contents();
    let statistics = checkpoint.statistics();
    let part = |part: &PartSummary| {
        let sections: Vec<_> = sections(checkpoint, part.slice)
            .into_iter()
            .map(|(name, bytes)| json!({ "name": name, "bytes": bytes }))
            .collect();
        json!({ "slice": part.slice, "file": part.file, "bytes": part.bytes, "digest": part.digest,
            "pages": part.pages, "zero_pages": part.zero_pages, "sections": sections })
    };
    let layer = |layer: &LayerStatistics| {
        let LayerStatistics { name, bytes, stored, pages, zero_pages, shared } = layer;
        json!({ "name": name, "bytes": bytes, "stored_bytes": stored, "pages": pages,
            "zero_pages": zero_pages, "pages_in_several_parts": shared })
    };
    json!({
        "vm": vm(contents),
        "generation": contents.generation,
        "cut": contents.cut,
        "created_unix_ms": contents.created_unix_ms,
        "producer": contents.producer,
        "digest": checkpoint.digest(),
        "authenticity": word(checkpoint.authenticity()),
        "base": contents.base.as_ref().map(|base| &base.folder),
        "frames": statistics.frames,
        "spec": contents.spec,
        "blobs": contents.extra.iter().map(|(name, blob)| (name.clone(), json!(blob.len())))
            .collect::<Map<_, _>>(),
        "parts": contents.parts.iter().map(part).collect::<Vec<_>>(),
        "chain": statistics.layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

/// Of a slice that the checkpoint has a part of.
fn sections(checkpoint: &Checkpoint, slice: SliceId) -> Vec<(String, u64)> {
    checkpoint.sections(slice).unwrap_or_default()
}

fn word(authenticity: Authenticity) -> &'static str {
    match authenticity {
        Authenticity::Nobody => "none",
        Authenticity::NotChecked => "not checked",
        Authenticity::Checked => "checked",
    }
}

fn sentence(authenticity: Authenticity) -> &'static str {
    match authenticity {
        Authenticity::Nobody => "written without a secret: anybody can have changed it",
        Authenticity::NotChecked => "authenticated, which was not checked (verify --secret-file)",
        Authenticity::Checked => "authenticated by the VM's secret",
    }
}

fn vm(contents: &Contents) -> String {
    contents.vm.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / MIB)
}

/// A time since 1970 as date and time of day.
fn date(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their leap day at the end (Hinnant, chrono-compatible low-level date algorithms).
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::checkpoint::Complete;
    use std::collections::BTreeMap;

    fn contents() -> Contents {
        Contents {
            vm: [0xab; 16],
            generation: 2,
            cut: 9,
            created_unix_ms: 1_795_676_400_000,
            base: None,
            frames: Vec::new(),
            parts: Vec::new(),
            spec: String::new(),
            extra: BTreeMap::new(),
            producer: String::new(),
        }
    }

    #[test]
    fn list_says_what_each_folder_is() {
        let complete = Complete { contents: contents(), authenticated: true, bytes: 3 << 20 };
        let listed = [
            ("good", State::Complete(Box::new(complete))),
            ("half", State::Unfinished),
            ("bad", State::Damaged("part-0 is damaged".into())),
        ];
        let listed = listed.map(|(name, state)| Listed { name: name.into(), state });
        let text = list_table(&listed);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let vm = "ab".repeat(16);
        let good = ["good", &vm, "2", "9", "2026-11-26", "07:00:00", "-", "3.0", "complete"];
        assert_eq!(lines[1], good);
        assert_eq!(lines[2].last(), Some(&"unfinished"));
        assert!(text.lines().nth(3).unwrap().contains("damaged: part-0 is damaged"));
        let json = list_json(&listed);
        assert_eq!((&json[0]["vm"], &json[1]["state"]), (&json!(vm), &json!("unfinished")));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // date -u -d @N
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_735_689_599, "2024-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(date(seconds * 1000), text);
        }
        assert!(!date(u64::MAX).is_empty());
    }
}
