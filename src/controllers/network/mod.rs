//! The controllers of Services: endpoints-controller, endpointslice-controller, endpointslice-mirroring-controller.
//!
//! ```text
//!   Service + its pods ──► Endpoints            (endpoints)
//!   Service + its pods + nodes ──► slices       (slices)
//!   Endpoints of a Service without selector ──► slices  (mirroring)
//! ```

mod endpoints;
mod mirroring;
mod pack;
mod service;
mod slices;

pub(crate) use endpoints::run as run_endpoints;
pub(crate) use mirroring::run as run_mirroring;
pub(crate) use slices::run as run_slices;
