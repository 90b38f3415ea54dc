//! Constructors that keep [`super::table`] short: a row starts with what nearly all rows share, and each call states
//! one difference.

use super::groups::Group;
use super::{Deprecation, Row, Scope, Strategy, Subresource, Text, Version};

/// Verbs of stored objects.
const ALL: &str = "create,delete,deletecollection,get,list,patch,update,watch";

fn list(names: &'static str) -> Vec<Text> {
    names.split(',').map(Text::Borrowed).collect()
}

/// A namespaced row of a group.
pub(super) fn namespaced(group: &str, plural: &'static str, kind: &'static str, s: &'static dyn Strategy) -> Row {
    row(group, plural, kind, Scope::Namespaced, s)
}

/// A row of a group whose objects are in the cluster.
pub(super) fn cluster(group: &str, plural: &'static str, kind: &'static str, s: &'static dyn Strategy) -> Row {
    row(group, plural, kind, Scope::Cluster, s)
}

fn row(group: &str, plural: &'static str, kind: &'static str, scope: Scope, strategy: &'static dyn Strategy) -> Row {
    let group = Group::find(group).expect("rows belong to groups of the list");
    let versions = group.versions.iter().map(|v| Version {
        name: v.name.into(),
        default: v.default,
        schema: group.schema(v.name, kind).into(),
        deprecated: None,
    });
    let mut row = Row {
        group: group.name.into(),
        versions: versions.collect(),
        stored_group: group.name.into(),
        stored: group.versions[0].name.into(),
        hashed: None,
        kind: kind.into(),
        list_kind: format!("{kind}List").into(),
        plural: plural.into(),
        singular: kind.to_lowercase().into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        scope,
        verbs: list(ALL),
        subresources: Vec::new(),
        storage: plural.into(),
        selectable: &[],
        create_on_update: false,
        unconditional_update: true,
        answers_deleted: false,
        strategy,
    };
    row.versions.truncate(1);
    row
}

impl Row {
    /// Short names, separated by commas.
    pub(super) fn short(mut self, names: &'static str) -> Self {
        self.short_names = list(names);
        self
    }

    /// The category of what `kubectl get all` shows.
    pub(super) fn all(self) -> Self {
        self.category("all")
    }

    /// A category.
    pub(super) fn category(mut self, name: &'static str) -> Self {
        self.categories.push(name.into());
        self
    }

    /// Verbs other than all, separated by commas.
    pub(super) fn verbs(mut self, names: &'static str) -> Self {
        self.verbs = list(names);
        self
    }

    /// Nothing of it is stored.
    pub(super) fn not_stored(mut self, verbs: &'static str) -> Self {
        self.storage = "".into();
        self.verbs(verbs)
    }

    /// Versions other than the group's most preferred one, in order, separated by commas.
    pub(super) fn versions(mut self, names: &'static str) -> Self {
        let group = Group::find(&self.group).expect("rows belong to groups of the list");
        let chosen = names.split(',').map(|name| {
            let version = group.versions.iter().find(|v| v.name == name).expect("a version of the group");
            let schema = group.schema(name, &self.kind).into();
            Version { name: name.into(), default: version.default, schema, deprecated: None }
        });
        self.versions = chosen.collect();
        self.stored = self.versions[0].name.clone();
        self
    }

    /// The version in which objects are stored, where it is not the first one.
    pub(super) fn stored(mut self, version: &'static str) -> Self {
        self.stored = version.into();
        self
    }

    /// A version is deprecated since `since`, gone in `removed`, and replaced by `instead` (`group/version Kind`).
    pub(super) fn deprecated(
        mut self, version: &str, since: u32, removed: Option<u32>, instead: Option<&'static str>,
    ) -> Self {
        let version = self.versions.iter_mut().find(|v| v.name == version).expect("a version of the row");
        let instead = instead.map(Text::Borrowed);
        version.deprecated = Some(Deprecation { since: (1, since), removed: removed.map(|minor| (1, minor)), instead });
        self
    }

    /// Where it is stored, if not under its plural.
    pub(super) fn storage(mut self, path: &'static str) -> Self {
        self.storage = path.into();
        self
    }

    /// Fields for field selectors beside the name (and namespace).
    pub(super) fn fields(mut self, fields: &'static [&'static str]) -> Self {
        self.selectable = fields;
        self
    }

    /// PUT creates.
    pub(super) fn put_creates(mut self) -> Self {
        self.create_on_update = true;
        self
    }

    /// A delete answers with the object.
    pub(super) fn answers_deleted(mut self) -> Self {
        self.answers_deleted = true;
        self
    }

    /// An update needs a resourceVersion.
    pub(super) fn conditional(mut self) -> Self {
        self.unconditional_update = false;
        self
    }

    /// A subresource whose objects are of a kind in the row's own group and version.
    pub(super) fn sub(self, name: &'static str, verbs: &'static str, kind: &'static str) -> Self {
        self.sub_of(name, verbs, ("", "", kind))
    }

    /// A subresource whose objects are of a kind of another group.
    pub(super) fn sub_of(
        mut self, name: &'static str, verbs: &'static str, gvk: (&'static str, &'static str, &'static str),
    ) -> Self {
        let gvk = (gvk.0.into(), gvk.1.into(), gvk.2.into());
        self.subresources.push(Subresource { name: name.into(), verbs: list(verbs), gvk });
        self
    }

    /// A subresource that shows and changes the object itself.
    pub(super) fn own(mut self, name: &'static str, verbs: &'static str) -> Self {
        let gvk = ("".into(), "".into(), self.kind.clone());
        self.subresources.push(Subresource { name: name.into(), verbs: list(verbs), gvk });
        self
    }

    /// The status subresource.
    pub(super) fn status(self) -> Self {
        self.own("status", "get,patch,update")
    }

    /// The scale subresource.
    pub(super) fn scale(self) -> Self {
        self.sub_of("scale", "get,patch,update", ("autoscaling", "v1", "Scale"))
    }
}
