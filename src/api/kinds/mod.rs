//! What is particular to each kind: defaulting and validation, one file per area, as [`Strategy`] implementations that
//! the table's rows point to.
//!
//! [`Strategy`]: crate::resources::Strategy
