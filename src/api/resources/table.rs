//! The rows, group by group in discovery's order, plurals in alphabetical order.
//!
//! Sources: the discovery documents of Kubernetes 1.36 (checked by a test below), upstream's strategies for
//! `put_creates` and `conditional`, its field label conversions for `fields`.

use super::build::{cluster, namespaced};
use super::{Plain, Row, Strategy};
use crate::kinds::{
    admission as hooks, apps, autoscaling as scalers, batch, certificates as certs, coordination as leases,
    core as cores, devices, discovery as slices, disruption, flowcontrol as flow, networking as net, pod,
    rbac as roles, runtime, scheduling as priorities, storage as volumes,
};

const PROXY: &str = "create,delete,get,patch,update";
const STREAM: &str = "create,get";
const WRITE: &str = "get,patch,update";

/// All rows.
pub(super) fn rows() -> Vec<Row> {
    let groups = [
        core(),
        apiregistration(),
        apps(),
        events(),
        authentication(),
        authorization(),
        autoscaling(),
        batch(),
        certificates(),
        networking(),
        policy(),
        rbac(),
        storage(),
        admissionregistration(),
        apiextensions(),
        scheduling(),
        coordination(),
        node(),
        discovery(),
        resource(),
        flowcontrol(),
        internal(),
        storagemigration(),
    ];
    groups.into_iter().flatten().collect()
}

fn core() -> Vec<Row> {
    const G: &str = "";
    vec![
        namespaced(G, "bindings", "Binding", &Plain).not_stored("create"),
        cluster(G, "componentstatuses", "ComponentStatus", &Plain)
            .short("cs")
            .not_stored("get,list")
            .deprecated("v1", 19, None, None),
        namespaced(G, "configmaps", "ConfigMap", &cores::ConfigMap).short("cm"),
        namespaced(G, "endpoints", "Endpoints", &cores::Endpoints)
            .short("ep")
            .put_creates()
            .storage("services/endpoints")
            .deprecated("v1", 33, None, Some("discovery.k8s.io/v1 EndpointSlice")),
        namespaced(G, "events", "Event", &cores::Event).short("ev").put_creates().fields(&[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]),
        namespaced(G, "limitranges", "LimitRange", &cores::LimitRange).short("limits").put_creates(),
        cluster(G, "namespaces", "Namespace", &cores::Namespace)
            .answers_deleted()
            .short("ns")
            .verbs("create,delete,get,list,patch,update,watch")
            .fields(&["status.phase"])
            .own("finalize", "update")
            .status(),
        cluster(G, "nodes", "Node", &cores::Node)
            .short("no")
            .storage("minions")
            .fields(&["spec.unschedulable"])
            .sub("proxy", PROXY, "NodeProxyOptions")
            .status(),
        namespaced(G, "persistentvolumeclaims", "PersistentVolumeClaim", &cores::PersistentVolumeClaim)
            .answers_deleted()
            .short("pvc")
            .status(),
        cluster(G, "persistentvolumes", "PersistentVolume", &cores::PersistentVolume)
            .answers_deleted()
            .short("pv")
            .status(),
        namespaced(G, "pods", "Pod", &pod::Pod)
            .answers_deleted()
            .short("po")
            .all()
            .fields(&[
                "spec.nodeName",
                "spec.restartPolicy",
                "spec.schedulerName",
                "spec.serviceAccountName",
                "spec.hostNetwork",
                "status.phase",
                "status.podIP",
                "status.podIPs",
                "status.nominatedNodeName",
            ])
            .sub("attach", STREAM, "PodAttachOptions")
            .sub("binding", "create", "Binding")
            .own("ephemeralcontainers", WRITE)
            .sub_of("eviction", "create", ("policy", "v1", "Eviction"))
            .sub("exec", STREAM, "PodExecOptions")
            .own("log", "get")
            .sub("portforward", STREAM, "PodPortForwardOptions")
            .sub("proxy", PROXY, "PodProxyOptions")
            .own("resize", WRITE)
            .status(),
        namespaced(G, "podtemplates", "PodTemplate", &pod::PodTemplate).answers_deleted(),
        namespaced(G, "replicationcontrollers", "ReplicationController", &apps::ReplicationController)
            .short("rc")
            .all()
            .storage("controllers")
            .fields(&["status.replicas"])
            .scale()
            .status(),
        namespaced(G, "resourcequotas", "ResourceQuota", &cores::ResourceQuota)
            .answers_deleted()
            .short("quota")
            .status(),
        namespaced(G, "secrets", "Secret", &cores::Secret).fields(&["type"]),
        namespaced(G, "serviceaccounts", "ServiceAccount", &cores::ServiceAccount)
            .answers_deleted()
            .short("sa")
            .sub_of("token", "create", ("authentication.k8s.io", "v1", "TokenRequest")),
        namespaced(G, "services", "Service", &cores::Service)
            .answers_deleted()
            .short("svc")
            .all()
            .put_creates()
            .storage("services/specs")
            .fields(&["spec.clusterIP", "spec.type"])
            .sub("proxy", PROXY, "ServiceProxyOptions")
            .status(),
    ]
}

