//! A slice's part in checkpoints: makes the file for its part before the guest is stopped, and removes that of a checkpoint
//! that was given up.
//!
//! ```text
//!   --Prepare--> file made, memory protected if the guest is to run on: ready --the cut takes it: Capture--> written (`part`) --Committed--> kept
//!                      \-----------------------------------------------\--Discard--> removed
//!   the VM is over: states of disks for parts that were removed are given up
//! ```

use super::error::PartError;
use super::part::tell;
use super::request::PartRequest;
use crate::control::RELEASED_MAX;
use crate::crash::PlannedKill;
use crate::slice::channels::Channels;
use crate::slice::checkpoint_link::{Protected, ReadyPart, disk_name};
use crate::slice::one_line;
use crate::slice::page_hashes::PageHashes;
use checkpoint::{Compression, PartHead, PartWriter};
use crossbeam_channel::{Receiver, bounded};
use devices::back_end::image::Writer;
use migrate::checkpoint::Message;
use migrate::saved::decode;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use wire::SliceId;

/// What may wait: what becomes of one checkpoint, and all of the next one.
const MESSAGES_MAX: usize = 4;
/// For all memory to be protected: some 50 us for 2 MiB.
const PROTECT_LIMIT: Duration = Duration::from_secs(20);

/// From now on this slice can write its part. `folder` is where its operator wants parts; the coordinator's own goes where
/// whoever asks has said. `release` gives up the states of disks by these names, when the VM is over.
///
/// # Errors
/// There is no thread for it.
pub(crate) fn start_member(
    channels: &Arc<Channels>,
    folder: Option<PathBuf>,
    release: impl FnOnce(&[String]) + Send + 'static,
) -> io::Result<()> {
    let (sender, messages) = bounded(MESSAGES_MAX);
    let (alive, ended) = bounded::<Infallible>(0);
    let member = Member { channels: Arc::downgrade(channels), folder };
    let run = move || {
        let given_up = member.serve(&messages);
        if !given_up.is_empty() {
            release(&given_up.into_iter().map(disk_name).collect::<Vec<_>>());
        }
        drop(alive);
    };
    thread::Builder::new().name("checkpoint".into()).spawn(run)?;
    channels.checkpoints.set_member(sender);
    channels.checkpoints.set_member_ended(ended);
    Ok(())
}

/// The part that was made last, until it is said what becomes of it.
struct Made {
    number: u64,
    file: PathBuf,
    /// Its cut has told the disks which states nobody needs any more.
    tidies: bool,
    /// What pages were at its cut, once it is written.
    hashes: Receiver<PageHashes>,
}

/// What pages were at the last checkpoint, and its number.
type Last = Option<(u64, Arc<PageHashes>)>;

struct Member {
    channels: Weak<Channels>,
    folder: Option<PathBuf>,
}

impl Member {
    /// Until the VM is over. Numbers of checkpoints that were given up, of which disks were not told.
    fn serve(&self, messages: &Receiver<(SliceId, Message)>) -> Vec<u64> {
        let mut made: Option<Made> = None;
        let mut last: Last = None;
        // Given up since, with the states of their disks. So many as one request can tell of.
        let mut given_up: Vec<u64> = Vec::new();
        for (from, message) in messages {
            let Some(channels) = self.channels.upgrade() else { break };
            match message {
                Message::Prepare(number, request) => {
                    given_up.extend(discard(&channels, made.take()));
                    channels.checkpoints.end_writing(number.saturating_sub(1));
                    let said = match self.prepare(&channels, number, (&request, &last)) {
                        Ok((mut part, new)) => {
                            let many = given_up.len().saturating_sub(RELEASED_MAX);
                            given_up.drain(..many);
                            part.released.extend(&given_up);
                            made = Some(new);
                            channels.checkpoints.put_ready(Some(part));
                            Message::Prepared(number)
                        }
                        Err(error) => Message::Failed(number, one_line(&error)),
                    };
                    channels.checkpoints.is_prepared();
                    tell(&channels, from, said);
                }
                Message::Committed(number) => {
                    if let Some(made) = made.take_if(|made| made.number == number) {
                        last = made.hashes.try_recv().ok().map(|it| (number, Arc::new(it)));
                        channels.checkpoints.end_writing(number);
                        if made.tidies {
                            given_up.clear();
                        }
                    }
                }
                Message::Discard(number) => {
                    let made = made.take_if(|made| made.number == number);
                    given_up.extend(discard(&channels, made));
                }
                // For the coordinator.
                Message::Prepared(_) | Message::Written(..) | Message::Failed(..) => {}
            }
        }
        given_up
    }

