//! What all predictors of pages are asked.

use super::window::{Miss, Window};

/// A vCPU touches a page.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// The page, and what the vCPU wants of it.
    pub miss: Miss,
    /// The page is neither here nor on its way.
    pub missed: bool,
    /// It is missed, and was here before.
    pub had: bool,
    /// When, in nanoseconds.
    pub now_ns: u64,
    /// Misses within this time belong together.
    pub together_ns: u64,
}

/// Says what a slice will touch next, from what it touches.
pub trait Predictor {
    /// The pages to ask for with a touch. `lacks` tells whether this slice lacks a page and has not asked for it.
    fn touched(&mut self, touch: Touch, lacks: &dyn Fn(Miss) -> bool) -> Vec<Window>;
}
