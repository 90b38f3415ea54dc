//! Options of lists and watches: `ListOptions` from queries, with upstream's defaults, checks and words.

use api::field::{Error, Errors, Path};
use api::resources::Row;
use api::selector::{FieldSelector, LabelSelector};
use api::status::{Of, Status};

use crate::request::Request;

/// Which state a list may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// Exactly that one.
    Exact,
    /// That one or a newer.
    NotOlderThan,
}

/// Options of a list or watch.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Labels.
    pub labels: LabelSelector,
    /// Fields, under the names by which entries know them.
    pub fields: FieldSelector,
    /// A watch was asked for.
    pub watch: bool,
    /// The watcher understands bookmarks.
    pub bookmarks: bool,
    /// As the client wrote it; checked where it is used, with one error for lists and another for watches.
    pub resource_version: String,
    /// How it is meant.
    pub version_match: Option<Match>,
    /// Seconds until a watch ends.
    pub timeout: Option<i64>,
    /// Items per page; 0 for all.
    pub limit: usize,
    /// Token of the next page.
    pub token: String,
    /// Whether a watch begins with what is there.
    pub initial_events: Option<bool>,
}

impl ListOptions {
    /// Reads and checks the options of a request. `watch` says that the path itself asks for a watch.
    ///
    /// # Errors
    /// 400 for what can't be read, 422 for what does not go together.
    pub fn read(row: &Row, req: &Request) -> Result<Self, Status> {
        let version_match = req.param("resourceVersionMatch").unwrap_or_default();
        let bad = |e: &dyn std::fmt::Display| Status::bad_request(e.to_string());
        // Numbers are read before selectors, whatever their order in the query.
        let timeout = number(req, "timeoutSeconds")?;
        let limit = number(req, "limit")?.unwrap_or(0);
        let mut options = Self {
            watch: truth(req, "watch").unwrap_or(false),
            bookmarks: truth(req, "allowWatchBookmarks").unwrap_or(false),
            resource_version: req.param("resourceVersion").unwrap_or_default().to_string(),
            timeout,
            limit: usize::try_from(limit).unwrap_or(0),
            token: req.param("continue").unwrap_or_default().to_string(),
            initial_events: truth(req, "sendInitialEvents"),
            labels: LabelSelector::parse(req.param("labelSelector").unwrap_or_default()).map_err(|e| bad(&e))?,
            ..Self::default()
        };
        let fields = FieldSelector::parse(req.param("fieldSelector").unwrap_or_default()).map_err(|e| bad(&e))?;
        options.check(version_match)?;
        options.fields = options.rename(row, req, fields)?;
        options.pin_name(&req.info.name)?;
        Ok(options)
    }

    /// Applies the defaults and checks what goes together.
    fn check(&mut self, version_match: &str) -> Result<(), Status> {
        let legacy = matches!(&*self.resource_version, "" | "0");
        let mut version_match = version_match;
        if self.watch && legacy && self.initial_events.is_none() && version_match.is_empty() {
            // A watch from nowhere in particular begins with what is there.
            self.initial_events = Some(true);
            version_match = NOT_OLDER;
        }
        let errors = if self.watch { self.watch_errors(version_match) } else { self.list_errors(version_match) };
        if !errors.is_empty() {
            return Err(Status::invalid(Of { group: "meta.k8s.io", name: "ListOptions" }, "", errors));
        }
        self.version_match = match version_match {
            EXACT => Some(Match::Exact),
            NOT_OLDER => Some(Match::NotOlderThan),
            _ => None,
        };
        Ok(())
    }

