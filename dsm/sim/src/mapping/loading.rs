//! Memory whose contents come while the guests run, as in a VM that is restored lazily.
//!
//! ```text
//!   a piece is loaded: because a vCPU waits for it, soon; because the engine looks at it, within its turn; or by turns
//! ```

use super::world::{Event, Failure, World};

impl World {
    /// Loads a piece of a slice's memory, and says when the next one is.
    pub(super) fn load(&mut self, at: usize) -> Result<(), Failure> {
        let slice = &mut self.slices[at];
        slice.load = None;
        if slice.gone || slice.stepped.loaded().left == 0 {
            return Ok(());
        }
        if let Err(error) = slice.stepped.load() {
            return self.fail(&format!("slice{at} does not load: {error}"));
        }
        self.load_later(at);
        Ok(())
    }

    /// The next piece of a slice comes at some time.
    pub(super) fn load_later(&mut self, at: usize) {
        let scale = self.loads.below(9);
        let time = self.now() + 1 + self.loads.below(10_000 << scale);
        self.load_at(at, time);
    }

    /// A vCPU waits.
    pub(super) fn load_soon(&mut self, at: usize) {
        let time = self.now() + 1 + self.loads.below(30_000);
        self.load_at(at, time);
    }

    fn load_at(&mut self, at: usize, time: u64) {
        if self.slices[at].load.is_none_or(|planned| time < planned) {
            self.slices[at].load = Some(time);
            self.at(time, Event::Load(at));
        }
    }
}
