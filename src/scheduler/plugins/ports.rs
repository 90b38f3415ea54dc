//! NodePorts: two pods can't have the same port of one node.

use crate::framework::{Cycle, Event, Plugin, Refusal};
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// The plugin.
pub struct Ports;

struct PortsCycle<'a>(&'a PodInfo);

fn clash(pod: &PodInfo, other: &PodInfo) -> bool {
    pod.ports.iter().any(|p| other.ports.iter().any(|o| p.clashes(o)))
}

impl Cycle for PortsCycle<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match node.pods.values().any(|other| clash(self.0, other)) {
            true => Err(Refusal::new("node(s) didn't have free ports for the requested pod ports")),
            false => Ok(()),
        }
    }
}

impl Plugin for Ports {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        Ok((!pod.ports.is_empty()).then(|| Box::new(PortsCycle(pod)) as Box<dyn Cycle>))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::Node(None, _) => true,
            Event::FreedPod(freed) => clash(pod, freed),
            _ => false,
        }
    }
}