    fn list_errors(&self, version_match: &str) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("resourceVersionMatch");
        if !version_match.is_empty() {
            if self.resource_version.is_empty() {
                errors.push(Error::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !self.token.is_empty() {
                errors.push(Error::forbidden(&path, "resourceVersionMatch is forbidden when continue is provided"));
            }
            if !matches!(version_match, EXACT | NOT_OLDER) {
                errors.push(Error::not_supported(&path, version_match, &[EXACT, NOT_OLDER, ""]));
            }
            if version_match == EXACT && self.resource_version == "0" {
                errors.push(Error::forbidden(
                    &path,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        if self.initial_events.is_some() {
            errors.push(Error::forbidden(&Path::new("sendInitialEvents"), "sendInitialEvents is forbidden for list"));
        }
        errors
    }

    fn watch_errors(&self, version_match: &str) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("resourceVersionMatch");
        if self.initial_events.is_some() && version_match != NOT_OLDER {
            errors.push(Error::forbidden(
                &path,
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if !version_match.is_empty() {
            if self.initial_events.is_none() {
                errors.push(Error::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            if version_match != NOT_OLDER {
                errors.push(Error::not_supported(&path, version_match, &[NOT_OLDER]));
            }
            if !self.token.is_empty() {
                errors.push(Error::forbidden(&path, "resourceVersionMatch is forbidden when continue is provided"));
            }
        }
        errors
    }

    fn rename(&self, row: &Row, req: &Request, fields: FieldSelector) -> Result<FieldSelector, Status> {
        let known =
            |field: &str| row.field_label(&req.info.version, field).map(str::to_string).map_err(api::selector::Error);
        fields.transform(known).map_err(|e| Status::bad_request(e.to_string()))
    }

    /// A name in the path counts as a selector of that name.
    fn pin_name(&mut self, name: &str) -> Result<(), Status> {
        if name.is_empty() {
            return Ok(());
        }
        if self.fields.is_empty() {
            self.fields = FieldSelector::equal("metadata.name", name);
        } else if self.fields.exact("metadata.name") != Some(name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        Ok(())
    }

    /// Nothing is filtered out.
    pub fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

const EXACT: &str = "Exact";
const NOT_OLDER: &str = "NotOlderThan";

/// A boolean parameter: everything but `false` and `0` is true, the empty text too.
fn truth(req: &Request, name: &str) -> Option<bool> {
    req.param(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// A number, or Go's words about it.
fn number(req: &Request, name: &str) -> Result<Option<i64>, Status> {
    let Some(text) = req.param(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|e: std::num::ParseIntError| Status::bad_request(go_error("ParseInt", text, &e)))
}

fn go_error(function: &str, text: &str, error: &std::num::ParseIntError) -> String {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let what = if matches!(error.kind(), PosOverflow | NegOverflow) { "value out of range" } else { "invalid syntax" };
    format!("strconv.{function}: parsing {}: {what}", api::field::quote(text))
}

/// A resourceVersion as a number; empty is 0.
///
/// # Errors
/// Upstream's text, to which callers give a code.
pub fn parse_version(text: &str) -> Result<u64, String> {
    if matches!(text, "" | "0") {
        return Ok(0);
    }
    let why = match text.parse::<u64>() {
        Ok(number) if !text.starts_with('+') => return Ok(number),
        Ok(_) => format!("strconv.ParseUint: parsing {}: invalid syntax", api::field::quote(text)),
        Err(error) => go_error("ParseUint", text, &error),
    };
    Err(Error::invalid(&Path::new("resourceVersion"), text, why).to_string())
}

/// The refusal of a revision that is not there yet.
pub fn too_large(wanted: u64, current: store::Revision) -> Status {
    let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
    Status::new(504, "Timeout", message)
        .cause("ResourceVersionTooLarge", "Too large resource version", "")
        .retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(query: &[(&str, &str)]) -> Request {
        let mut req = Request::of("GET", "/api/v1/namespaces/x/configmaps");
        req.query = query.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        req.info.version = "v1".into();
        req
    }

    fn read(query: &[(&str, &str)]) -> Result<ListOptions, Status> {
        ListOptions::read(api::resources::find("", "configmaps").expect("a row"), &request(query))
    }

    #[test]
    fn a_watch_from_nowhere_begins_with_what_is_there() {
        for version in ["", "0"] {
            let options = read(&[("watch", "true"), ("resourceVersion", version)]).expect("options");
            assert_eq!((options.initial_events, options.version_match), (Some(true), Some(Match::NotOlderThan)));
        }
        let options = read(&[("watch", "true"), ("resourceVersion", "7")]).expect("options");
        assert_eq!((options.initial_events, options.version_match), (None, None));
        let refused = read(&[("watch", "true"), ("continue", "abc")]).expect_err("a token");
        assert!(refused.message.contains("forbidden when continue is provided"), "{}", refused.message);
    }

    #[test]
    fn booleans_are_true_unless_they_are_false_or_zero() {
        for (text, want) in [("", true), ("maybe", true), ("False", false), ("0", false), ("1", true)] {
            assert_eq!(read(&[("watch", text)]).expect("options").watch, want, "{text}");
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused_in_gos_words() {
        let message = |query: &[(&str, &str)]| read(query).expect_err("refused").message;
        assert_eq!(message(&[("limit", "abc")]), "strconv.ParseInt: parsing \"abc\": invalid syntax");
        assert_eq!(message(&[("limit", "")]), "strconv.ParseInt: parsing \"\": invalid syntax");
        let huge = "99999999999999999999";
        assert_eq!(
            message(&[("timeoutSeconds", huge), ("labelSelector", "a===b")]),
            format!("strconv.ParseInt: parsing \"{huge}\": value out of range")
        );
        assert_eq!(parse_version("18446744073709551615"), Ok(u64::MAX));
        let text = "resourceVersion: Invalid value: \"-1\": strconv.ParseUint: parsing \"-1\": invalid syntax";
        assert_eq!(parse_version("-1"), Err(text.into()));
    }

    #[test]
    fn a_name_in_the_path_must_be_the_selectors_name() {
        let row = api::resources::find("", "configmaps").expect("a row");
        let mut req = request(&[]);
        req.info.name = "b".into();
        let options = ListOptions::read(row, &req).expect("options");
        assert_eq!(options.fields.exact("metadata.name"), Some("b"));
        req.query = vec![("fieldSelector".into(), "metadata.name=c".into())];
        assert_eq!(ListOptions::read(row, &req).expect_err("another name").code, 400);
    }
}
