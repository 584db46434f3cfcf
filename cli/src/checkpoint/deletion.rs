//! Deletes a checkpoint, and gives up the states of disks that only it needs.

use super::DeleteArguments;
use ::checkpoint::{State, delete as delete_checkpoint, list};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;
use vmm::slice::{CheckpointDisks, GivenUp, Outcome};

/// What was deleted, and what has become of its disks' states, for people or as JSON.
pub(super) fn delete(arguments: &DeleteArguments) -> Result<String> {
    let DeleteArguments { path, keep_disks, json } = arguments;
    // What it needs is not known any more once it is deleted. Of an unfinished or damaged one it never is.
    let disks = CheckpointDisks::of(path).ok().filter(|_| !keep_disks);
    let needed = disks.as_ref().is_some_and(|disks| another_needs(path, disks));
    delete_checkpoint(path)?;
    let given_up = disks.filter(|_| !needed).map_or_else(Vec::new, |disks| disks.give_up());
    if *json {
        let disks: Value = given_up.iter().map(one_json).collect();
        return Ok(json!({ "deleted": true, "disks": disks }).to_string());
    }
    let lines = given_up.iter().filter_map(line);
    Ok(std::iter::once("deleted".to_owned()).chain(lines).collect::<Vec<_>>().join("\n"))
}

/// Whether an export of the same checkpoint is in the same folder.
fn another_needs(path: &Path, disks: &CheckpointDisks) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    let Some(parent) = path.parent() else { return false };
    // A folder that cannot be read has others as far as one knows.
    let Ok(listed) = list(parent) else { return true };
    listed.iter().any(|other| {
        let folder = parent.join(&other.name);
        folder != path
            && matches!(other.state, State::Complete(_))
            && CheckpointDisks::of(&folder).is_ok_and(|other| other.are_those_of(disks))
    })
}

fn one_json(GivenUp { image, state, outcome }: &GivenUp) -> Value {
    let (outcome, why) = match outcome {
        Outcome::Gone => ("gone", None),
        Outcome::Later => ("later", None),
        Outcome::Elsewhere => ("elsewhere", None),
        Outcome::Stays(why) => ("stays", Some(why)),
    };
    json!({ "image": image, "state": state, "outcome": outcome, "why": why })
}

/// Of what is not as it is meant to be.
fn line(GivenUp { image, state, outcome }: &GivenUp) -> Option<String> {
    let state = format!("{}.{state}", image.display());
    match outcome {
        Outcome::Gone => None,
        Outcome::Later => Some(format!("{state} goes later: something still lies over it")),
        Outcome::Elsewhere => Some(format!("{state} is not on this host, and stays where it is")),
        Outcome::Stays(why) => Some(format!("{state} stays: {why}")),
    }
}
