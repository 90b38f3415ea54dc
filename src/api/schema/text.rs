//! Reads `facts.txt`.
//!
//! ```text
//! # comment
//! scheme /v1 apps/v1
//! package io.k8s.api.core.v1 "" v1          package, then group and version of its kinds
//! type Pod object                           flags: object, object=v1 (in the core group), atomic, keep, unions=JSON
//!  metadata 1 io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta o
//!  containers 2 [name].Container r merge=name
//! ```
//!
//! A field line is indented and holds name, protobuf number (`2/5`: number 5 within the inlined message 2), shape and
//! flags. Shapes: the primitive ones by name, `.Name` or a full name for a structure, `[]`, `[set]`, `[atomic]` or `[key,key]` before
//! the items' shape for lists, `{}` before the values' shape for maps. Flags: `o` omitempty, `z` omitzero, `p` pointer,
//! `r` required, `w` wrapped list, `A` and `G` for map type atomic and granular, `atomic` for bytes
//! that OpenAPI calls an atomic list, `merge`, `merge=KEY`, `replace`,
//! `retainKeys`, `go=TYPE` (Go's name of the type where the shape does not tell it), `enum=A|B` (`~` for a space), `default=JSON`
//! (last, may hold spaces). The `scheme` line lists every group and version that upstream knows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Facts, Field, Gvk, ListType, SchemaOr, Shape, Type, TypeId};

pub(super) fn parse(text: &str) -> Facts {
    Parser { ids: number_types(text), words: HashSet::new() }.run(text)
}

/// Types refer to each other in any order, so ids are given before fields are read.
fn number_types(text: &str) -> HashMap<String, TypeId> {
    let (mut ids, mut package) = (HashMap::with_capacity(1200), "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("package ") {
            package = first_word(rest);
        } else if let Some(rest) = line.strip_prefix("type ") {
            ids.insert(format!("{package}.{}", first_word(rest)), TypeId(ids.len() as u32));
        }
    }
    ids
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

struct Parser {
    ids: HashMap<String, TypeId>,
    words: HashSet<Arc<str>>,
}

