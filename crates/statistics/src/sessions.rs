//! A ratio over several sessions, hours or machines apart.
//!
//! Pairs of one session share what differs from the next, so sessions are never pooled as pairs: the estimate is
//! the mean of the sessions' means on the log scale, and its interval is Student's for these means. Sessions weigh the
//! same, however many pairs they have.

use super::{Ends, Estimate, Sample, aligned, student_quantile};

/// The fewest sessions of a machine, and machines of a field, whose spread says anything.
pub const MIN_SESSIONS: usize = 3;

/// A session of fewer pairs has no interval of its own, and does not count.
pub const SESSION_PAIRS_MIN: usize = 6;

/// What one session says, or what the sessions of one machine say together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Session {
    mean: f64,
    pairs: usize,
}

impl Session {
    /// Of its pairs; nothing if they are too few to count.
    pub fn of(pairs: &[Sample]) -> Option<Session> {
        let logs = aligned(pairs).filter(|logs| logs.len() >= SESSION_PAIRS_MIN)?;
        Some(Session { mean: logs.iter().sum::<f64>() / logs.len() as f64, pairs: logs.len() })
    }

    /// Of the sessions of one machine; nothing of none.
    pub fn of_machine(sessions: &[Session]) -> Option<Session> {
        (!sessions.is_empty()).then(|| Session {
            mean: sessions.iter().map(|it| it.mean).sum::<f64>() / sessions.len() as f64,
            pairs: sessions.iter().map(|it| it.pairs).sum(),
        })
    }
}

/// The estimate over several sessions of a machine, or machines of a field; nothing of none. Fewer than
/// [`MIN_SESSIONS`] have no interval.
pub fn over_sessions(sessions: &[Session], level: f64) -> Option<Estimate> {
    let all = Session::of_machine(sessions)?;
    let ends = || {
        let count = sessions.len() as f64;
        let squares: f64 = sessions.iter().map(|it| (it.mean - all.mean).powi(2)).sum();
        let standard_error = (squares / (count - 1.0) / count).sqrt();
        let reach = student_quantile(count - 1.0, 1.0 - level / 2.0) * standard_error;
        Ends::of_logs([all.mean - reach, all.mean + reach])
    };
    let ends = (sessions.len() >= MIN_SESSIONS).then(ends);
    Some(Estimate { ratio: all.mean.exp(), ends, pairs: all.pairs })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(mean: f64, scatter: f64, pairs: usize) -> Vec<Sample> {
        let sign = |at: usize| if at.is_multiple_of(2) { 1.0 } else { -1.0 };
        (0..pairs)
            .map(|at| Sample { value: (mean + sign(at) * scatter).exp(), stratum: 0 })
            .collect()
    }

    fn sessions(all: &[Vec<Sample>]) -> Vec<Session> {
        all.iter().filter_map(|pairs| Session::of(pairs)).collect()
    }

    /// Sessions of 8 and 4 pairs were pooled as one of 12: the small one did not count as a session, and so there
    /// were not several.
    #[test]
    fn a_small_session_is_left_out_and_never_pooled_as_pairs() {
        let found = sessions(&[session(0.2, 0.01, 8), session(0.7, 0.01, 4)]);
        assert_eq!(found.len(), 1);
        let found = over_sessions(&found, 0.05).unwrap();
        assert_eq!((found.pairs, found.ends), (8, None));
        assert!((found.ratio.ln() - 0.2).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn unequal_sessions_weigh_the_same() {
        let found =
            over_sessions(&sessions(&[session(0.1, 0.01, 40), session(0.3, 0.01, 8)]), 0.05);
        let found = found.unwrap();
        assert!((found.ratio.ln() - 0.2).abs() < 1e-12 && found.ends.is_none(), "{found:?}");
    }

    /// By hand: three means of 0.1, 0.2 and 0.3 have a standard deviation of 0.1, and Student's t with 2 degrees of
    /// freedom has its 97.5 % quantile at 4.302653 (NIST, table 1.3.6.7.2).
    #[test]
    fn three_sessions_have_the_interval_of_their_means() {
        let all = [0.1, 0.2, 0.3].map(|mean| session(mean, 0.001, 8));
        let ends = over_sessions(&sessions(&all), 0.05).unwrap().ends.unwrap();
        let reach = 4.302_653 * 0.1 / 3.0_f64.sqrt();
        assert!((ends.low.ln() - (0.2 - reach)).abs() < 1e-6, "{ends:?}");
        assert!((ends.high.ln() - (0.2 + reach)).abs() < 1e-6, "{ends:?}");
        let narrower = over_sessions(&sessions(&all), 0.1).unwrap().ends.unwrap();
        assert!(narrower.low > ends.low && narrower.high < ends.high);
    }

    #[test]
    fn a_machine_is_one_value_of_a_field() {
        let machine = |mean: f64| {
            let own = sessions(&[session(mean - 0.01, 0.01, 8), session(mean + 0.01, 0.01, 8)]);
            Session::of_machine(&own).unwrap()
        };
        let field = [machine(0.1), machine(0.2), machine(0.3)];
        let found = over_sessions(&field, 0.05).unwrap();
        assert!((found.ratio.ln() - 0.2).abs() < 1e-12 && found.pairs == 48, "{found:?}");
        assert!(found.ends.unwrap().low < 1.0);
        assert_eq!(over_sessions(&[], 0.05), None);
    }
}
