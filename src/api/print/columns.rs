//! How columns are written down. A column that shows a field has the field's own description, from k8s-openapi's schemas.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{JsonSchema, SchemaGenerator};

use super::Column;

/// A column of text.
pub(super) fn text(name: &'static str, description: impl Into<String>) -> Column {
    Column {
        name: name.into(),
        kind: "string".into(),
        format: "".into(),
        description: description.into().into(),
        priority: 0,
    }
}

impl Column {
    /// Shown by `-o wide` only.
    pub(super) fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    /// A column of whole numbers.
    pub(super) fn integer(mut self) -> Self {
        self.kind = "integer".into();
        self
    }

    /// A column of truths.
    pub(super) fn boolean(mut self) -> Self {
        self.kind = "boolean".into();
        self
    }

    /// A column of names.
    pub(super) fn named(mut self) -> Self {
        self.format = "name".into();
        self
    }
}

/// The description of a field.
pub(super) fn doc<T: JsonSchema>(field: &str) -> String {
    let schema = T::json_schema(&mut SchemaGenerator::default());
    let description = schema.as_value().pointer(&format!("/properties/{field}/description"));
    description.and_then(|d| d.as_str()).unwrap_or_default().to_string()
}

/// A column of text that shows a field of a structure.
pub(super) fn field<T: JsonSchema>(name: &'static str, field: &str) -> Column {
    text(name, doc::<T>(field))
}

/// The column of the object's name.
pub(super) fn name() -> Column {
    field::<ObjectMeta>("Name", "name").named()
}

/// The column of the object's age.
pub(super) fn age() -> Column {
    field::<ObjectMeta>("Age", "creationTimestamp")
}

/// The columns of a pod template's containers.
pub(super) fn containers() -> [Column; 2] {
    [
        text("Containers", "Names of each container in the template."),
        text("Images", "Images referenced by each container in the template."),
    ]
}