fn apiregistration() -> Vec<Row> {
    vec![
        cluster("apiregistration.k8s.io", "apiservices", "APIService", &crate::kinds::registration::ApiService)
            .category("api-extensions")
            .storage("apiregistration.k8s.io/apiservices")
            .conditional()
            .status(),
    ]
}

fn apps() -> Vec<Row> {
    const G: &str = "apps";
    vec![
        namespaced(G, "controllerrevisions", "ControllerRevision", &apps::ControllerRevision),
        namespaced(G, "daemonsets", "DaemonSet", &apps::DaemonSet).short("ds").all().status(),
        namespaced(G, "deployments", "Deployment", &apps::Deployment).short("deploy").all().scale().status(),
        namespaced(G, "replicasets", "ReplicaSet", &apps::ReplicaSet).short("rs").all().scale().status(),
        namespaced(G, "statefulsets", "StatefulSet", &apps::StatefulSet).short("sts").all().scale().status(),
    ]
}

fn events() -> Vec<Row> {
    let mut row = namespaced("events.k8s.io", "events", "Event", &cores::NewEvent).short("ev").put_creates().fields(&[
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ]);
    row.stored_group = "".into();
    vec![row]
}

fn authentication() -> Vec<Row> {
    const G: &str = "authentication.k8s.io";
    vec![
        cluster(G, "selfsubjectreviews", "SelfSubjectReview", &Plain).not_stored("create"),
        cluster(G, "tokenreviews", "TokenReview", &Plain).not_stored("create"),
    ]
}

fn authorization() -> Vec<Row> {
    const G: &str = "authorization.k8s.io";
    vec![
        namespaced(G, "localsubjectaccessreviews", "LocalSubjectAccessReview", &Plain).not_stored("create"),
        cluster(G, "selfsubjectaccessreviews", "SelfSubjectAccessReview", &Plain).not_stored("create"),
        cluster(G, "selfsubjectrulesreviews", "SelfSubjectRulesReview", &Plain).not_stored("create"),
        cluster(G, "subjectaccessreviews", "SubjectAccessReview", &Plain).not_stored("create"),
    ]
}

fn autoscaling() -> Vec<Row> {
    vec![
        namespaced(
            "autoscaling",
            "horizontalpodautoscalers",
            "HorizontalPodAutoscaler",
            &scalers::HorizontalPodAutoscaler,
        )
        .versions("v2,v1")
        .short("hpa")
        .all()
        .status(),
    ]
}

fn batch() -> Vec<Row> {
    vec![
        namespaced("batch", "cronjobs", "CronJob", &batch::CronJob).short("cj").all().status(),
        namespaced("batch", "jobs", "Job", &batch::Job).all().fields(&["status.successful"]).status(),
    ]
}

fn certificates() -> Vec<Row> {
    const G: &str = "certificates.k8s.io";
    vec![
        cluster(G, "certificatesigningrequests", "CertificateSigningRequest", &certs::SigningRequest)
            .short("csr")
            .fields(&["spec.signerName"])
            .own("approval", WRITE)
            .status(),
        cluster(G, "clustertrustbundles", "ClusterTrustBundle", &certs::ClusterTrustBundle)
            .versions("v1beta1,v1alpha1")
            .deprecated("v1alpha1", 34, Some(37), None)
            .conditional()
            .fields(&["spec.signerName"]),
        namespaced(G, "podcertificaterequests", "PodCertificateRequest", &Plain)
            .versions("v1beta1")
            .conditional()
            .fields(&["spec.signerName", "spec.podName", "spec.nodeName"])
            .status(),
    ]
}

