//! ImageLocality: better where large images of the pod are already, less so where few nodes have them, lest all pods
//! of one image go to one node.

use std::collections::BTreeMap;

use crate::framework::{Cycle, MAX_SCORE, Plugin, Refusal};
use crate::state::{NodeInfo, PodInfo, Snapshot};

const MEBIBYTE: i64 = 1024 * 1024;
/// Images smaller than this do not count.
const SMALLEST: i64 = 23 * MEBIBYTE;
/// Per container, images larger than this count as this.
const LARGEST: i64 = 1000 * MEBIBYTE;

/// The plugin.
pub struct Images;

struct ImagesCycle {
    /// Images of the pod with the share of nodes that have them.
    spread: BTreeMap<String, f64>,
    containers: i64,
}

/// The name as nodes list it: with a tag.
fn normalized(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || image.contains('@') { image.to_string() } else { format!("{image}:latest") }
}

impl Cycle for ImagesCycle {
    fn score(&self, node: &NodeInfo) -> i64 {
        let sizes =
            self.spread.iter().filter_map(|(image, share)| Some((*node.images.get(image)? as f64 * share) as i64));
        let largest = LARGEST * self.containers;
        let sum = sizes.sum::<i64>().clamp(SMALLEST, largest.max(SMALLEST));
        if largest <= SMALLEST { 0 } else { MAX_SCORE * (sum - SMALLEST) / (largest - SMALLEST) }
    }
}

impl Plugin for Images {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        let Some(spec) = pod.spec() else { return Ok(None) };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let images: Vec<String> = containers.filter_map(|c| c.image.as_deref()).map(normalized).collect();
        let total = world.nodes().count().max(1) as f64;
        let share = |image: &String| world.nodes().filter(|n| n.images.contains_key(image)).count() as f64 / total;
        let spread = images.iter().map(|image| (image.clone(), share(image))).collect();
        Ok(Some(Box::new(ImagesCycle { spread, containers: images.len() as i64 })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::json;

    #[test]
    fn the_node_that_has_the_image_is_better() {
        let mut with = node("n", json!({}));
        with["status"] = json!({"images": [{"names": ["registry/app:latest"], "sizeBytes": 900 * MEBIBYTE}]});
        let world = world(&[with, node("o", json!({}))]);
        let scores =
            scores(&Images, &pod("p", json!({"containers": [{"name": "c", "image": "registry/app"}]})), &world);
        assert!(scores[0] > 0 && scores[1] == 0, "{scores:?}");
    }
}
