//! The core group but for pods and their controllers.

mod claim;
mod config;
mod endpoints;
mod event;
mod limits;
mod namespace;
mod node;
mod service;
pub mod volume;

pub use claim::PersistentVolumeClaim;
pub use config::{ConfigMap, Secret, ServiceAccount};
pub use endpoints::{Endpoints, address as endpoint_ip};
pub use event::{Event, NewEvent};
pub use limits::{LimitRange, ResourceQuota};
pub use namespace::Namespace;
pub use node::Node;
pub use service::{Service, cluster_ips, host_name, load_balancer_status};
pub use volume::PersistentVolume;
