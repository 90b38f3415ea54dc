//! Other forms of an object, made when they are first asked for and kept with the entry while memory allows.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use api::Value;
use api::print::Cell;
use api::status::Status;
use bytes::Bytes;

use super::Entry;

/// What all kept forms together may weigh, in bytes, about: beyond it they are made and dropped.
const BUDGET: usize = 48 << 20;
/// A tree weighs about so many times its text.
const TREE: usize = 6;

static KEPT: AtomicUsize = AtomicUsize::new(0);

type Typed = Arc<dyn Any + Send + Sync>;

#[derive(Debug, Default)]
pub(super) struct Forms {
    value: OnceLock<Arc<Value>>,
    typed: OnceLock<Typed>,
    protobuf: OnceLock<Bytes>,
    cells: OnceLock<Arc<[Cell]>>,
    weight: AtomicUsize,
}

impl Drop for Forms {
    fn drop(&mut self) {
        KEPT.fetch_sub(*self.weight.get_mut(), Ordering::Relaxed);
    }
}

impl Forms {
    /// Keeps a form where there is room for it.
    fn keep<T: Clone>(&self, place: &OnceLock<T>, form: &T, weight: usize) {
        if KEPT.fetch_add(weight, Ordering::Relaxed) + weight > BUDGET || place.set(form.clone()).is_err() {
            KEPT.fetch_sub(weight, Ordering::Relaxed);
        } else {
            self.weight.fetch_add(weight, Ordering::Relaxed);
        }
    }
}

impl Entry {
    fn forms(&self) -> &Forms {
        self.forms.get_or_init(Box::default)
    }

    /// The object as a shared tree, kept with the entry while memory allows: for what is read often and changes
    /// seldom, such as policies and namespaces.
    ///
    /// # Errors
    /// As [`Entry::parse`].
    pub fn value(&self) -> Result<Arc<Value>, Status> {
        if let Some(value) = self.forms().value.get() {
            return Ok(value.clone());
        }
        let value = Arc::new(self.parse()?);
        self.forms().keep(&self.forms().value, &value, TREE * self.buffer.len());
        Ok(value)
    }

    /// The object as a typed struct, kept with the entry: for authorizers and admission. An entry keeps one type.
    ///
    /// # Errors
    /// As [`Entry::parse`], and 500 when the object does not fit the type.
    pub fn typed<T: serde::de::DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<T>, Status> {
        let kept = self.forms().typed.get().cloned();
        if let Some(Ok(kept)) = kept.map(Arc::downcast) {
            return Ok(kept);
        }
        let typed: Arc<T> = Arc::new(serde_json::from_slice(&self.json()?).map_err(Status::internal)?);
        let any: Typed = typed.clone();
        self.forms().keep(&self.forms().typed, &any, TREE * self.buffer.len());
        Ok(typed)
    }

    /// The object as a protobuf message without envelope, in the stored version; `make` encodes it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn protobuf(&self, make: impl FnOnce(&Value) -> Result<Vec<u8>, Status>) -> Result<Bytes, Status> {
        if let Some(protobuf) = self.forms().protobuf.get() {
            return Ok(protobuf.clone());
        }
        let protobuf = Bytes::from(make(&self.parse()?)?);
        self.forms().keep(&self.forms().protobuf, &protobuf, protobuf.len());
        Ok(protobuf)
    }

    /// The cells of the object's row in a table of its stored version; `make` prints them.
    ///
    /// # Errors
    /// As [`Entry::parse`].
    pub fn cells(&self, make: impl FnOnce(&Value) -> Vec<Cell>) -> Result<Arc<[Cell]>, Status> {
        if let Some(cells) = self.forms().cells.get() {
            return Ok(cells.clone());
        }
        let cells: Arc<[Cell]> = make(&self.parse()?).into();
        self.forms().keep(&self.forms().cells, &cells, 64 * cells.len());
        Ok(cells)
    }
}
