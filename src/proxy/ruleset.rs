//! A set of nftables rules as a value, and the one transaction that turns one such value into another.
//!
//! Chains and maps that did not change are not touched, so that a change to one service of thousands is a small
//! transaction and what the kernel learned (who belongs to which endpoint) stays.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What hooks it into the kernel's path, for base chains.
    pub hook: Option<&'static str>,
    /// Rules in order.
    pub rules: Vec<String>,
}

/// A set or map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// `set` or `map`.
    pub kind: &'static str,
    /// Its type and flags, as they stand between the braces.
    pub header: String,
    /// Elements; for maps with what they map to. Those of sets that the kernel fills stay out of it.
    pub elements: BTreeMap<String, String>,
}

/// A table's whole content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Chains by name.
    pub chains: BTreeMap<String, Chain>,
    /// Sets and maps by name.
    pub sets: BTreeMap<String, Set>,
}

impl Ruleset {
    /// Adds a rule to a chain, which it makes when there is none.
    pub fn rule(&mut self, chain: &str, rule: impl Into<String>) {
        self.chains.entry(chain.to_string()).or_default().rules.push(rule.into());
    }
}

fn element(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_string() } else { format!("{key} : {value}") }
}

/// Writes the commands of one transaction. Writing to a string can't fail.
struct Script<'a> {
    table: &'a str,
    out: String,
}

impl Script<'_> {
    fn line(&mut self, command: &str, rest: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.out, "{command} {} {rest}", self.table);
    }

    fn declare(&mut self, old: &Ruleset, new: &Ruleset) {
        for (name, set) in new.sets.iter().filter(|(name, _)| !old.sets.contains_key(*name)) {
            self.line(&format!("add {}", set.kind), format_args!("{name} {{ {} }}", set.header));
        }
        for (name, chain) in new.chains.iter().filter(|(name, _)| !old.chains.contains_key(*name)) {
            match chain.hook {
                Some(hook) => self.line("add chain", format_args!("{name} {{ {hook} }}")),
                None => self.line("add chain", format_args!("{name}")),
            }
        }
    }

    fn elements(&mut self, name: &str, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) {
        let gone: Vec<String> =
            old.iter().filter(|(k, v)| new.get(*k) != Some(v)).map(|(k, v)| element(k, v)).collect();
        let come: Vec<String> =
            new.iter().filter(|(k, v)| old.get(*k) != Some(v)).map(|(k, v)| element(k, v)).collect();
        if !gone.is_empty() {
            self.line("delete element", format_args!("{name} {{ {} }}", gone.join(", ")));
        }
        if !come.is_empty() {
            self.line("add element", format_args!("{name} {{ {} }}", come.join(", ")));
        }
    }

    fn fill(&mut self, old: &Ruleset, new: &Ruleset) {
        let nothing = (Chain::default(), Set::default());
        for (name, chain) in &new.chains {
            let before = old.chains.get(name).unwrap_or(&nothing.0);
            if before.rules == chain.rules {
                continue;
            }
            if !before.rules.is_empty() {
                self.line("flush chain", format_args!("{name}"));
            }
            for rule in &chain.rules {
                self.line("add rule", format_args!("{name} {rule}"));
            }
        }
        for (name, set) in &new.sets {
            let before = old.sets.get(name).unwrap_or(&nothing.1);
            self.elements(name, &before.elements, &set.elements);
        }
    }

    /// Chains first lose their rules, since those may lead to one another.
    fn sweep(&mut self, old: &Ruleset, new: &Ruleset) {
        let gone: Vec<&String> = old.chains.keys().filter(|name| !new.chains.contains_key(*name)).collect();
        for name in &gone {
            self.line("flush chain", format_args!("{name}"));
        }
        for name in &gone {
            self.line("delete chain", format_args!("{name}"));
        }
        for (name, set) in old.sets.iter().filter(|(name, _)| !new.sets.contains_key(*name)) {
            self.line(&format!("delete {}", set.kind), format_args!("{name}"));
        }
    }
}

/// Sets whose type or flags change can't be changed in place; such a change takes a transaction from nothing.
fn can_follow(old: &Ruleset, new: &Ruleset) -> bool {
    let same_set = |(name, set): (&String, &Set)| old.sets.get(name).is_none_or(|o| o.header == set.header);
    let same_hook = |(name, chain): (&String, &Chain)| old.chains.get(name).is_none_or(|o| o.hook == chain.hook);
    new.sets.iter().all(same_set) && new.chains.iter().all(same_hook)
}

