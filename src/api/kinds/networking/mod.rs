//! `networking.k8s.io`.

mod cidr;
mod class;
mod ingress;
mod policy;

pub use cidr::{IpAddress, ServiceCidr};
pub use class::IngressClass;
pub use ingress::Ingress;
pub use policy::NetworkPolicy;
