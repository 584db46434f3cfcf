//! Deletes a checkpoint, and gives up the states of disks that only it needs.

use super::DeleteArguments;
use ::checkpoint::{CheckpointError, Listed, State, cut_in, delete_with, list};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::io;
use std::iter::once;
use std::path::{Path, PathBuf};
use vmm::slice::{By, CheckpointDisks, GivenUp, Outcome, RestoreError};

/// What becomes of the states of its disks.
#[derive(Debug)]
enum Fate {
    /// There are none, or somebody has said that they stay.
    Nothing,
    GiveUp(CheckpointDisks, By),
    /// They stay, for this reason.
    Stay(String),
}

/// What was deleted, and what has become of its disks' states, for people or as JSON.
pub(super) fn delete(arguments: &DeleteArguments) -> Result<String> {
    let DeleteArguments { path, json, .. } = arguments;
    // What it needs, and where it is, is not known any more once it is deleted.
    let (fate, place) = (fate(arguments)?, Place::of(path));
    if let (Fate::GiveUp(disks, _), Ok(place)) = (&fate, &place)
        && let Some(other) = place.others(disks)?.into_iter().find(|other| !other.is_whole)
    {
        bail!(
            "{} has a part of the same checkpoint, and is not complete: it is being exported, or that was interrupted. Wait, or delete \
             that first, or keep the states of disks (--keep-disks)",
            place.parent.join(other.name).display()
        );
    }
    // The states first: what was interrupted while parts go, which may take long, does not know of them any more.
    let (given_up, stay) = delete_with(path, || match (fate, place) {
        (Fate::Nothing, _) => (Vec::new(), None),
        (Fate::Stay(why), _) => (Vec::new(), Some(why)),
        (Fate::GiveUp(..), Err(error)) => (Vec::new(), Some(error.to_string())),
        // Whoever has begun to export it since then sees that it is gone.
        (Fate::GiveUp(disks, by), Ok(place)) => match place.others(&disks) {
            Ok(others) if others.is_empty() => (disks.give_up(by), None),
            Ok(others) => (Vec::new(), Some(format!("{} needs them", others[0].name))),
            // It has others as far as one knows.
            Err(error) => (Vec::new(), Some(error.to_string())),
        },
    })?;
    if *json {
        let disks: Value = given_up.iter().map(one_json).collect();
        return Ok(json!({ "deleted": true, "disks": disks, "disks_stay": stay }).to_string());
    }
    let lines = given_up.iter().filter_map(line);
    let stay = stay.map(|why| format!("the states of its disks stay: {why}"));
    Ok(once("deleted".to_owned()).chain(lines).chain(stay).collect::<Vec<_>>().join("\n"))
}

fn fate(arguments: &DeleteArguments) -> Result<Fate> {
    let DeleteArguments { path, keep_disks, give_up_disks, secret, .. } = arguments;
    let key = secret.key()?;
    let disks = match CheckpointDisks::of(path, key.as_ref()) {
        // Its VM gives up what was kept for it.
        Err(RestoreError::Checkpoint(CheckpointError::Unfinished { .. })) => {
            return Ok(Fate::Nothing);
        }
        Err(error) if key.is_some() => return Err(error.into()),
        Err(error) => {
            let error = anyhow::Error::from(error);
            return Ok(Fate::Stay(format!("which they are cannot be read: {error:#}")));
        }
        Ok(disks) => disks,
    };
    if *keep_disks || disks.is_empty() {
        return Ok(Fate::Nothing);
    }
    if *give_up_disks {
        return Ok(Fate::GiveUp(disks, By::Person));
    }
    let parent = path.canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned()));
    let is_home = disks.home().is_some() && disks.home() == parent.as_deref();
    let doubt = if is_home {
        disks.doubt()
    } else {
        let home =
            disks.home().map_or_else(|| "another folder".into(), |it| it.display().to_string());
        Some(format!("it was made in {home}, and this is a copy or an export"))
    };
    match doubt {
        None => Ok(Fate::GiveUp(disks, By::Checkpoint)),
        // Once it is deleted nobody could say so any more.
        Some(why) => bail!(
            "somebody else may need the states of its disks: {why}. Say whether they stay (--keep-disks) or go \
             (--give-up-disks)"
        ),
    }
}

/// Where a checkpoint is.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    parent: PathBuf,
}

/// What is beside it, of the same cut.
#[derive(Debug)]
struct Other {
    name: String,
    is_whole: bool,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let parent = path.parent().unwrap_or(&path).to_owned();
        Ok(Self { path, parent })
    }

    /// What there is of other checkpoints that have the same states, as exports and copies in the same folder have.
    fn others(&self, disks: &CheckpointDisks) -> Result<Vec<Other>, CheckpointError> {
        let is_of = |Listed { name, state }: &Listed| {
            let folder = self.parent.join(name);
            if folder == self.path {
                return false;
            }
            match state {
                State::Complete(_) => {
                    CheckpointDisks::of(&folder, None).is_ok_and(|it| it.are_those_of(disks))
                }
                // It may become one. Whose it is only its cut says.
                State::Unfinished | State::Damaged(_) | State::Unreadable(_) => {
                    cut_in(&folder) == Some(disks.cut())
                }
            }
        };
        let listed = list(&self.parent)?.into_iter().filter(is_of);
        let other = |Listed { name, state }| {
            let is_whole = matches!(state, State::Complete(_));
            Other { name, is_whole }
        };
        Ok(listed.map(other).collect())
    }
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
        Outcome::Later => Some(format!(
            "{state} goes later: a file beside it still needs it, as the disk of a VM that was restored from this checkpoint"
        )),
        Outcome::Elsewhere => Some(format!("{state} is not on this host, and stays where it is")),
        Outcome::Stays(why) => Some(format!("{state} stays: {why}")),
    }
}
