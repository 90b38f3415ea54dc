//! Tokens of a file (`--token-auth-file`): `token,user,uid,"group1,group2"` a line.

use std::collections::HashMap;
use std::path::Path;

use super::{Known, Tokens};
use crate::request::User;

/// The tokens of a file.
#[derive(Debug, Default)]
pub struct StaticTokens(HashMap<String, User>);

impl StaticTokens {
    /// Reads a file.
    ///
    /// # Errors
    /// When it can't be read, or a line has fewer than three columns.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = HashMap::new();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let columns = columns(line);
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(format!(
                    "must have at least 3 columns (token, user name, user uid), found {}",
                    columns.len()
                ));
            };
            if token.is_empty() {
                tracing::warn!("empty token in the token file");
                continue;
            }
            let groups = rest.first().map(|g| g.split(',').map(|g| g.trim().to_string()).collect()).unwrap_or_default();
            let user = User { name: name.clone(), uid: uid.clone(), groups, ..User::default() };
            if tokens.insert(token.clone(), user).is_some() {
                tracing::warn!(user = name, "duplicate token in the token file");
            }
        }
        Ok(Self(tokens))
    }
}

/// Columns of a CSV line; quotes hold commas, and two quotes within them are one.
fn columns(line: &str) -> Vec<String> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let column = columns.len() - 1;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                columns[column].push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            ' ' if columns[column].is_empty() && !quoted => {}
            c => columns[column].push(c),
        }
    }
    columns
}

impl Tokens for StaticTokens {
    fn known(&self, token: &str, _: &[String]) -> Result<Option<Known>, String> {
        Ok(self.0.get(token).map(|user| Known { user: user.clone(), audiences: Vec::new() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_token_name_uid_and_groups() {
        let tokens = StaticTokens::parse("t1,ann,1,\"a,b\"\nt2, bob ,2\n").expect("parsed");
        let known = tokens.known("t1", &[]).expect("ok").expect("known").user;
        assert_eq!((known.name.as_str(), known.groups), ("ann", vec!["a".to_string(), "b".to_string()]));
        assert_eq!(tokens.known("nothing", &[]), Ok(None));
        assert!(StaticTokens::parse("t1,ann").is_err());
    }
}
