//! An object as a request sees it: an entry as it is kept, or a tree where the version of the request is another.

use std::borrow::Cow;
use std::sync::Arc;

use api::Value;
use api::codec::{json, proto};
use api::print::Cell;
use api::schema::Type;
use api::status::Status;
use bytes::Bytes;

use super::{Content, Meta, Target, wire};
use crate::entry::Entry;

/// An object in the version of the request.
pub(in crate::registry) enum View<'e> {
    /// The stored version is the one that is asked for.
    Kept(&'e Entry),
    /// Converted for this request; the entry is where tables are printed from.
    Converted(Value, &'e Entry),
    /// Not from the cache at all.
    Made(Value),
}

/// What stands before the metadata of a PartialObjectMetadata; a brace closes it.
pub(super) fn partial_open(meta: Meta) -> String {
    format!("{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"{}\",\"metadata\":", meta.api_version())
}

impl<'e> View<'e> {
    pub(in crate::registry) fn of(target: &Target<'_>, entry: &'e Entry) -> Result<Self, Status> {
        entry.sound()?;
        if entry.api_version() == target.api_version && *entry.head().kind == *target.row.kind {
            return Ok(View::Kept(entry));
        }
        match Self::converted(target, entry.parse()?)? {
            View::Made(value) => Ok(View::Converted(value, entry)),
            other => Ok(other),
        }
    }

    /// An object in the stored version, brought into that of the request.
    pub(super) fn converted(target: &Target<'_>, mut object: Value) -> Result<View<'static>, Status> {
        if object["apiVersion"] != *target.api_version {
            target.row.strategy.convert(&mut object, target.group, target.version)?;
        }
        Ok(View::Made(object))
    }

    /// The object as JSON.
    pub(in crate::registry) fn object(&self, target: &Target<'_>) -> Result<Content, Status> {
        Ok(match self {
            View::Kept(entry) => Content::from(entry.object()),
            View::Converted(value, _) | View::Made(value) => Content::from([encode(target, target.ty(), value).into()]),
        })
    }

    /// The object as JSON after a comma; without kind and apiVersion, where upstream's lists have none.
    pub(super) fn item(&self, target: &Target<'_>) -> Result<Bytes, Status> {
        match self {
            View::Kept(entry) => Ok(entry.item()),
            View::Converted(value, _) | View::Made(value) => {
                let mut value = Cow::Borrowed(value);
                if target.typed
                    && let Some(members) = value.to_mut().as_object_mut()
                {
                    members.remove("kind");
                    members.remove("apiVersion");
                }
                let mut out = vec![b','];
                out.extend(encode(target, target.ty(), &value));
                Ok(out.into())
            }
        }
    }

    /// Its metadata as JSON.
    pub(in crate::registry) fn metadata(&self, target: &Target<'_>) -> Result<Bytes, Status> {
        Ok(match self {
            View::Kept(entry) => entry.metadata(),
            View::Converted(value, _) | View::Made(value) => {
                let ty = target.ty().and_then(|ty| target.facts.of(&ty.field("metadata")?.shape));
                encode(target, ty, &value["metadata"]).into()
            }
        })
    }

    /// Its PartialObjectMetadata as JSON.
    pub(in crate::registry) fn partial(&self, target: &Target<'_>, meta: Meta) -> Result<Content, Status> {
        let close = Bytes::from_static(b"}");
        Ok(Content::from([partial_open(meta).into(), self.metadata(target)?, close]))
    }

    /// The object as a protobuf message without envelope.
    pub(in crate::registry) fn protobuf(&self, target: &Target<'_>) -> Result<Bytes, Status> {
        let ty = target.ty().ok_or_else(|| Status::internal("the kind has no protobuf form"))?;
        let make = |value: &Value| {
            let mut out = Vec::new();
            proto::encode(target.facts, ty, value, &mut out);
            Ok(out)
        };
        match self {
            View::Kept(entry) => entry.protobuf(make),
            View::Converted(value, _) | View::Made(value) => make(value).map(Bytes::from),
        }
    }

    /// Its PartialObjectMetadata as a protobuf message without envelope: the metadata in field 1.
    pub(in crate::registry) fn metadata_protobuf(&self) -> Result<Bytes, Status> {
        let facts = api::schema::builtin();
        let ty = facts.get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        let ty = ty.ok_or_else(|| Status::internal("the facts have no ObjectMeta"))?;
        let parsed;
        let metadata = match self {
            View::Kept(entry) => {
                parsed = serde_json::from_slice(&entry.metadata()).map_err(Status::internal)?;
                &parsed
            }
            View::Converted(value, _) | View::Made(value) => &value["metadata"],
        };
        let (mut message, mut out) = (Vec::new(), Vec::new());
        proto::encode(facts, ty, metadata, &mut message);
        wire::field(1, &message, &mut out);
        Ok(out.into())
    }

    /// Its cells, printed from the stored version.
    pub(in crate::registry) fn cells(&self, target: &Target<'_>) -> Result<Arc<[Cell]>, Status> {
        match self {
            View::Kept(entry) | View::Converted(_, entry) => {
                entry.cells(|object| api::print::cells(target.row, object))
            }
            View::Made(object) => Ok(api::print::cells(target.row, object).into()),
        }
    }

    /// What its row in a table says beside the cells: only those of finished pods say something.
    pub(super) fn conditions(&self, target: &Target<'_>) -> Option<Value> {
        if *target.row.kind != *"Pod" || !target.row.group.is_empty() {
            return None;
        }
        api::print::row_conditions(match self {
            View::Kept(entry) | View::Converted(_, entry) => entry.field("status.phase").unwrap_or_default(),
            View::Made(pod) => pod["status"]["phase"].as_str().unwrap_or_default(),
        })
    }

    /// The object as a tree, in the version of the request.
    pub(in crate::registry) fn tree(self) -> Result<Value, Status> {
        match self {
            View::Kept(entry) => entry.parse(),
            View::Converted(value, _) | View::Made(value) => Ok(value),
        }
    }
}

fn encode(target: &Target<'_>, ty: Option<&Type>, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match ty.filter(|ty| !ty.custom) {
        Some(ty) => json::encode(target.facts, ty, value, &mut out),
        None => json::encode_any(value, &mut out),
    }
    out
}
