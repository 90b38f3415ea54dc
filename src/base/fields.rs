//! A component's configuration: a structure with defaults that a file and flags go over.
//!
//! ```text
//!   defaults ─► file (JSON or YAML, strictly) ─► flags, a row each ─► the structure
//! ```
//! A row says where in the configuration a flag has its field; the flag's default is the field's.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Arg;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::flags::{self, Flags};

/// A duration as Go writes it: `1m30s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// Whole seconds.
    pub const fn secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let span = crate::clock::parse_duration(&text);
        span.map(Self).ok_or_else(|| serde::de::Error::custom(format!("time: invalid duration {text:?}")))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&crate::clock::format_duration(self.0))
    }
}

/// Declares a structure of a configuration: fields with defaults, in camel case; unknown fields are refused.
#[macro_export]
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

/// How the text of a flag becomes the value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A text.
    Text,
    /// A bool. A field without a default is one that others decide, towards yes.
    Switch,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// A duration.
    Span,
    /// Texts by commas.
    List,
    /// A text for each time that the flag is given.
    Array,
    /// `name=value` by commas.
    Map,
    /// `name=true` by commas.
    Switches,
    /// `name<value` by commas.
    Below,
    /// Something of the component's own, by commas.
    With(fn(&Flags, &str) -> Result<Value, String>),
}

/// A flag that is a field of the configuration.
#[derive(Debug)]
pub struct Field {
    /// The flag.
    pub flag: &'static str,
    /// Where the field is, as a JSON pointer.
    pub at: &'static str,
    /// How one becomes the other.
    pub form: Form,
    /// What it does.
    pub help: &'static str,
}

/// A row.
pub const fn field(flag: &'static str, at: &'static str, form: Form, help: &'static str) -> Field {
    Field { flag, at, form, help }
}

impl Field {
    /// The flag, with the field's default.
    pub fn flag(&self, defaults: &Value) -> Arg {
        let default = defaults.pointer(self.at).unwrap_or(&Value::Null);
        let text = default.as_str().unwrap_or_default();
        match self.form {
            Form::Text => flags::text(self.flag, text, self.help),
            Form::Switch => flags::switch(self.flag, default.as_bool().unwrap_or(true), self.help),
            Form::Int => flags::int(self.flag, default.as_i64().unwrap_or_default(), self.help),
            Form::Float => flags::float(self.flag, default.as_f64().unwrap_or_default(), self.help),
            Form::Span => flags::duration(self.flag, text, self.help),
            Form::List => flags::list(self.flag, &words(default).join(","), self.help),
            Form::Array => flags::array(self.flag, self.help),
            Form::Map | Form::Switches | Form::Below | Form::With(_) => flags::map(self.flag, self.help),
        }
    }

    /// The value that the command line gives.
    ///
    /// # Errors
    /// Says what in the text makes no sense.
    pub fn value(&self, flags: &Flags) -> Result<Value, String> {
        let name = self.flag;
        Ok(match self.form {
            Form::Text => flags.text(name).into(),
            Form::Switch => flags.switch(name).into(),
            Form::Int => flags.int(name).into(),
            Form::Float => flags.float(name).into(),
            Form::Span => crate::clock::format_duration(flags.duration(name)).into(),
            Form::List => flags.list(name).into(),
            Form::Array => flags.array(name).into(),
            Form::Map => json!(flags.map(name)),
            Form::Switches => {
                json!(flags.map(name).into_iter().map(|(k, v)| (k, v == "true")).collect::<BTreeMap<_, _>>())
            }
            Form::Below => json!(pairs(flags, name, '<')?.into_iter().collect::<BTreeMap<_, _>>()),
            Form::With(parse) => parse(flags, name)?,
        })
    }
}

/// The parts of a list, each cut at `mark`.
///
/// # Errors
/// Names the part that has no mark.
pub fn pairs(flags: &Flags, name: &str, mark: char) -> Result<Vec<(String, String)>, String> {
    let cut = |pair: String| match pair.split_once(mark) {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(format!("--{name}: {pair:?} has no {mark:?}")),
    };
    flags.list(name).into_iter().map(cut).collect()
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Puts the flags that were given over a configuration.
///
/// # Errors
/// Those of [`Field::value`].
pub fn overlay(fields: &[Field], flags: &Flags, config: &mut Value) -> Result<(), String> {
    for field in fields.iter().filter(|field| flags.given(field.flag)) {
        let mut place = &mut *config;
        for name in field.at.split('/').skip(1) {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[name];
        }
        *place = field.value(flags)?;
    }
    Ok(())
}

/// Those of `pointers` at which two configurations differ, without the first stroke.
pub fn differing(one: &Value, other: &Value, pointers: &[&'static str]) -> Vec<&'static str> {
    pointers.iter().filter(|at| one.pointer(at) != other.pointer(at)).map(|at| &at[1..]).collect()
}

/// Takes out what Go's decoders take for left out: null, no text and no time; but for the fields of the given names,
/// whose empty text has a meaning.
pub fn drop_unset(value: &mut Value, meaningful: &[&str]) {
    let unset = |value: &Value| value.is_null() || matches!(value.as_str(), Some("" | "0s"));
    match value {
        Value::Object(map) => {
            map.retain(|key, value| !unset(value) || (meaningful.contains(&key.as_str()) && !value.is_null()));
            map.values_mut().for_each(|value| drop_unset(value, meaningful));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| drop_unset(value, meaningful)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    section! {
        /// A part.
        Part {
            /// A time.
            wait: Span = Span::secs(90),
        }
    }

    section! {
        /// A whole.
        Whole {
            /// A list.
            names: Vec<String> = vec!["a".into(), "b".into()],
            /// A part.
            part: Part = Part::default(),
            /// Limits.
            limits: BTreeMap<String, String> = BTreeMap::new(),
        }
    }

    const FIELDS: &[Field] = &[
        field("names", "/names", Form::List, ""),
        field("wait", "/part/wait", Form::Span, ""),
        field("limits", "/limits", Form::Below, ""),
    ];

    fn whole(file: Value, args: &[&str]) -> Result<Whole, String> {
        let defaults = json!(Whole::default());
        let command = flags::command("test", "", FIELDS.iter().map(|field| field.flag(&defaults)));
        let Ok(flags) = flags::parse(command, args.iter().map(std::ffi::OsString::from)) else {
            return Err("bad flags".into());
        };
        let mut value = file;
        overlay(FIELDS, &flags, &mut value)?;
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_that_are_given_go_over_the_file_and_the_others_leave_it_alone() {
        let file = json!({"names": ["c"], "part": {"wait": "1s"}});
        let got = whole(file.clone(), &["--wait=2m"]).unwrap();
        assert_eq!((got.names.join(""), got.part.wait), ("c".into(), Span::secs(120)));
        assert_eq!(whole(file, &["--names=d,e"]).unwrap().names, ["d", "e"]);
        assert_eq!(whole(json!({}), &["--limits=x<1,y<2"]).unwrap().limits.len(), 2);
        assert_eq!(whole(json!({}), &["--limits=x"]).unwrap_err(), "--limits: \"x\" has no '<'");
        assert!(whole(json!({"nope": 1}), &[]).is_err());
    }

    #[test]
    fn what_go_takes_for_left_out_is_left_out() {
        let mut value = json!({"a": null, "b": "", "c": "0s", "d": {"e": ""}, "f": 0, "g": [{"b": ""}]});
        drop_unset(&mut value, &["b"]);
        assert_eq!(value, json!({"b": "", "d": {}, "f": 0, "g": [{"b": ""}]}));
    }
}
