//! In which order things are run.
//!
//! A block runs every subject of a group once, in an order that is drawn for it. Groups take turns, in a random
//! order each round, so that an interrupted experiment has something of everything.
//!
//! A group is what a cell compares, as long as that is little: a block of many subjects lasts so
//! long that something always disturbs it. So a cell with many subjects has several groups, and subjects
//! that many are compared with are in several of them.

use std::collections::{BTreeSet, HashMap, VecDeque};

use oorandom::Rand64;

use crate::experiment::{Cell, Experiment};

/// The most subjects in a group, unless one subject is compared with even more.
const GROUP_MAX: usize = 3;

/// How often a subject may fail in a cell before it is no longer run there.
const FAILURES_MAX: usize = 2;

/// Subjects that are run side by side in a cell, both as indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) cell: usize,
    pub(crate) subjects: Vec<usize>,
}

/// One block: a group, the number of the block in its cell, and the order of the subjects, as indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) group: usize,
    pub(crate) number: usize,
    pub(crate) order: Vec<usize>,
}

/// The groups of a cell: each subject is together with all that it is compared with. `contests`
/// are (baseline, subject). Without any, the `subjects` are all together.
pub(crate) fn groups(cell: usize, subjects: &[usize], contests: &[(usize, usize)]) -> Vec<Group> {
    let mut groups: Vec<BTreeSet<usize>> = Vec::new();
    for &subject in subjects {
        let opponents = contests.iter().filter(|(_, it)| *it == subject).map(|(other, _)| *other);
        let mut together: BTreeSet<usize> = opponents.collect();
        if together.is_empty() {
            continue;
        }
        together.insert(subject);
        match groups.last_mut() {
            Some(last) if last.union(&together).count() <= GROUP_MAX => last.extend(together),
            _ => groups.push(together),
        }
    }
    if groups.is_empty() {
        groups.push(subjects.iter().copied().collect());
    }
    let group =
        |subjects: BTreeSet<usize>| Group { cell, subjects: subjects.into_iter().collect() };
    groups.into_iter().map(group).collect()
}

/// The numbers under `count` in random order (Fisher and Yates).
pub(crate) fn shuffled(random: &mut Rand64, count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last, random.rand_range(0..last as u64 + 1) as usize);
    }
    numbers
}

pub(crate) struct Plan<'a> {
    experiment: &'a Experiment,
    random: Rand64,
    pub(crate) cells: Vec<Cell>,
    groups: Vec<Group>,
    blocks: VecDeque<usize>,
    /// Excluded blocks that each group may still replace.
    spare: Vec<usize>,
    blocks_of_cell: Vec<usize>,
    failures: HashMap<(usize, usize), usize>,
}