impl Parser {
    fn run(mut self, text: &str) -> Facts {
        let mut facts = Facts::default();
        facts.types.reserve_exact(self.ids.len());
        facts.names.reserve(self.ids.len());
        let (mut package, mut group, mut version) = ("", self.intern(""), self.intern(""));
        let mut open: Option<Type> = None;
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(rest) = line.strip_prefix("scheme ") {
                let pairs = rest.split(' ').filter_map(|pair| pair.split_once('/'));
                facts.scheme = pairs.map(|(group, version)| (self.intern(group), self.intern(version))).collect();
            } else if let Some(rest) = line.strip_prefix("package ") {
                let words: Vec<&str> = rest.split(' ').collect();
                package = words[0];
                group = self.intern(words[1].trim_matches('"'));
                version = self.intern(words[2]);
            } else if let Some(rest) = line.strip_prefix("type ") {
                finish(&mut facts, open.take());
                let (name, flags) = rest.split_once(' ').unwrap_or((rest, ""));
                let mut ty = Type { name: format!("{package}.{name}").into(), ..Type::default() };
                let home = Gvk { group: group.clone(), version: version.clone(), kind: self.intern(name) };
                self.type_flags(&mut ty, home, flags);
                open = Some(ty);
            } else {
                let line = line.trim_start();
                let ty = open.as_mut().expect("a field stands below its type");
                let field = self.field(package, line);
                ty.fields.push(field);
            }
        }
        finish(&mut facts, open);
        facts
    }

    fn type_flags(&mut self, ty: &mut Type, home: Gvk, flags: &str) {
        for flag in flags.split(' ').filter(|flag| !flag.is_empty()) {
            match flag.split_once('=') {
                None if flag == "object" => {
                    ty.object = true;
                    ty.kinds.push(home.clone());
                }
                None if flag == "atomic" => ty.atomic = true,
                None if flag == "keep" => ty.preserve_unknown = true,
                Some(("object", version)) => {
                    ty.object = true;
                    ty.kinds.push(Gvk { group: self.intern(""), version: self.intern(version), ..home.clone() });
                }
                Some(("unions", json)) => {
                    ty.unions = Some(Box::new(serde_json::from_str(json).expect("unions are JSON")));
                }
                _ => panic!("unknown flag {flag} of type {}", ty.name),
            }
        }
    }

    fn intern(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.words.get(word) {
            return known.clone();
        }
        let word: Arc<str> = word.into();
        self.words.insert(word.clone());
        word
    }

    fn field(&mut self, package: &str, line: &str) -> Field {
        let (line, default) = match line.split_once(" default=") {
            Some((line, json)) => (line, Some(json)),
            None => (line, None),
        };
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("a word is missing in {line}"));
        let (name, number, shape) = (word(), word(), word());
        let name = self.intern(name);
        let mut field = Field::new(name, self.shape(package, shape));
        field.list_stated = shape.starts_with('[') && !shape.starts_with("[]");
        if let Some((path, number)) = number.rsplit_once('/') {
            field.inline = path.split('/').map(to_number).collect();
            field.number = to_number(number);
        } else {
            field.number = to_number(number);
        }
        field.default = default.map(|json| Box::new(serde_json::from_str(json).expect("a default is JSON")));
        field.patch_merge_key = self.intern("");
        field.go_type = self.intern("");
        for flag in words {
            match flag {
                "o" => field.omit_empty = true,
                "z" => field.omit_zero = true,
                "p" => field.pointer = true,
                "r" => field.required = true,
                "w" => field.wrapped = true,
                "atomic" => field.list_stated = true,
                "A" => field.map_atomic = Some(true),
                "G" => field.map_atomic = Some(false),
                "merge" => field.patch_merge = true,
                "replace" => field.patch_replace = true,
                "retainKeys" => field.patch_retain_keys = true,
                other => match other.split_once('=') {
                    Some(("merge", key)) => {
                        field.patch_merge = true;
                        field.patch_merge_key = self.intern(key);
                    }
                    Some(("go", name)) => field.go_type = self.intern(name),
                    Some(("enum", values)) => {
                        let values = values.split('|').map(|value| self.intern(&value.replace('~', " ")));
                        field.values = Some(Box::new(values.collect()));
                    }
                    _ => panic!("unknown flag {other} in {line}"),
                },
            }
        }
        field
    }

    fn shape(&mut self, package: &str, text: &str) -> Shape {
        if let Some(values) = text.strip_prefix("{}") {
            return Shape::Map(Box::new(self.shape(package, values)));
        }
        if let Some((keys, items)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let list = match keys {
                "" | "atomic" => ListType::Atomic,
                "set" => ListType::Set,
                keys => ListType::Map(keys.split(',').map(|key| self.intern(key)).collect()),
            };
            return Shape::List(Box::new(self.shape(package, items)), list);
        }
        match text {
            "string" => Shape::String,
            "bool" => Shape::Bool,
            "int32" => Shape::Int32,
            "int64" => Shape::Int64,
            "double" => Shape::Double,
            "bytes" => Shape::Bytes,
            "time" => Shape::Time,
            "microtime" => Shape::MicroTime,
            "duration" => Shape::Duration,
            "intOrString" => Shape::IntOrString,
            "quantity" => Shape::Quantity,
            "raw" => Shape::Raw,
            "fieldsV1" => Shape::FieldsV1,
            "json" => Shape::Json,
            "schemaOrArray" => Shape::SchemaOr(SchemaOr::Array, self.id(package, ".JSONSchemaProps")),
            "schemaOrBool" => Shape::SchemaOr(SchemaOr::Bool, self.id(package, ".JSONSchemaProps")),
            "schemaOrStrings" => Shape::SchemaOr(SchemaOr::Strings, self.id(package, ".JSONSchemaProps")),
            name => Shape::Struct(self.id(package, name)),
        }
    }

    fn id(&self, package: &str, name: &str) -> TypeId {
        let found = if name.starts_with('.') { self.ids.get(&format!("{package}{name}")) } else { self.ids.get(name) };
        *found.unwrap_or_else(|| panic!("no type {name} (in {package})"))
    }
}

fn to_number(text: &str) -> u32 {
    text.parse().expect("a field number is a number")
}

fn finish(facts: &mut Facts, ty: Option<Type>) {
    if let Some(mut ty) = ty {
        ty.fields.shrink_to_fit();
        ty.index();
        facts.add(ty);
    }
}
