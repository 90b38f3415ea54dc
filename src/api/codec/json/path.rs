//! Where a decoder is: a chain of links on the stack, turned into text only when there is something to say.

use crate::schema::{Field, Shape, Type};

/// One step of the way from the root to a value.
#[derive(Clone, Copy)]
pub(super) enum Step<'p> {
    /// The object itself.
    Root(&'p Type),
    /// A field of a structure.
    Field(&'p Type, &'p Field),
    /// An entry of a map.
    Key(&'p str),
    /// An item of a list.
    Index(usize),
}

#[derive(Clone, Copy)]
pub(super) struct Path<'p> {
    pub(super) up: Option<&'p Path<'p>>,
    pub(super) step: Step<'p>,
}

impl<'p> Path<'p> {
    pub(super) fn root(ty: &'p Type) -> Self {
        Self { up: None, step: Step::Root(ty) }
    }

    pub(super) fn child(&'p self, step: Step<'p>) -> Path<'p> {
        Path { up: Some(self), step }
    }

    /// `spec.containers[0].name`, empty for the root.
    pub(super) fn text(&self) -> String {
        let mut out = self.up.map(Path::text).unwrap_or_default();
        match self.step {
            Step::Root(_) => {}
            Step::Field(_, field) => push_name(&mut out, &field.name),
            Step::Key(key) => push_name(&mut out, key),
            Step::Index(i) => {
                out.push('[');
                out.push_str(itoa::Buffer::new().format(i));
                out.push(']');
            }
        }
        out
    }

    /// The path of a name below this one.
    pub(super) fn below(&self, name: &str) -> String {
        let mut out = self.text();
        push_name(&mut out, name);
        out
    }

    /// What Go's decoder says of the place: the structure that holds the innermost field, and the fields' names from
    /// the root. `None` at the root.
    pub(super) fn go_context(&self) -> Option<(String, String)> {
        let mut names = Vec::new();
        let mut holder = None;
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Field(ty, field) = path.step {
                holder.get_or_insert(ty.short_name());
                names.push(&*field.name);
            }
            at = path.up;
        }
        names.reverse();
        Some((holder?.to_string(), names.join(".")))
    }

    /// Name in Go of the type that stands here; `shape` is what the facts say of it.
    pub(super) fn go_type(&self, facts: &crate::schema::Facts, shape: &Shape) -> String {
        self.stated_type(facts).unwrap_or_else(|| go_name(facts, shape))
    }

    fn stated_type(&self, facts: &crate::schema::Facts) -> Option<String> {
        match self.step {
            Step::Root(ty) => Some(go_struct(ty)),
            Step::Field(_, field) if !field.go_type.is_empty() => Some(field.go_type.to_string()),
            Step::Field(_, field) => Some(go_name(facts, &field.shape)),
            Step::Key(_) => {
                let map = self.up?.stated_type(facts)?;
                Some(map.strip_prefix("map[")?.split_once(']')?.1.to_string())
            }
            Step::Index(_) => Some(self.up?.stated_type(facts)?.strip_prefix("[]")?.to_string()),
        }
    }
}

fn push_name(out: &mut String, name: &str) {
    if !out.is_empty() {
        out.push('.');
    }
    out.push_str(name);
}

fn go_struct(ty: &Type) -> String {
    let mut parts = ty.name.rsplit('.');
    let (name, package) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("{package}.{name}")
}

fn go_name(facts: &crate::schema::Facts, shape: &Shape) -> String {
    match shape {
        Shape::String => "string".into(),
        Shape::Bool => "bool".into(),
        Shape::Int32 => "int32".into(),
        Shape::Int64 => "int64".into(),
        Shape::Double => "float64".into(),
        Shape::Bytes => "[]uint8".into(),
        Shape::Time => "v1.Time".into(),
        Shape::MicroTime => "v1.MicroTime".into(),
        Shape::Duration => "v1.Duration".into(),
        Shape::IntOrString => "intstr.IntOrString".into(),
        Shape::Quantity => "resource.Quantity".into(),
        Shape::Raw => "runtime.RawExtension".into(),
        Shape::FieldsV1 => "v1.FieldsV1".into(),
        Shape::Json => "v1.JSON".into(),
        Shape::SchemaOr(..) => "v1.JSONSchemaPropsOrArray".into(),
        Shape::Struct(id) => go_struct(facts.at(*id)),
        Shape::List(item, _) => format!("[]{}", go_name(facts, item)),
        Shape::Map(value) => format!("map[string]{}", go_name(facts, value)),
    }
}