fn networking() -> Vec<Row> {
    const G: &str = "networking.k8s.io";
    vec![
        cluster(G, "ingressclasses", "IngressClass", &net::IngressClass),
        namespaced(G, "ingresses", "Ingress", &net::Ingress).short("ing").storage("ingress").status(),
        cluster(G, "ipaddresses", "IPAddress", &net::IpAddress)
            .versions("v1,v1beta1")
            .deprecated("v1beta1", 34, Some(37), None)
            .short("ip"),
        namespaced(G, "networkpolicies", "NetworkPolicy", &net::NetworkPolicy).short("netpol"),
        cluster(G, "servicecidrs", "ServiceCIDR", &net::ServiceCidr)
            .versions("v1,v1beta1")
            .deprecated("v1beta1", 34, Some(37), None)
            .status(),
    ]
}

fn policy() -> Vec<Row> {
    vec![
        namespaced("policy", "poddisruptionbudgets", "PodDisruptionBudget", &disruption::PodDisruptionBudget)
            .short("pdb")
            .conditional()
            .status(),
    ]
}

fn rbac() -> Vec<Row> {
    const G: &str = "rbac.authorization.k8s.io";
    vec![
        cluster(G, "clusterrolebindings", "ClusterRoleBinding", &roles::Binding(super::Scope::Cluster)).put_creates(),
        cluster(G, "clusterroles", "ClusterRole", &roles::Role(super::Scope::Cluster)).put_creates(),
        namespaced(G, "rolebindings", "RoleBinding", &roles::Binding(super::Scope::Namespaced)).put_creates(),
        namespaced(G, "roles", "Role", &roles::Role(super::Scope::Namespaced)).put_creates(),
    ]
}

fn storage() -> Vec<Row> {
    const G: &str = "storage.k8s.io";
    vec![
        cluster(G, "csidrivers", "CSIDriver", &volumes::CsiDriver).answers_deleted().conditional(),
        cluster(G, "csinodes", "CSINode", &volumes::CsiNode).answers_deleted().conditional(),
        namespaced(G, "csistoragecapacities", "CSIStorageCapacity", &volumes::CsiStorageCapacity).conditional(),
        cluster(G, "storageclasses", "StorageClass", &volumes::StorageClass).answers_deleted().short("sc"),
        cluster(G, "volumeattachments", "VolumeAttachment", &volumes::VolumeAttachment)
            .answers_deleted()
            .conditional()
            .status(),
        cluster(G, "volumeattributesclasses", "VolumeAttributesClass", &volumes::VolumeAttributesClass)
            .answers_deleted()
            .versions("v1,v1beta1")
            .deprecated("v1beta1", 34, Some(37), Some("storage.k8s.io/v1 VolumeAttributesClass"))
            .short("vac"),
    ]
}

fn admissionregistration() -> Vec<Row> {
    const G: &str = "admissionregistration.k8s.io";
    let row = |plural, kind, strategy: &'static dyn Strategy| {
        cluster(G, plural, kind, strategy).category("api-extensions").conditional()
    };
    // Stored as v1beta1 so that a server of the version before can read them.
    let mutating = |plural, kind, strategy: &'static dyn Strategy| {
        row(plural, kind, strategy).versions("v1,v1beta1,v1alpha1").stored("v1beta1").deprecated(
            "v1alpha1",
            35,
            Some(38),
            None,
        )
    };
    vec![
        mutating("mutatingadmissionpolicies", "MutatingAdmissionPolicy", &hooks::MutatingPolicy),
        mutating(
            "mutatingadmissionpolicybindings",
            "MutatingAdmissionPolicyBinding",
            &hooks::Binding { mutating: true },
        ),
        row("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", &hooks::Webhooks { mutating: true }),
        row("validatingadmissionpolicies", "ValidatingAdmissionPolicy", &hooks::ValidatingPolicy).status(),
        row(
            "validatingadmissionpolicybindings",
            "ValidatingAdmissionPolicyBinding",
            &hooks::Binding { mutating: false },
        ),
        row("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", &hooks::Webhooks { mutating: false }),
    ]
}

