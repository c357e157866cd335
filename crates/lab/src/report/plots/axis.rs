//! Axes of plots: from a value to its place.

/// How values lie on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Equal factors are equally far.
    Log,
    /// Equal differences are.
    Linear,
}

/// An axis of a plot.
pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) start: f64,
    pub(super) end: f64,
}

impl Axis {
    pub(super) fn log(low: f64, high: f64, start: f64, end: f64) -> Axis {
        Axis { scale: Scale::Log, low, high, start, end }
    }

    /// An axis that begins at nothing, or a logarithmic one where that would hide the small values.
    pub(super) fn from_nothing(low: f64, high: f64, start: f64, end: f64) -> Axis {
        if high > LINEAR_FACTOR * low {
            return Axis::log(low * 0.85, high * 1.18, start, end);
        }
        Axis { scale: Scale::Linear, low: 0.0, high: high * 1.06, start, end }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Linear => (value - self.low) / (self.high - self.low),
        };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Round numbers on the axis, none closer to the next than `apart`: as many as there is room
    /// for.
    pub(super) fn ticks(&self, apart: f64) -> Vec<f64> {
        // A figure of a damaged bundle may be anything. The decades down to 0 have no end, and steps
        // of next to nothing neither.
        let least = match self.scale {
            Scale::Log => self.low,
            Scale::Linear => self.high - self.low,
        };
        if !(f64::MIN_POSITIVE..=f64::MAX).contains(&least) || !self.high.is_finite() {
            return Vec::new();
        }
        match self.scale {
            Scale::Log => self.log_ticks(apart),
            Scale::Linear => self.linear_ticks(apart),
        }
    }

    fn log_ticks(&self, apart: f64) -> Vec<f64> {
        let on_axis = |ladder: &&[f64]| -> Vec<f64> {
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let steps = decades
                .flat_map(|decade| ladder.iter().map(move |step| step * 10_f64.powi(decade)));
            steps.filter(|value| (self.low..=self.high).contains(value)).collect()
        };
        LADDERS.iter().map(on_axis).find(|ticks| self.have_room(ticks, apart)).unwrap_or_default()
    }

    fn linear_ticks(&self, apart: f64) -> Vec<f64> {
        let span = self.high - self.low;
        let smallest = 10_f64.powf(span.log10().floor() - 1.0);
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(|factor| factor * smallest);
        let on_axis = |step: f64| -> Vec<f64> {
            let count = (span / step).floor() as u32;
            (0..=count).map(|position| self.low + f64::from(position) * step).collect()
        };
        steps.into_iter().map(on_axis).find(|it| self.have_room(it, apart)).unwrap_or_default()
    }

    fn have_room(&self, ticks: &[f64], apart: f64) -> bool {
        ticks.windows(2).all(|two| (self.at(two[1]) - self.at(two[0])).abs() >= apart)
    }
}

/// Values that differ by more than this factor are not shown on one linear axis.
const LINEAR_FACTOR: f64 = 8.0;

/// Steps within a factor of ten, from fine to coarse. All hold 1.
const LADDERS: &[&[f64]] = &[
    &[
        1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0,
        9.2, 9.4, 9.6, 9.8,
    ],
    &[1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 2.0, 3.0, 5.0, 8.0, 8.5, 9.0, 9.5],
    &[1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 7.0, 8.0, 9.0],
    &[1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0],
    &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
    &[1.0, 2.0, 5.0],
    &[1.0, 3.0],
    &[1.0],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_its_ends_where_they_belong_and_few_ticks() {
        let axis = Axis::log(0.9, 1.4, 0.0, 100.0);
        assert_eq!(axis.at(0.9), 0.0);
        assert!((axis.at(1.4) - 100.0).abs() < 1e-9);
        let ticks = axis.ticks(30.0);
        assert!((2..=4).contains(&ticks.len()) && ticks.contains(&1.0), "{ticks:?}");
        let wide = Axis::log(1.0, 1e6, 0.0, 100.0);
        assert_eq!(wide.ticks(10.0).len(), 7);
    }

    /// The decades from 1 down to 0 took all memory.
    #[test]
    fn figures_that_are_none_have_no_ticks() {
        for (low, high) in [(0.0, 1.0), (-1.0, 1.0), (1.0, f64::INFINITY), (f64::NAN, 1.0)] {
            assert!(Axis::log(low, high, 0.0, 100.0).ticks(10.0).is_empty(), "{low} to {high}");
        }
        for (low, high) in [(1.0, f64::INFINITY), (0.0, 1.0), (0.0, 0.0), (5e-324, 5e-324)] {
            let axis = Axis::from_nothing(low, high, 0.0, 100.0);
            assert!(axis.ticks(10.0).is_empty(), "{low} to {high}");
        }
        // What is very small, or very wide, has few.
        let small = Axis::from_nothing(1e-300, 2e-300, 0.0, 100.0).ticks(10.0);
        let wide = Axis::log(f64::MIN_POSITIVE, f64::MAX, 0.0, 100.0).ticks(10.0);
        assert!(small.len() < 12 && wide.len() < 12, "{small:?} {wide:?}");
    }

    #[test]
    fn an_axis_from_nothing_is_linear_unless_that_hides_something() {
        let axis = Axis::from_nothing(1800.0, 3200.0, 100.0, 0.0);
        assert_eq!((axis.at(0.0), axis.scale), (100.0, Scale::Linear));
        assert_eq!(axis.ticks(20.0), [0.0, 1000.0, 2000.0, 3000.0]);
        assert_eq!(Axis::from_nothing(10.0, 1000.0, 0.0, 100.0).scale, Scale::Log);
    }
}
