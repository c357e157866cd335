//! The load of a cell, divided among several client hosts.

use crate::error::LabError;
use crate::experiment::{Experiment, NetKind, Point};

/// The part of `whole` that the host number `index` of `hosts` takes: what cannot be divided goes
/// to the first ones.
pub(crate) fn part(whole: u32, hosts: usize, index: usize) -> u32 {
    let hosts = u32::try_from(hosts).unwrap_or(u32::MAX).max(1);
    whole / hosts + u32::from((index as u32) < whole % hosts)
}

/// The load of the host number `index` of `hosts`: its part of the connections, of the rate or of
/// the streams, and everything else as in the cell.
pub(crate) fn share(point: Point, hosts: usize, index: usize) -> Point {
    point.load().divided(&|whole| part(whole, hosts, index))
}

/// Whether every cell has something for each of the hosts.
///
/// # Errors
/// [`LabError::BadExperiment`] with the first cell that has not.
pub(crate) fn check(experiment: &Experiment, hosts: usize) -> Result<(), LabError> {
    if hosts < 2 {
        return Ok(());
    }
    let bad = |problem: String, expected: &str| LabError::BadExperiment {
        place: "--client-host".to_owned(),
        problem,
        expected: expected.to_owned(),
    };
    for cell in experiment.cells(&[NetKind::Hosts]) {
        let ((axis, count), rate_per_s) = (cell.point.clients(), cell.point.rate_per_s());
        let too_slow = rate_per_s != 0 && (rate_per_s as usize) < hosts;
        if too_slow || (count as usize) < hosts {
            let problem = format!("{cell} cannot be divided among {hosts} client hosts");
            let what = axis.title();
            let expected = format!("{hosts} {what} or more, and as many requests/s, in every cell");
            return Err(bad(problem, &expected));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Overrides, Protocol};

    #[test]
    fn parts_differ_by_one_at_most_and_add_up() {
        for (whole, hosts) in [(7, 3), (100, 2), (3, 3), (1_000_000, 7)] {
            let parts: Vec<u32> = (0..hosts).map(|index| part(whole, hosts, index)).collect();
            assert_eq!(parts.iter().sum::<u32>(), whole);
            assert!(parts.iter().all(|it| parts[0] - it <= 1), "{parts:?}");
        }
    }

    #[test]
    fn a_cell_that_cannot_be_divided_is_named() {
        let connections = Some(vec![100, 2]);
        let protocol = Some(Protocol::Tcp);
        let overrides = Overrides { protocol, connections, ..Overrides::default() };
        let experiment = Experiment::find("quick").unwrap().with(&overrides).unwrap();
        check(&experiment, 1).unwrap();
        check(&experiment, 2).unwrap();
        let error = check(&experiment, 3).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("2 x 128 B at 25 % load between hosts"), "{error}");
    }
}
