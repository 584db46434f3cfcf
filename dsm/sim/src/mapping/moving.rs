//! Homes of frames that move, at random moments, to random slices. Slice 0 asks for it.

use super::moves::{BETWEEN_NS, LOOK_NS};
use super::world::{Event, Failure, World};
use crossbeam_channel::{Receiver, TryRecvError};
use dsm_protocol::{Epoch, SliceId};

impl World {
    /// Homes move, or pages go to where theirs is, unless the last move goes on.
    pub(super) fn move_home(&mut self) -> Result<(), Failure> {
        let (now, stopped, staying) = (self.now(), self.guests().stopped, self.staying());
        let (first, end) = self.memory();
        let Some(moves) = &mut self.moves else { return Ok(()) };
        let waits = match moves.answer.as_ref().map(Receiver::try_recv) {
            Some(Ok(Err(error))) => return self.fail(&format!("homes do not move: {error}")),
            Some(Err(TryRecvError::Empty)) => true,
            // An engine that was replaced does not answer any more.
            Some(Ok(Ok(())) | Err(TryRecvError::Disconnected)) | None => stopped,
        };
        if waits {
            self.at(now + LOOK_NS, Event::MoveHome);
            return Ok(());
        }
        let random = &mut moves.random;
        let start = first + random.below(end - first);
        // Chunks, or a few pages.
        let pages =
            if random.one_in(3) { 1 + random.below(100) } else { 512 * (1 + random.below(2)) };
        let start = if pages < 512 { start } else { start / 512 * 512 };
        let frames = start.max(first)..end.min(start + pages);
        let mut any = || {
            let count = u64::try_from(staying.len()).expect("few");
            let at = usize::try_from(random.below(count)).expect("few");
            u16::try_from(staying[at]).expect("few")
        };
        let (to, from) = (any(), any());
        let wait = random.below(BETWEEN_NS);
        let pulls = random.one_in(3);
        moves.placement += 1;
        moves.count += 1;
        let placement = Epoch(moves.placement);
        let at = if pulls { usize::from(to) } else { 0 };
        let stepped = &self.slices[at].stepped;
        let answer = if pulls {
            stepped.pull_home(frames, SliceId(from))
        } else {
            stepped.move_home(frames, SliceId(to), placement)
        };
        if let Some(moves) = &mut self.moves {
            moves.answer = Some(answer);
        }
        self.turn_soon(at);
        self.at(now + wait, Event::MoveHome);
        Ok(())
    }
}