    fn prepare(
        &self,
        channels: &Channels,
        number: u64,
        (request, last): (&[u8], &Last),
    ) -> Result<(ReadyPart, Made), PartError> {
        let request: PartRequest = decode(request).map_err(PartError::Request)?;
        let folder = match channels.checkpoints.own_folder() {
            Some(folder) if channels.coordinates() => folder,
            _ => self.folder.clone().ok_or(PartError::NoFolder)?,
        };
        let folder = folder.join(&request.name);
        let PartRequest { vm, generation, live, base, compressed, disks, released, .. } = request;
        let head = PartHead { vm, generation, cut: number, slice: channels.local() };
        let how = if compressed { Compression::Zstd } else { Compression::None };
        let writer = PartWriter::with_points(&folder, &head, how, Box::new(PlannedKill))?;
        let file = writer.path().to_owned();
        let engine = channels.handle.get().filter(|_| live && !channels.has_devices_only());
        let protected = engine.map(|engine| Protected::new(engine, PROTECT_LIMIT));
        let protected = protected.transpose().inspect_err(|_| remove(&file))?;
        // What it does not know any more it writes.
        let before = last.as_ref().filter(|(number, _)| Some(*number) == base);
        let before = before.map(|(_, hashes)| Arc::clone(hashes));
        let (now, hashes) = bounded(1);
        let vm = Writer { vm, generation };
        let tidies = disks.tidies();
        let part = ReadyPart { number, disks, vm, released, before, now, protected, writer };
        Ok((part, Made { number, file, tidies, hashes }))
    }
}

/// Removes the file of a part, and its folder if nothing else is in it. Its number, if there was one.
fn discard(channels: &Channels, made: Option<Made>) -> Option<u64> {
    let Made { number, file, .. } = made?;
    channels.checkpoints.put_ready(None);
    channels.checkpoints.end_writing(number);
    remove(&file);
    Some(number)
}

fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file) {
        tracing::warn!("remove {}: {error}", file.display());
    }
    // Others may have parts in it still.
    let _ = file.parent().map(fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::channels::tests::channels;
    use crate::slice::checkpoint_link::DiskPolicy;
    use migrate::saved::encode;
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(60);

    fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < until, "it does not come about");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// One that leaves disks as they are has not told them of the one before, which failed.
    #[test]
    fn states_of_a_checkpoint_that_was_given_up_are_told_by_the_next_one_that_keeps_some() {
        let folder = std::env::temp_dir().join(format!("tessera-member-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (channels, _events) = channels(SliceId(1));
        let (released, last) = bounded(1);
        let release = move |names: &[String]| released.send(names.to_vec()).unwrap();
        start_member(&channels, Some(folder.clone()), release).unwrap();
        let say = |message| channels.checkpoints.take(SliceId(0), message).unwrap();
        let prepared = |number: u64, disks| {
            let request = PartRequest {
                name: number.to_string(),
                vm: [7; 16],
                generation: 1,
                live: false,
                base: None,
                compressed: false,
                disks,
                released: Vec::new(),
            };
            // It may still be about to say that the one before is made.
            let prepare = Message::Prepare(number, encode(&request).unwrap());
            wait_for(|| say(prepare.clone()).is_none().then_some(()));
            wait_for(|| channels.checkpoints.take_ready(number))
        };
        assert_eq!(prepared(1, DiskPolicy::Keep).released, [0; 0]);
        say(Message::Discard(1));
        assert_eq!(prepared(2, DiskPolicy::Leave).released, [1]);
        say(Message::Committed(2));
        assert_eq!(prepared(3, DiskPolicy::Keep).released, [1]);
        say(Message::Committed(3));
        assert_eq!(prepared(4, DiskPolicy::Keep).released, [0; 0]);
        // The VM ends while it is written: no next one will tell.
        say(Message::Discard(4));
        channels.checkpoints.end();
        assert_eq!(last.try_recv(), Ok(vec!["c4".to_owned()]));
        assert!(!folder.join("4").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Its folder does not answer, on this host alone. The coordinator gives each checkpoint up after a while, and tries again.
    #[test]
    fn slice_that_hangs_in_its_file_system_takes_its_coordinator_for_no_bad_peer() {
        let (channels, _events) = channels(SliceId(1));
        let (sender, messages) = bounded(MESSAGES_MAX);
        channels.checkpoints.set_member(sender);
        let mut stands_in = None;
        for number in 1..100 {
            for message in [Message::Prepare(number, Vec::new()), Message::Discard(number)] {
                let taken = channels.checkpoints.take(SliceId(0), message);
                assert!(taken.is_ok(), "try {number}");
                stands_in = stands_in.or_else(|| messages.try_recv().ok());
            }
        }
        assert!(matches!(stands_in, Some((_, Message::Prepare(1, _)))));
    }
}
