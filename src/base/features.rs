//! Feature gates: which there are in 1.36, and which of a command line's or a configuration's are refused.
//!
//! `features.txt` lists upstream's gates: name, default, stage, and `locked` where the default can't be changed. Nothing
//! here is switched by a gate, so one that is set otherwise than its default is told of as having no effect.

use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: &str = include_str!("features.txt");

/// Groups of gates that stand for all of a stage.
const GROUPS: [&str; 2] = ["AllAlpha", "AllBeta"];

/// A gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Is the feature on unless somebody says otherwise?
    pub default: bool,
    /// Can nobody say otherwise?
    pub locked: bool,
}

fn gates() -> &'static BTreeMap<&'static str, Gate> {
    static GATES: LazyLock<BTreeMap<&'static str, Gate>> = LazyLock::new(|| {
        let row = |line: &'static str| {
            let mut words = line.split(' ');
            let (name, default) = (words.next()?, words.next()? == "true");
            Some((name, Gate { default, locked: words.any(|word| word == "locked") }))
        };
        let groups = GROUPS.into_iter().map(|name| (name, Gate { default: false, locked: false }));
        TABLE.lines().filter_map(row).chain(groups).collect()
    });
    &GATES
}

/// Checks a gate and what it is set to.
///
/// # Errors
/// In upstream's words: a gate that is not known, or that can't be set so.
pub fn check(name: &str, on: bool) -> Result<Gate, String> {
    let gate = gates().get(name).ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
    if gate.locked && gate.default != on {
        let default = gate.default;
        return Err(format!("cannot set feature gate {name} to {on}, feature is locked to {default}"));
    }
    Ok(*gate)
}

/// Checks gates as a flag has them, `Name=true` by commas.
///
/// # Errors
/// Those of [`check`], and values that are no bool.
pub fn check_texts(gates: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in gates {
        let on = crate::flags::parse_bool(value)
            .map_err(|error| format!("invalid value of {name}={value}, err: {error}"))?;
        check(name, on)?;
    }
    Ok(())
}

/// Those of the gates that are set otherwise than their default.
pub fn changed<'a>(gates: impl IntoIterator<Item = (&'a String, bool)>) -> Vec<&'a str> {
    let differs =
        |(name, on): (&'a String, bool)| check(name, on).is_ok_and(|gate| gate.default != on).then_some(name.as_str());
    gates.into_iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_gates_and_locked_ones_are_refused_in_upstreams_words() {
        let refused = |name: &str, value: &str| check_texts(&[(name.to_owned(), value.to_owned())].into()).unwrap_err();
        assert_eq!(refused("NoSuch", "true"), "unrecognized feature gate: NoSuch");
        assert_eq!(
            refused("AnyVolumeDataSource", "false"),
            "cannot set feature gate AnyVolumeDataSource to false, feature is locked to true"
        );
        assert!(refused("AllAlpha", "maybe").starts_with("invalid value of AllAlpha=maybe, err: strconv.ParseBool"));
        check("AnyVolumeDataSource", true).unwrap();
    }

    #[test]
    fn only_what_differs_from_its_default_is_told() {
        let set = [("AllowServiceExternalIPs".to_owned(), true), ("APIServerIdentity".to_owned(), false)];
        assert_eq!(changed(set.iter().map(|(name, on)| (name, *on))), ["APIServerIdentity"]);
    }
}
