//! DefaultIngressClass: an Ingress without a class gets the default one.

use api::Value;
use api::status::Status;

use super::{Operation, Plugin, Review, default_class};
use crate::registry::object;

/// The plugin.
pub struct DefaultIngressClass;

#[async_trait::async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is("networking.k8s.io", "ingresses") && review.operation == Operation::Create
    }

    async fn mutate(&self, review: &Review<'_>, ingress: &mut Value) -> Result<(), Status> {
        let named = object::at(ingress, &["spec", "ingressClassName"]).is_some();
        if named || object::annotation(ingress, "kubernetes.io/ingress.class").is_some() {
            return Ok(());
        }
        review.api.admission.settle(review.api).await;
        let classes = review.list("networking.k8s.io", "ingressclasses", "");
        if let Some(name) = default_class(&classes, "ingressclass.kubernetes.io/is-default-class") {
            object::fields(ingress, &["spec"]).insert("ingressClassName".into(), name.into());
        }
        Ok(())
    }
}
