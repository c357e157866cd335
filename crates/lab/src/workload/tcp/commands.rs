//! The placeholders of TCP beside the numbers of its axes.

use super::TcpPoint;
use crate::values::{Place, Values, option_unless_zero};

impl TcpPoint {
    pub(crate) fn fill(&self, values: &mut Values, place: &Place<'_>) {
        let churn = option_unless_zero("--churn", self.churn);
        let options = place.pace_options().chain(churn);
        values.list("{options}", options.collect());
    }
}
