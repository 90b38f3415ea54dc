//! Descriptions of built-in types and their fields, from k8s-openapi's schemas. They are made for the packages that a
//! document needs and dropped with it.

use k8s_openapi::{api, apiextensions_apiserver, apimachinery, kube_aggregator};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;

use crate::{Map, Value};

/// Schemas by OpenAPI name.
pub(super) struct Texts {
    schemas: Map,
}

macro_rules! kinds {
    ($generator:expr, $($module:ident)::+: $($kind:ident)*) => {{
        use $($module)::+ as package;
        $( $generator.subschema_for::<package::$kind>(); )*
    }};
}

impl Texts {
    /// Texts for these types.
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut packages: Vec<&str> = names.filter_map(|name| Some(name.rsplit_once('.')?.0)).collect();
        packages.sort_unstable();
        packages.dedup();
        let mut generator = SchemaSettings::draft07().into_generator();
        meta(&mut generator);
        for package in packages {
            match package.strip_prefix("io.k8s.api.") {
                Some(rest) => package_kinds(rest, &mut generator),
                None => other_kinds(package, &mut generator),
            }
        }
        Self { schemas: generator.take_definitions(false) }
    }

    /// The description of a type.
    pub(super) fn of_type(&self, name: &str) -> Option<&str> {
        self.schemas.get(name)?.get("description")?.as_str()
    }

    /// The description of a field. `kind` and `apiVersion` are described the same everywhere.
    pub(super) fn of_field(&self, name: &str, field: &str) -> Option<&str> {
        let of = |name: &str| self.schemas.get(name)?.get("properties")?.get(field)?.get("description")?.as_str();
        of(name).or_else(|| match field {
            "kind" | "apiVersion" => of("io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
            "object" if name.ends_with(".WatchEvent") => {
                Some("The object after the change, before it where it was deleted, or a Status where the watch failed.")
            }
            _ => None,
        })
    }

    /// The description of an option of deletions, which are parameters too.
    pub(super) fn of_delete_option(&self, field: &str) -> String {
        self.of_field("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", field).unwrap_or_default().into()
    }
}

fn meta(generator: &mut SchemaGenerator) {
    use apimachinery::pkg::{api::resource, runtime, util::intstr};
    kinds!(generator, apimachinery::pkg::apis::meta::v1: APIGroup APIGroupList APIResourceList APIVersions DeleteOptions
        Patch Status MicroTime FieldsV1);
    generator.subschema_for::<apimachinery::pkg::apis::meta::v1::WatchEvent<runtime::RawExtension>>();
    generator.subschema_for::<resource::Quantity>();
    generator.subschema_for::<intstr::IntOrString>();
    generator.subschema_for::<runtime::RawExtension>();
    generator.subschema_for::<apimachinery::pkg::version::Info>();
}

fn other_kinds(package: &str, generator: &mut SchemaGenerator) {
    match package {
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1" => {
            kinds!(generator, apiextensions_apiserver::pkg::apis::apiextensions::v1: CustomResourceDefinition);
        }
        "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1" => {
            kinds!(generator, kube_aggregator::pkg::apis::apiregistration::v1: APIService);
        }
        _ => {}
    }
}

/// The kinds of a package below `io.k8s.api`.
fn package_kinds(package: &str, g: &mut SchemaGenerator) {
    match package {
        "admissionregistration.v1" => kinds!(g, api::admissionregistration::v1: MutatingAdmissionPolicy
            MutatingAdmissionPolicyBinding MutatingWebhookConfiguration ValidatingAdmissionPolicy
            ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration),
        "admissionregistration.v1alpha1" => {
            kinds!(g, api::admissionregistration::v1alpha1: MutatingAdmissionPolicy MutatingAdmissionPolicyBinding);
        }
        "admissionregistration.v1beta1" => {
            kinds!(g, api::admissionregistration::v1beta1: MutatingAdmissionPolicy MutatingAdmissionPolicyBinding);
        }
        "apiserverinternal.v1alpha1" => kinds!(g, api::apiserverinternal::v1alpha1: StorageVersion),
        "apps.v1" => kinds!(g, api::apps::v1: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet),
        "authentication.v1" => kinds!(g, api::authentication::v1: SelfSubjectReview TokenRequest TokenReview),
        "authorization.v1" => kinds!(g, api::authorization::v1: LocalSubjectAccessReview SelfSubjectAccessReview
            SelfSubjectRulesReview SubjectAccessReview),
        "autoscaling.v1" => kinds!(g, api::autoscaling::v1: HorizontalPodAutoscaler Scale),
        "autoscaling.v2" => kinds!(g, api::autoscaling::v2: HorizontalPodAutoscaler),
        "batch.v1" => kinds!(g, api::batch::v1: CronJob Job),
        "certificates.v1" => kinds!(g, api::certificates::v1: CertificateSigningRequest),
        "certificates.v1alpha1" => kinds!(g, api::certificates::v1alpha1: ClusterTrustBundle),
        "certificates.v1beta1" => kinds!(g, api::certificates::v1beta1: ClusterTrustBundle PodCertificateRequest),
        "coordination.v1" => kinds!(g, api::coordination::v1: Lease),
        "coordination.v1alpha2" => kinds!(g, api::coordination::v1alpha2: LeaseCandidate),
        "coordination.v1beta1" => kinds!(g, api::coordination::v1beta1: LeaseCandidate),
        "core.v1" => {
            kinds!(g, api::core::v1: Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node
            PersistentVolume PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret Service
            ServiceAccount)
        }
        "discovery.v1" => kinds!(g, api::discovery::v1: EndpointSlice),
        "events.v1" => kinds!(g, api::events::v1: Event),
        "flowcontrol.v1" => kinds!(g, api::flowcontrol::v1: FlowSchema PriorityLevelConfiguration),
        "networking.v1" => {
            kinds!(g, api::networking::v1: Ingress IngressClass IPAddress NetworkPolicy ServiceCIDR);
        }
        "networking.v1beta1" => kinds!(g, api::networking::v1beta1: IPAddress ServiceCIDR),
        "node.v1" => kinds!(g, api::node::v1: RuntimeClass),
        "policy.v1" => kinds!(g, api::policy::v1: Eviction PodDisruptionBudget),
        "rbac.v1" => kinds!(g, api::rbac::v1: ClusterRole ClusterRoleBinding Role RoleBinding),
        "resource.v1" => {
            kinds!(g, api::resource::v1: DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice);
        }
        "resource.v1alpha3" => kinds!(g, api::resource::v1alpha3: DeviceTaintRule ResourcePoolStatusRequest),
        "resource.v1beta1" => {
            kinds!(g, api::resource::v1beta1: DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice);
        }
        "resource.v1beta2" => kinds!(g, api::resource::v1beta2: DeviceClass DeviceTaintRule ResourceClaim
            ResourceClaimTemplate ResourceSlice),
        "scheduling.v1" => kinds!(g, api::scheduling::v1: PriorityClass),
        "scheduling.v1alpha2" => kinds!(g, api::scheduling::v1alpha2: PodGroup Workload),
        "storage.v1" => kinds!(g, api::storage::v1: CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment
            VolumeAttributesClass),
        "storage.v1beta1" => kinds!(g, api::storage::v1beta1: VolumeAttributesClass),
        "storagemigration.v1beta1" => kinds!(g, api::storagemigration::v1beta1: StorageVersionMigration),
        _ => {}
    }
}

/// An empty description is left out.
pub(super) fn describe(target: &mut Map, text: Option<&str>) {
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        target.insert("description".into(), Value::from(text));
    }
}
