//! What a cluster is built of.

use crate::carrier::Carrier;
use crate::paging::GuestPages;
use crate::placement::Place;
use dsm::{HoldPolicy, Mechanisms, Memory};
use std::path::Path;

/// What to build.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The microguest.
    pub image: &'a Path,
    /// What joins the slices.
    pub carrier: Carrier,
    /// Pages of shared memory by slice, whose home they are.
    pub homes: &'a [u64],
    /// Where the vCPU threads of each slice run.
    pub places: &'a [&'a [Place]],
    /// Where the engine of each slice runs.
    pub engines: &'a [Place],
    /// The hold window.
    pub hold: HoldPolicy,
    /// The optional mechanisms of all slices.
    pub mechanisms: Mechanisms,
    /// Slices that fetch page by page. All others fetch runs ahead.
    pub page_by_page: &'a [u16],
    /// What private memory is made of.
    pub memory: Memory,
    /// How the guests map the memory.
    pub guest_pages: GuestPages,
}
