//! What has to be done to get from one configuration to another.

use super::SlotConfig;
use std::collections::{BTreeMap, BTreeSet};

/// What is to become of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It is new.
    Load,
    /// It is to be loaded otherwise.
    Swap,
    /// It is gone.
    Unload,
}

/// The changes from `old` to `new` where the slots in `present` are there now. A slot that is not in either was
/// made by an operator, and stays.
pub fn changes(
    old: &BTreeMap<String, SlotConfig>,
    new: &BTreeMap<String, SlotConfig>,
    present: &BTreeSet<String>,
) -> BTreeMap<String, Change> {
    let wanted = new.iter().filter_map(|(name, slot)| {
        let change = match present.contains(name) {
            false => Change::Load,
            true if old.get(name) == Some(slot) => return None,
            true => Change::Swap,
        };
        Some((name.clone(), change))
    });
    let gone = old
        .keys()
        .filter(|name| !new.contains_key(*name) && present.contains(*name));
    wanted
        .chain(gone.map(|name| (name.clone(), Change::Unload)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(slots: &[(&str, &str)]) -> BTreeMap<String, SlotConfig> {
        let slot = |model: &str| SlotConfig {
            model: Some(model.to_owned()),
            ..SlotConfig::default()
        };
        slots
            .iter()
            .map(|(name, model)| ((*name).to_owned(), slot(model)))
            .collect()
    }

    #[test]
    fn the_difference_is_what_is_new_changed_or_gone() {
        let old = slots(&[
            ("same", "a"),
            ("changed", "a"),
            ("gone", "a"),
            ("unloaded by hand", "a"),
        ]);
        let new = slots(&[
            ("same", "a"),
            ("changed", "b"),
            ("new", "a"),
            ("unloaded by hand", "a"),
        ]);
        let present = ["same", "changed", "gone", "made by hand"]
            .map(str::to_owned)
            .into();
        let expected = [
            ("changed", Change::Swap),
            ("gone", Change::Unload),
            ("new", Change::Load),
            ("unloaded by hand", Change::Load),
        ];
        let expected: BTreeMap<String, Change> = expected
            .into_iter()
            .map(|(name, change)| (name.to_owned(), change))
            .collect();
        assert_eq!(changes(&old, &new, &present), expected);
        assert!(changes(&new, &new, &new.keys().cloned().collect()).is_empty());
    }
}
