//! In which order memory is taken and given back.

use super::Plan;

/// Chooses by what the candidate is estimated to need and what is free, both in bytes. Side by side leaves no gap,
/// so it is taken wherever it fits with a tenth to spare; memory that can't be measured is taken to be enough,
/// since a candidate that does not fit changes nothing.
pub fn choose(forced: Option<Plan>, need: u64, free: Option<u64>) -> Plan {
    let fits = free.is_none_or(|free| need <= free - free / 10);
    match forced {
        Some(plan) => plan,
        None if fits => Plan::SideBySide,
        None => Plan::DrainFirst,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Plan::{DrainFirst, SideBySide},
        choose,
    };

    #[test]
    fn memory_decides_unless_the_operator_does() {
        assert_eq!(choose(None, 90, Some(100)), SideBySide);
        assert_eq!(choose(None, 91, Some(100)), DrainFirst);
        assert_eq!(choose(None, u64::MAX, None), SideBySide);
        assert_eq!(choose(None, 1, Some(0)), DrainFirst);
        assert_eq!(choose(Some(SideBySide), 91, Some(100)), SideBySide);
        assert_eq!(choose(Some(DrainFirst), 0, Some(100)), DrainFirst);
    }
}
