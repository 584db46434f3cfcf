//! Every byte of a checkpoint and its bases, read and compared.

use crate::chain::Layer;
use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::index::Presence;
use crate::layout::PAGE_BYTES;
use std::ops::Range;

/// What was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Checkpoints of the chain.
    pub checkpoints: u64,
    /// Their files.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Chunks of pages.
    pub chunks: u64,
    /// Frames that were compared, because several slices have them.
    pub compared: u64,
}

/// A page that a part has, or that it is zero.
type Page = Option<[u8; PAGE_BYTES]>;

impl Checkpoint {
    /// Reads every byte of the checkpoint and its bases, and compares pages that several slices have. Tells meanwhile how many
    /// bytes were read, of how many.
    ///
    /// # Errors
    /// A body is damaged or cannot be read, or slices differ about a page.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, CheckpointError> {
        let of = self.layers.iter().map(Layer::bytes).sum();
        let mut verified = Verified::default();
        for layer in &self.layers {
            verified.checkpoints += 1;
            verified.files += 1;
            verified.bytes += layer.manifest_bytes;
            for part in &layer.parts {
                let before = verified.bytes;
                part.verify(&mut |bytes| {
                    verified.bytes += bytes;
                    progress(verified.bytes, of);
                })?;
                verified.files += 1;
                verified.chunks += u64::try_from(part.index.chunks.len()).unwrap_or(u64::MAX);
                // Head, index and trailer were read when the part was opened.
                verified.bytes = before + part.length();
                progress(verified.bytes, of);
            }
        }
        verified.compared = self.compare()?;
        Ok(verified)
    }

    /// Compares each page with that of every lower slice of the same checkpoint; says how often.
    fn compare(&self) -> Result<u64, CheckpointError> {
        let mut compared = 0;
        for (layer, parts) in self.layers.iter().map(|layer| &layer.parts).enumerate() {
            for (number, part) in parts.iter().enumerate() {
                for frames in part.index.frames() {
                    for lower in 0..number {
                        compared += self.compare_parts(layer, (lower, number), &frames)?;
                    }
                }
            }
        }
        Ok(compared)
    }

    fn compare_parts(
        &self,
        layer: usize,
        (one, other): (usize, usize),
        frames: &Range<u64>,
    ) -> Result<u64, CheckpointError> {
        let parts = &self.layers[layer].parts;
        let mut both = Vec::new();
        parts[one].index.each_common(frames, &mut |common| both.push(common));
        let mut compared = 0;
        for Range { start: mut frame, end } in both {
            while frame < end {
                let pages = self.both_zero(layer, (one, other), frame).min(end - frame);
                if pages == 0
                    && self.of_part(layer, one, frame)? != self.of_part(layer, other, frame)?
                {
                    let [one, other] = [one, other].map(|part| parts[part].head().slice);
                    return Err(CheckpointError::Differs { frame, one, other });
                }
                // A page of zeros takes no bytes: an index may name more of them than anybody could go through.
                frame += pages.max(1);
                compared += pages.max(1);
            }
        }
        Ok(compared)
    }

    /// How many frames from this one on two parts say to be zero.
    fn both_zero(&self, layer: usize, (one, other): (usize, usize), frame: u64) -> u64 {
        let zeros = [one, other].map(|part| {
            let (presence, end) = self.layers[layer].parts[part].index.presence(frame);
            if presence == Presence::Zero { end - frame } else { 0 }
        });
        zeros[0].min(zeros[1])
    }

    /// What a part has of a frame that it has.
    fn of_part(&self, layer: usize, part: usize, frame: u64) -> Result<Page, CheckpointError> {
        let (presence, _) = self.layers[layer].parts[part].index.presence(frame);
        let Presence::Run(run) = presence else { return Ok(None) };
        let mut page = [0; PAGE_BYTES];
        self.page_of((layer, part, run), frame, &mut page)?;
        // A page of zeros may be written as one.
        Ok(page.iter().any(|byte| *byte != 0).then_some(page))
    }
}
