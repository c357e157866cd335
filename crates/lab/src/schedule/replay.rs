//! Runs that were made before: an experiment that is resumed goes through its plan again, and is given the stored
//! runs until there are no more.
//!
//! So everything that follows from runs, such as repeated blocks and excluded subjects, is as it was.

use std::collections::VecDeque;

use super::machine::{Attempt, Machine};
use crate::bench::Slot;
use crate::error::LabError;
use crate::experiment::Cell;
use crate::record::RunRecord;

/// A machine behind stored runs.
pub(super) struct Replay<'a> {
    machine: &'a mut dyn Machine,
    stored: VecDeque<RunRecord>,
    /// The block that the last stored run was of.
    begun: Option<(Cell, usize)>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(machine: &'a mut dyn Machine, stored: Vec<RunRecord>) -> Replay<'a> {
        Replay { machine, stored: stored.into(), begun: None }
    }

    /// Whether there are stored runs left.
    pub(super) fn is_replaying(&self) -> bool {
        !self.stored.is_empty()
    }

    /// The stored runs that are left.
    pub(super) fn stored(&self) -> impl Iterator<Item = &RunRecord> {
        self.stored.iter()
    }

    /// The same.
    pub(super) fn into_stored(self) -> impl Iterator<Item = RunRecord> {
        self.stored.into_iter()
    }

    /// What makes further runs.
    pub(super) fn live(&mut self) -> &mut dyn Machine {
        self.machine
    }

    /// The stored run, or else a new one. A block that was begun and came to no end is void.
    pub(super) fn run(&mut self, slot: &Slot<'_>) -> Result<Attempt, LabError> {
        let block = (slot.cell, slot.block);
        let is_begun = self.begun == Some(block);
        let is_next = |it: &RunRecord| {
            (it.index, it.cell, it.block, &*it.subject)
                == (slot.index, slot.cell, slot.block, &*slot.subject.name)
        };
        if self.stored.front().is_some_and(is_next)
            && let Some(run) = self.stored.pop_front()
        {
            self.begun = Some(block);
            return Ok(Attempt::Made(Box::new(run)));
        }
        if is_begun {
            self.begun = None;
            return Ok(Attempt::Void);
        }
        if let Some(other) = self.stored.front() {
            return Err(LabError::OtherPlan { run: other.index });
        }
        self.machine.run(slot)
    }
}