impl<'a> Plan<'a> {
    /// The plan for these cells: each group gets the pairs of the experiment.
    pub(crate) fn new(experiment: &'a Experiment, cells: Vec<Cell>, seed: u64) -> Plan<'a> {
        let of_cell = |(number, cell): (usize, &Cell)| {
            let protocol = cell.protocol();
            groups(number, &experiment.subjects_of(protocol), &experiment.contests(protocol))
        };
        let groups: Vec<Group> = cells.iter().enumerate().flat_map(of_cell).collect();
        let mut random = Rand64::new(u128::from(seed));
        let round = |_| shuffled(&mut random, groups.len());
        let blocks = (0..experiment.pairs).flat_map(round).collect();
        Plan {
            experiment,
            random,
            blocks,
            spare: vec![experiment.spare_pairs; groups.len()],
            blocks_of_cell: vec![0; cells.len()],
            failures: HashMap::new(),
            cells,
            groups,
        }
    }

    pub(crate) fn runs_left(&self) -> usize {
        self.blocks.iter().map(|group| self.groups[*group].subjects.len()).sum()
    }

    pub(crate) fn cell(&self, block: &Block) -> Cell {
        self.cells[self.groups[block.group].cell]
    }

    /// The next block, of those subjects that are still worth running.
    pub(crate) fn next(&mut self) -> Option<Block> {
        loop {
            let group = self.blocks.pop_front()?;
            let Group { cell, subjects } = &self.groups[group];
            let subjects = self.left(*cell, subjects);
            let positions = shuffled(&mut self.random, subjects.len());
            let order: Vec<usize> = positions.into_iter().map(|it| subjects[it]).collect();
            if !order.is_empty() {
                let number = self.blocks_of_cell[*cell];
                self.blocks_of_cell[*cell] += 1;
                return Some(Block { group, number, order });
            }
        }
    }

    pub(crate) fn failed(&mut self, block: &Block, subject: usize) {
        *self.failures.entry((self.groups[block.group].cell, subject)).or_default() += 1;
    }

    /// Puts a replacement for an excluded block at the end, if there are any left. Returns the number of its runs.
    pub(crate) fn replace(&mut self, block: &Block) -> usize {
        let left = &mut self.spare[block.group];
        if *left == 0 {
            return 0;
        }
        *left -= 1;
        self.blocks.push_back(block.group);
        block.order.len()
    }

    fn left(&self, cell: usize, subjects: &[usize]) -> Vec<usize> {
        let works =
            |it: &usize| self.failures.get(&(cell, *it)).is_none_or(|it| *it < FAILURES_MAX);
        let left: Vec<usize> = subjects.iter().copied().filter(works).collect();
        if subjects.len() == 1 {
            return left;
        }
        let contests = self.experiment.contests(self.cells[cell].protocol());
        let has_opponent = |it: &usize| {
            let meets = |(a, b): &(usize, usize)| {
                (a == it && left.contains(b)) || (b == it && left.contains(a))
            };
            contests.iter().any(meets)
        };
        left.iter().copied().filter(has_opponent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{NetKind, Protocol, Subject};

    fn experiment(subjects: &[&str], pairs: usize) -> Experiment {
        let mut experiment = Experiment::find("quick").unwrap();
        experiment.pairs = pairs;
        experiment.set_subjects(subjects.iter().map(|it| Subject::parse(it).unwrap()).collect());
        experiment.keep_protocols(|it| it == Protocol::Tcp);
        experiment.set_axis("load_percent", &[0]).unwrap();
        experiment
    }

    fn all(plan: &mut Plan<'_>) -> Vec<Block> {
        std::iter::from_fn(|| plan.next()).collect()
    }

    #[test]
    fn every_group_gets_its_pairs_and_every_block_a_coin_of_its_own() {
        let experiment = experiment(&["a=epoll", "b=io_uring"], 40);
        let cells = experiment.cells(&[NetKind::Lo]);
        assert_eq!(cells.len(), 2);
        let blocks = all(&mut Plan::new(&experiment, cells.clone(), 7));
        for group in [0, 1] {
            let of_group: Vec<&Block> = blocks.iter().filter(|it| it.group == group).collect();
            let numbers: Vec<usize> = of_group.iter().map(|it| it.number).collect();
            assert_eq!(numbers, (0..40).collect::<Vec<_>>());
            let heads: Vec<bool> = of_group.iter().map(|it| it.order == [0, 1]).collect();
            assert!((10..31).contains(&heads.iter().filter(|it| **it).count()), "{heads:?}");
            // With a coin for two pairs, the second of two was always the mirror of the first.
            let alike = heads.chunks(2).filter(|two| two[0] == two[1]).count();
            assert!((3..18).contains(&alike), "{heads:?}");
        }
        // Both have the same number of blocks at any time, but for the round that has begun.
        for end in (0..blocks.len()).step_by(2) {
            assert_eq!(blocks[..end].iter().filter(|it| it.group == 0).count(), end / 2);
        }
        let again = all(&mut Plan::new(&experiment, cells.clone(), 7));
        assert_eq!(again, blocks);
        assert_ne!(all(&mut Plan::new(&experiment, cells, 8)), blocks);
    }

    #[test]
    fn who_fails_twice_is_not_run_again_nor_who_has_no_opponent_left() {
        let experiment = experiment(&["a=epoll", "b=io_uring", "c=tokio"], 10);
        let cells = experiment.cells(&[NetKind::Lo])[..1].to_vec();
        let mut plan = Plan::new(&experiment, cells.clone(), 1);
        let mut runs = [0; 3];
        while let Some(block) = plan.next() {
            for subject in block.order.clone() {
                runs[subject] += 1;
                if subject == 2 {
                    plan.failed(&block, subject);
                }
            }
        }
        assert_eq!(runs, [10, 10, 2]);
        // Without the baseline there is nothing to compare.
        let mut plan = Plan::new(&experiment, cells, 1);
        let mut blocks = 0;
        while let Some(block) = plan.next() {
            blocks += 1;
            plan.failed(&block, 0);
        }
        assert_eq!(blocks, 2);
    }

    #[test]
    fn few_subjects_are_one_group_and_many_are_several() {
        let subjects_of = |groups: &[Group]| -> Vec<Vec<usize>> {
            groups.iter().map(|group| group.subjects.clone()).collect()
        };
        let against_first = |count| (1..count).map(|it| (0, it)).collect::<Vec<_>>();
        let of = |subjects: &[usize], contests: &[(usize, usize)]| groups(4, subjects, contests);
        assert_eq!(subjects_of(&of(&[0, 1, 2], &against_first(3))), [[0, 1, 2]]);
        assert_eq!(of(&[0], &[])[0], Group { cell: 4, subjects: vec![0] });
        let nine: Vec<usize> = (0..9).collect();
        let found = of(&nine, &against_first(9));
        assert_eq!(subjects_of(&found), [[0, 1, 2], [0, 3, 4], [0, 5, 6], [0, 7, 8]]);
        // Everybody against the first two: these are in each group.
        let both: Vec<_> = (2..9).flat_map(|it| [(0, it), (1, it)]).chain([(0, 1)]).collect();
        let found = of(&nine, &both);
        assert!(found.len() == 7 && found.iter().all(|group| group.subjects.starts_with(&[0, 1])));
        for (baseline, subject) in both {
            let together = |group: &Group| {
                group.subjects.contains(&baseline) && group.subjects.contains(&subject)
            };
            assert!(found.iter().any(together), "{baseline} against {subject}");
        }
    }
}