fn apiextensions() -> Vec<Row> {
    let mut row = cluster("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", &Plain)
        .short("crd,crds")
        .category("api-extensions")
        .storage("apiextensions.k8s.io/customresourcedefinitions")
        .conditional()
        .status();
    // Upstream still stores the retired version; both decode, and the hash in discovery is of that one.
    row.hashed = Some("v1beta1".into());
    vec![row]
}

fn scheduling() -> Vec<Row> {
    const G: &str = "scheduling.k8s.io";
    vec![
        namespaced(G, "podgroups", "PodGroup", &Plain).versions("v1alpha2").status(),
        cluster(G, "priorityclasses", "PriorityClass", &priorities::PriorityClass).short("pc"),
        namespaced(G, "workloads", "Workload", &Plain).versions("v1alpha2"),
    ]
}

fn coordination() -> Vec<Row> {
    const G: &str = "coordination.k8s.io";
    vec![
        namespaced(G, "leasecandidates", "LeaseCandidate", &leases::LeaseCandidate)
            .versions("v1beta1,v1alpha2")
            .deprecated("v1beta1", 36, Some(39), None)
            .deprecated("v1alpha2", 35, Some(38), None)
            .put_creates()
            .conditional(),
        namespaced(G, "leases", "Lease", &leases::Lease).put_creates().conditional(),
    ]
}

fn node() -> Vec<Row> {
    vec![cluster("node.k8s.io", "runtimeclasses", "RuntimeClass", &runtime::RuntimeClass).put_creates().conditional()]
}

fn discovery() -> Vec<Row> {
    vec![namespaced("discovery.k8s.io", "endpointslices", "EndpointSlice", &slices::EndpointSlice)]
}

fn resource() -> Vec<Row> {
    const G: &str = "resource.k8s.io";
    let three = |row: Row| {
        row.versions("v1,v1beta2,v1beta1").deprecated("v1beta2", 36, Some(39), None).deprecated(
            "v1beta1",
            35,
            Some(38),
            None,
        )
    };
    vec![
        three(cluster(G, "deviceclasses", "DeviceClass", &devices::DeviceClass).answers_deleted()),
        cluster(G, "devicetaintrules", "DeviceTaintRule", &Plain)
            .answers_deleted()
            .versions("v1beta2,v1alpha3")
            .stored("v1alpha3")
            .deprecated("v1alpha3", 36, Some(39), None)
            .status(),
        three(namespaced(G, "resourceclaims", "ResourceClaim", &devices::ResourceClaim).answers_deleted()).status(),
        three(
            namespaced(G, "resourceclaimtemplates", "ResourceClaimTemplate", &devices::ResourceClaimTemplate)
                .answers_deleted(),
        ),
        cluster(G, "resourcepoolstatusrequests", "ResourcePoolStatusRequest", &Plain)
            .answers_deleted()
            .versions("v1alpha3")
            .conditional()
            .status(),
        three(cluster(G, "resourceslices", "ResourceSlice", &devices::ResourceSlice).answers_deleted())
            .fields(&["spec.nodeName", "spec.driver"]),
    ]
}

fn flowcontrol() -> Vec<Row> {
    const G: &str = "flowcontrol.apiserver.k8s.io";
    vec![
        cluster(G, "flowschemas", "FlowSchema", &flow::FlowSchema).status(),
        cluster(G, "prioritylevelconfigurations", "PriorityLevelConfiguration", &flow::PriorityLevel).status(),
    ]
}

fn internal() -> Vec<Row> {
    vec![cluster("internal.apiserver.k8s.io", "storageversions", "StorageVersion", &Plain).conditional().status()]
}

fn storagemigration() -> Vec<Row> {
    vec![
        cluster("storagemigration.k8s.io", "storageversionmigrations", "StorageVersionMigration", &Plain)
            .conditional()
            .status(),
    ]
}
