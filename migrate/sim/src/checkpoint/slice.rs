//! A slice of the model: its memory, its part of a checkpoint, and its disk.

use super::scenario::{SLICES, Scenario};
use migrate::checkpoint::Message;
use migrate::cut::{Message as CutMessage, PeerCounts, Step};
use std::collections::BTreeMap;
use wire::SliceId;

/// Pages of each slice.
const PAGES: usize = 2;

/// What is in each page of a slice.
pub(super) type Pages = Vec<u8>;

/// What goes between two slices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    Checkpoint(Message),
    Cut(CutMessage),
    /// It goes to the first page. It is counted.
    Token,
    /// The last one of a slice that is lost.
    Lost,
}

/// How far a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Its file is being made.
    Making,
    Ready,
    /// The slice has its form, and writes.
    Writing,
    Written,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slice {
    pub(super) id: u16,
    /// Slices in the model.
    slices: u16,
    /// Tokens in each page.
    pub(super) memory: Pages,
    /// Tokens that its vCPU still moves.
    pub(super) moves: u8,
    /// Its vCPU is stopped.
    pub(super) rests: bool,
    pub(super) lost: bool,
    /// Its part of this checkpoint.
    pub(super) part: Option<(u64, Stage)>,
    /// Files, by their checkpoints, as far as they are written.
    pub(super) disk: BTreeMap<u64, Pages>,
    /// A file was removed because its checkpoint was given up.
    pub(super) discarded: bool,
    /// What pages were that have changed before they were written.
    kept: BTreeMap<usize, u8>,
    /// It runs on while its part is written.
    live: bool,
    /// It copies no page before it changes.
    unkept: bool,
    /// It writes on when it goes on.
    careless: bool,
    /// Tokens to and from each slice.
    pub(super) sent: [u8; SLICES as usize],
    received: [u8; SLICES as usize],
}

impl Slice {
    pub(super) fn new(id: u16, scenario: &Scenario, moves: u8) -> Self {
        Self {
            id,
            slices: scenario.slices(),
            memory: vec![1; PAGES],
            moves,
            rests: false,
            lost: false,
            part: None,
            disk: BTreeMap::new(),
            discarded: false,
            kept: BTreeMap::new(),
            live: scenario.live,
            unkept: scenario.unkept,
            careless: scenario.careless,
            sent: [0; SLICES as usize],
            received: [0; SLICES as usize],
        }
    }

    /// Whether its vCPU can take a token from the first page.
    pub(super) fn can_move(&self) -> bool {
        !self.lost && !self.rests && self.moves > 0 && self.memory[0] > 0
    }

    /// Its vCPU puts a token into the last page.
    pub(super) fn shift(&mut self) {
        self.moves -= 1;
        self.keep(0);
        self.keep(PAGES - 1);
        self.memory[0] -= 1;
        self.memory[PAGES - 1] += 1;
    }

    /// Its vCPU sends a token to the next slice.
    pub(super) fn give(&mut self) -> u16 {
        self.moves -= 1;
        self.keep(0);
        self.memory[0] -= 1;
        (self.id + 1) % self.slices
    }

    /// A token has come.
    pub(super) fn get(&mut self, from: u16) {
        self.received[usize::from(from)] += 1;
        self.keep(0);
        self.memory[0] += 1;
    }

    /// A page is about to change.
    fn keep(&mut self, page: usize) {
        let Some((number, Stage::Writing)) = self.part else { return };
        let written = self.disk.get(&number).map_or(0, Vec::len);
        if self.live && !self.unkept && page >= written {
            self.kept.entry(page).or_insert(self.memory[page]);
        }
    }

    /// The checkpoint whose file it is making, or writing.
    pub(super) fn at_work(&self) -> Option<u64> {
        match self.part {
            Some((number, Stage::Making | Stage::Writing)) if !self.lost => Some(number),
            _ => None,
        }
    }

    /// Its file is there, or has one page more.
    pub(super) fn work(&mut self) -> Option<Message> {
        let (number, stage) = self.part?;
        let file = self.disk.entry(number).or_default();
        if stage == Stage::Making {
            self.part = Some((number, Stage::Ready));
            return Some(Message::Prepared(number));
        }
        let page = file.len();
        file.push(self.kept.remove(&page).unwrap_or(self.memory[page]));
        if file.len() < PAGES {
            return None;
        }
        let summary = [vec![u8::try_from(number).unwrap_or(u8::MAX)], file.clone()].concat();
        self.part = Some((number, Stage::Written));
        Some(Message::Written(number, summary))
    }

    /// Its disk is full, or nobody may wait for its part.
    pub(super) fn fail(&mut self) -> Option<Message> {
        let (number, _) = self.part.take()?;
        self.disk.remove(&number);
        Some(Message::Failed(number, String::new()))
    }

    /// What the coordinator of checkpoints says.
    pub(super) fn hear(&mut self, message: &Message) {
        match message {
            Message::Prepare(number, _) => self.part = Some((*number, Stage::Making)),
            Message::Committed(_) => self.part = None,
            Message::Discard(number) => {
                self.part = self.part.filter(|(of, _)| of != number);
                self.discarded |= self.disk.remove(number).is_some();
            }
            Message::Prepared(_) | Message::Written(..) | Message::Failed(..) => {}
        }
    }

    /// What the coordinator of cuts says; what it answers, to which coordinator.
    pub(super) fn rest_or_go_on(&mut self, message: &CutMessage) -> Vec<Frame> {
        let answer = match *message {
            CutMessage::Take(cut, Step::Count) => CutMessage::Counted(cut, Some(self.count())),
            CutMessage::Take(cut, Step::Capture(number)) => {
                if self.part != Some((number, Stage::Ready)) {
                    return vec![Frame::Cut(CutMessage::Failed(cut, String::new()))];
                }
                self.part = Some((number, Stage::Writing));
                self.kept.clear();
                CutMessage::Taken(cut, Step::Capture(number))
            }
            CutMessage::Take(cut, step) => {
                self.rests |= step == Step::Vcpus;
                CutMessage::Taken(cut, step)
            }
            CutMessage::GoOn(cut) => {
                self.rests = false;
                let half =
                    matches!(self.part, Some((_, Stage::Writing))) && !self.careless && !self.live;
                let failed = if half { self.fail() } else { None };
                let on = Frame::Cut(CutMessage::GoesOn(cut));
                return failed.map(Frame::Checkpoint).into_iter().chain([on]).collect();
            }
            _ => return Vec::new(),
        };
        vec![Frame::Cut(answer)]
    }

    fn count(&self) -> Vec<PeerCounts> {
        let others = (0..self.slices).filter(|peer| *peer != self.id);
        let count = |peer: u16| PeerCounts {
            peer: SliceId(peer),
            sent: [self.sent[usize::from(peer)].into(), 0],
            received: [self.received[usize::from(peer)].into(), 0],
        };
        others.map(count).collect()
    }
}