/// The transaction that turns what the kernel holds into `new`; without `old` whatever is there is replaced. Nothing
/// when nothing changes.
pub fn transaction(table: &str, old: Option<&Ruleset>, new: &Ruleset) -> Option<String> {
    let mut script = Script { table, out: String::new() };
    let empty = Ruleset::default();
    let old = match old.filter(|old| can_follow(old, new)) {
        Some(old) if old == new => return None,
        Some(old) => old,
        None => {
            script.out = format!("add table {table}\ndelete table {table}\nadd table {table}\n");
            &empty
        }
    };
    script.declare(old, new);
    script.fill(old, new);
    script.sweep(old, new);
    Some(script.out)
}

/// The transaction that makes what we hold true again, whatever somebody else did to it. Sets that the kernel fills
/// keep their elements: these are the sessions of clients.
pub fn restore(table: &str, rules: &Ruleset) -> String {
    let mut script = Script { table, out: format!("add table {table}\n") };
    let empty = Ruleset::default();
    script.declare(&empty, rules);
    for name in rules.chains.keys() {
        script.line("flush chain", format_args!("{name}"));
    }
    for (name, set) in rules.sets.iter().filter(|(_, set)| !set.header.contains("dynamic")) {
        script.line(&format!("flush {}", set.kind), format_args!("{name}"));
    }
    script.fill(&empty, rules);
    script.out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(chains: &[(&str, &[&str])], elements: &[(&str, &str)]) -> Ruleset {
        let mut rules = Ruleset::default();
        for (name, lines) in chains {
            let lines = lines.iter().map(|l| l.to_string()).collect();
            rules.chains.insert(name.to_string(), Chain { hook: None, rules: lines });
        }
        let elements = elements.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let header = "type ipv4_addr : verdict;".to_string();
        rules.sets.insert("m".into(), Set { kind: "map", header, elements });
        rules
    }

    #[test]
    fn only_what_changed_is_in_the_transaction_and_chains_go_last() {
        let old = with(&[("a", &["accept"]), ("b", &["drop"])], &[("10.0.0.1", "goto a"), ("10.0.0.2", "goto b")]);
        let new = with(&[("a", &["accept"]), ("c", &["reject"])], &[("10.0.0.1", "goto a"), ("10.0.0.2", "goto c")]);
        let script = transaction("ip t", Some(&old), &new).unwrap();
        let want = "add chain ip t c\nadd rule ip t c reject\ndelete element ip t m { 10.0.0.2 : goto b }\n\
                    add element ip t m { 10.0.0.2 : goto c }\nflush chain ip t b\ndelete chain ip t b\n";
        assert_eq!(script, want);
    }

    #[test]
    fn no_change_is_no_transaction() {
        let rules = with(&[("a", &["accept"])], &[]);
        assert_eq!(transaction("ip t", Some(&rules), &rules.clone()), None);
    }

    #[test]
    fn restoring_rewrites_all_rules_and_keeps_the_sessions_of_clients() {
        let mut rules = with(&[("a", &["accept"])], &[("10.0.0.1", "goto a")]);
        let header = "type ipv4_addr; flags dynamic,timeout;".to_string();
        rules.sets.insert("sessions".into(), Set { kind: "set", header, elements: BTreeMap::new() });
        let script = restore("ip t", &rules);
        let want = "add table ip t\nadd map ip t m { type ipv4_addr : verdict; }\n\
                    add set ip t sessions { type ipv4_addr; flags dynamic,timeout; }\nadd chain ip t a\n\
                    flush chain ip t a\nflush map ip t m\nadd rule ip t a accept\n\
                    add element ip t m { 10.0.0.1 : goto a }\n";
        assert_eq!(script, want);
    }

    #[test]
    fn without_a_known_state_everything_there_is_replaced() {
        let script = transaction("ip t", None, &with(&[("a", &["accept"])], &[])).unwrap();
        assert!(script.starts_with("add table ip t\ndelete table ip t\nadd table ip t\n"));
        assert!(script.contains("add rule ip t a accept\n"));
    }
}
