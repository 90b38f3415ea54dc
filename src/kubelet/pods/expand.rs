//! `$(VAR)` in commands, arguments and values.

/// Replaces `$(NAME)` by what `lookup` knows; a name it does not know stays as written, and `$$` stands for `$`.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(tail) = rest.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix('(') {
            match tail.find(')') {
                Some(end) => {
                    let name = &tail[..end];
                    out.push_str(&lookup(name).unwrap_or_else(|| format!("$({name})")));
                    rest = &tail[end + 1..];
                }
                None => {
                    // An opening without an end is no reference.
                    out.push_str("$(");
                    rest = tail;
                }
            }
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// Names that `text` refers to and `lookup` does not know.
pub fn missing(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let unknown = std::cell::RefCell::new(Vec::new());
    expand(text, |name| {
        let known = lookup(name);
        if known.is_none() {
            unknown.borrow_mut().push(name.to_owned());
        }
        known
    });
    unknown.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_defined_names_are_expanded() {
        let lookup = |name: &str| (name == "A").then(|| "x".to_owned());
        for (text, expected) in [
            ("$(A)", "x"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$x"),
            ("$(B)-$(A)", "$(B)-x"),
            ("$(A", "$(A"),
            ("$A $", "$A $"),
            ("é$(A)é", "éxé"),
        ] {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
        assert_eq!(missing("$(B) $(A)", lookup), ["B"]);
    }
}
