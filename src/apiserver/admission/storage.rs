//! Plugins for volumes: DefaultStorageClass, StorageObjectInUseProtection, PersistentVolumeClaimResize.

use api::Value;
use api::quantity::Quantity;
use api::status::Status;

use super::{Operation, Plugin, Review, default_class};
use crate::registry::object;

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// A claim without a class gets the default one.
pub struct DefaultStorageClass;

#[async_trait::async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is("", "persistentvolumeclaims") && review.operation == Operation::Create
    }

    async fn mutate(&self, review: &Review<'_>, claim: &mut Value) -> Result<(), Status> {
        let named = object::at(claim, &["spec", "storageClassName"]).is_some();
        if named || object::annotation(claim, CLASS_ANNOTATION).is_some() {
            return Ok(());
        }
        review.api.admission.settle(review.api).await;
        let mut classes = review.list("storage.k8s.io", "storageclasses", "");
        let beta = "storageclass.beta.kubernetes.io/is-default-class";
        let stable = "storageclass.kubernetes.io/is-default-class";
        classes.retain(|c| c.entry.value().is_ok());
        let found = default_class(&classes, stable).or_else(|| default_class(&classes, beta));
        if let Some(name) = found {
            object::fields(claim, &["spec"]).insert("storageClassName".into(), name.into());
        }
        Ok(())
    }
}

/// Claims and volumes stay while somebody uses them: a finalizer that a controller takes away.
pub struct StorageObjectInUseProtection;

#[async_trait::async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.operation == Operation::Create && finalizer(review).is_some()
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
        let Some(finalizer) = finalizer(review) else { return Ok(()) };
        let mut finalizers = object::finalizers(object);
        if !finalizers.iter().any(|f| f == finalizer) {
            finalizers.push(finalizer.to_string());
            object::set_finalizers(object, finalizers);
        }
        Ok(())
    }
}

fn finalizer(review: &Review<'_>) -> Option<&'static str> {
    if review.is("", "persistentvolumes") {
        return Some("kubernetes.io/pv-protection");
    }
    if review.is("", "persistentvolumeclaims") {
        return Some("kubernetes.io/pvc-protection");
    }
    review.is("storage.k8s.io", "volumeattributesclasses").then_some("kubernetes.io/vac-protection")
}

/// Only bound claims whose class allows it may grow.
pub struct PersistentVolumeClaimResize;

#[async_trait::async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is("", "persistentvolumeclaims") && review.operation == Operation::Update
    }

    async fn validate(&self, review: &Review<'_>, claim: &Value) -> Result<(), Status> {
        let Some(old) = review.old else { return Ok(()) };
        if size(claim) <= size(old) {
            return Ok(());
        }
        if object::text(old, &["status", "phase"]) != "Bound" {
            return Err(review.forbidden(claim, "Only bound persistent volume claims can be expanded"));
        }
        let (class, before) = (class_of(claim), class_of(old));
        let found = review.find_settled("storage.k8s.io", "storageclasses", "", class).await;
        let allows = match found {
            Some(cached) if !class.is_empty() && class == before => {
                cached.entry.value()?["allowVolumeExpansion"] == true
            }
            _ => false,
        };
        if allows {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                   support resize";
        Err(review.forbidden(claim, why))
    }
}

fn size(claim: &Value) -> Option<Quantity> {
    object::at(claim, &["spec", "resources", "requests", "storage"]).and_then(|v| Quantity::from_value(v).ok())
}

fn class_of(claim: &Value) -> &str {
    object::annotation(claim, CLASS_ANNOTATION).unwrap_or_else(|| object::text(claim, &["spec", "storageClassName"]))
}
