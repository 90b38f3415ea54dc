//! Packing endpoints into slices with few writes: endpoints stay where they are, slices that must be written anyway are
//! filled first, then one that has room, and new slices come last.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A write of a slice.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Create(EndpointSlice),
    Replace(EndpointSlice),
    Delete(Arc<EndpointSlice>),
}

/// What all slices of one owner have in common.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) owner: OwnerReference,
    pub(super) namespace: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Annotations that every slice must have; others are kept.
    pub(super) annotations: BTreeMap<String, String>,
    /// Endpoints in one slice at most.
    pub(super) max: usize,
}

/// Endpoints that may share a slice.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) ports: Vec<EndpointPort>,
    pub(super) endpoints: Vec<Endpoint>,
}

/// Sorted ports.
pub(super) type PortsOf = PortKey;
type PortKey = Vec<(Option<String>, Option<i32>, Option<String>, Option<String>)>;

/// Ports as they tell slices apart.
pub(super) fn port_key(ports: &[EndpointPort]) -> PortKey {
    let key = |port: &EndpointPort| {
        let EndpointPort { name, port, protocol, app_protocol } = port.clone();
        (name, port, protocol, app_protocol)
    };
    let mut keys: PortKey = ports.iter().map(key).collect();
    keys.sort();
    keys
}

/// What makes two endpoints the same one, whatever its state.
fn identity(endpoint: &Endpoint) -> String {
    let target =
        endpoint.target_ref.as_ref().map(|target| (&target.kind, &target.namespace, &target.name, &target.uid));
    format!("{:?}{:?}{:?}{:?}", endpoint.addresses, endpoint.hostname, endpoint.node_name, target)
}

/// The writes that make the slices of one address type hold exactly these groups. With `placeholder` an empty slice
/// stands where there would be none.
pub(super) fn pack(
    frame: &Frame, address_type: &str, groups: &BTreeMap<PortKey, Group>, existing: &[Arc<EndpointSlice>],
    placeholder: bool,
) -> Vec<Command> {
    let mut by_ports: HashMap<PortKey, Vec<Arc<EndpointSlice>>> = HashMap::new();
    let mut delete = Vec::new();
    for slice in existing {
        let ours = slice.metadata.owner_references.iter().flatten().any(|owner| owner.uid == frame.owner.uid);
        let key = port_key(slice.ports.as_deref().unwrap_or_default());
        if ours && groups.contains_key(&key) {
            by_ports.entry(key).or_default().push(slice.clone());
        } else {
            delete.push(slice.clone());
        }
    }
    let (mut create, mut replace, mut kept) = (Vec::new(), Vec::new(), 0);
    for (key, group) in groups {
        let mut packing = Packing::new(frame, address_type, group, by_ports.remove(key).unwrap_or_default());
        packing.run();
        kept += packing.same.len();
        create.extend(packing.create);
        replace.extend(packing.change);
        delete.extend(packing.delete);
    }
    if placeholder && create.is_empty() && replace.is_empty() && kept == 0 {
        let empty = frame.slice(address_type, &[], Vec::new());
        match delete.iter().position(|slice| is_placeholder(frame, slice, &empty)) {
            Some(at) => drop(delete.remove(at)),
            None => create.push(empty),
        }
    }
    frame.reuse(create, replace, delete)
}

fn is_placeholder(frame: &Frame, slice: &EndpointSlice, empty: &EndpointSlice) -> bool {
    let none = |list: Option<usize>| list.unwrap_or(0) == 0;
    none(slice.endpoints.as_ref().map(Vec::len))
        && none(slice.ports.as_ref().map(Vec::len))
        && slice.address_type == empty.address_type
        && frame.fits(slice)
}

impl Frame {
    fn slice(&self, address_type: &str, ports: &[EndpointPort], endpoints: Vec<Endpoint>) -> EndpointSlice {
        EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(crate::common::pods::name_prefix(&self.owner.name)),
                namespace: Some(self.namespace.clone()),
                labels: Some(self.labels.clone()),
                annotations: Some(self.annotations.clone()).filter(|all| !all.is_empty()),
                owner_references: Some(vec![self.owner.clone()]),
                ..Default::default()
            },
            address_type: address_type.into(),
            endpoints: Some(endpoints),
            ports: Some(ports.to_vec()),
        }
    }

    fn fits(&self, slice: &EndpointSlice) -> bool {
        let annotations = slice.metadata.annotations.as_ref();
        let annotated = self
            .annotations
            .iter()
            .all(|(key, value)| annotations.is_some_and(|annotations| annotations.get(key) == Some(value)));
        annotated
            && slice.metadata.labels.as_ref().is_some_and(|labels| *labels == self.labels)
            && slice.metadata.owner_references.iter().flatten().any(|owner| owner.uid == self.owner.uid)
    }

    fn fit(&self, slice: &EndpointSlice) -> EndpointSlice {
        let mut slice = slice.clone();
        slice.metadata.labels = Some(self.labels.clone());
        if !self.annotations.is_empty() {
            slice.metadata.annotations.get_or_insert_default().extend(self.annotations.clone());
        }
        slice
    }

    /// Turns deletions and creations into replacements where one slice can become the other.
    fn reuse(
        &self, create: Vec<EndpointSlice>, mut replace: Vec<EndpointSlice>, mut delete: Vec<Arc<EndpointSlice>>,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        for new in create {
            let fits = |old: &Arc<EndpointSlice>| {
                old.address_type == new.address_type
                    && old.metadata.owner_references.iter().flatten().any(|owner| owner.uid == self.owner.uid)
            };
            match delete.iter().position(fits) {
                Some(at) => {
                    let old = delete.remove(at);
                    replace.push(EndpointSlice { endpoints: new.endpoints, ports: new.ports, ..self.fit(&old) });
                }
                None => commands.push(Command::Create(new)),
            }
        }
        commands.extend(replace.into_iter().map(Command::Replace));
        commands.extend(delete.into_iter().map(Command::Delete));
        commands
    }
}

/// The packing of one group.
struct Packing<'a> {
    frame: &'a Frame,
    address_type: &'a str,
    ports: &'a [EndpointPort],
    /// Endpoints that have no place yet, in order.
    homeless: Vec<Endpoint>,
    /// Slices that stay as they are.
    same: Vec<Arc<EndpointSlice>>,
    change: Vec<EndpointSlice>,
    create: Vec<EndpointSlice>,
    delete: Vec<Arc<EndpointSlice>>,
}

impl<'a> Packing<'a> {
    fn new(frame: &'a Frame, address_type: &'a str, group: &'a Group, existing: Vec<Arc<EndpointSlice>>) -> Self {
        let mut packing = Self {
            frame,
            address_type,
            ports: &group.ports,
            homeless: Vec::new(),
            same: Vec::new(),
            change: Vec::new(),
            create: Vec::new(),
            delete: Vec::new(),
        };
        let mut wanted: HashMap<String, &Endpoint> =
            group.endpoints.iter().map(|endpoint| (identity(endpoint), endpoint)).collect();
        for slice in existing {
            packing.keep(slice, &mut wanted);
        }
        let left = group.endpoints.iter().filter(|endpoint| wanted.remove(&identity(endpoint)).is_some());
        packing.homeless = left.cloned().collect();
        packing
    }

    /// Keeps the endpoints of a slice that are still wanted, brought up to date.
    fn keep(&mut self, slice: Arc<EndpointSlice>, wanted: &mut HashMap<String, &Endpoint>) {
        let old = slice.endpoints.as_deref().unwrap_or_default();
        let mut new = Vec::with_capacity(old.len());
        for endpoint in old {
            if let Some(fresh) = wanted.remove(&identity(endpoint)) {
                new.push(fresh.clone());
            }
        }
        let same = new == old;
        if new.is_empty() {
            self.delete.push(slice);
        } else if same && self.frame.fits(&slice) {
            self.same.push(slice);
        } else {
            let mut changed = self.frame.fit(&slice);
            changed.endpoints = Some(new);
            self.change.push(changed);
        }
    }

    fn run(&mut self) {
        self.fill_changed();
        self.fill_one();
        while !self.homeless.is_empty() {
            let count = self.homeless.len().min(self.frame.max);
            let endpoints = self.homeless.drain(..count).collect();
            self.create.push(self.frame.slice(self.address_type, self.ports, endpoints));
        }
    }

    /// Slices that are written anyway take what they can, the fullest first.
    fn fill_changed(&mut self) {
        self.change.sort_by_key(|slice| std::cmp::Reverse(slice.endpoints.as_ref().map_or(0, Vec::len)));
        for slice in &mut self.change {
            let endpoints = slice.endpoints.get_or_insert_default();
            let room = self.frame.max.saturating_sub(endpoints.len()).min(self.homeless.len());
            endpoints.extend(self.homeless.drain(..room));
        }
    }

    /// What remains after whole new slices goes into the unchanged slice that it fills best.
    fn fill_one(&mut self) {
        let rest = self.homeless.len() % self.frame.max;
        if rest == 0 {
            return;
        }
        let size = |slice: &Arc<EndpointSlice>| slice.endpoints.as_ref().map_or(0, Vec::len);
        let fitting = self.same.iter().enumerate().filter(|(_, slice)| size(slice) + rest <= self.frame.max);
        let Some((at, _)) = fitting.max_by_key(|(_, slice)| size(slice)) else { return };
        let mut slice = EndpointSlice::clone(&self.same.remove(at));
        slice.endpoints.get_or_insert_default().extend(self.homeless.drain(..rest));
        self.change.push(slice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame {
            owner: OwnerReference { name: "web".into(), uid: "u".into(), ..Default::default() },
            namespace: "a".into(),
            labels: [("kubernetes.io/service-name".to_owned(), "web".to_owned())].into(),
            annotations: BTreeMap::new(),
            max: 3,
        }
    }

    fn endpoint(n: usize) -> Endpoint {
        Endpoint { addresses: vec![format!("10.0.0.{n}")], ..Default::default() }
    }

    fn groups(endpoints: impl IntoIterator<Item = usize>) -> BTreeMap<PortKey, Group> {
        let ports = vec![EndpointPort { name: Some("h".into()), port: Some(80), ..Default::default() }];
        let group = Group { ports: ports.clone(), endpoints: endpoints.into_iter().map(endpoint).collect() };
        [(port_key(&ports), group)].into()
    }

    fn slice(name: &str, endpoints: impl IntoIterator<Item = usize>) -> Arc<EndpointSlice> {
        let ports = vec![EndpointPort { name: Some("h".into()), port: Some(80), ..Default::default() }];
        let mut slice = frame().slice("IPv4", &ports, endpoints.into_iter().map(endpoint).collect());
        slice.metadata.name = Some(name.into());
        Arc::new(slice)
    }

    fn told(commands: &[Command]) -> Vec<String> {
        let ends = |slice: &EndpointSlice| {
            let last = |endpoint: &Endpoint| endpoint.addresses[0].rsplit('.').next().unwrap().to_owned();
            slice.endpoints.iter().flatten().map(last).collect::<Vec<_>>().join(",")
        };
        let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap_or_default();
        let mut told: Vec<_> = commands
            .iter()
            .map(|command| match command {
                Command::Create(slice) => format!("+{}", ends(slice)),
                Command::Replace(slice) => format!("{}={}", name(slice), ends(slice)),
                Command::Delete(slice) => format!("-{}", name(slice)),
            })
            .collect();
        told.sort();
        told
    }

    #[test]
    fn new_endpoints_fill_new_slices() {
        assert_eq!(told(&pack(&frame(), "IPv4", &groups(0..7), &[], true)), ["+0,1,2", "+3,4,5", "+6"]);
    }

    #[test]
    fn what_is_right_is_not_written() {
        let existing = [slice("x", 0..3), slice("y", 3..5)];
        assert!(pack(&frame(), "IPv4", &groups(0..5), &existing, true).is_empty());
    }

    #[test]
    fn a_slice_that_loses_endpoints_takes_new_ones() {
        let existing = [slice("x", 0..3), slice("y", 3..5)];
        assert_eq!(told(&pack(&frame(), "IPv4", &groups([0, 1, 3, 4, 9]), &existing, true)), ["x=0,1,9"]);
    }

    #[test]
    fn a_few_new_endpoints_go_to_the_fullest_slice_with_room() {
        let existing = [slice("x", 0..1), slice("y", 3..5)];
        assert_eq!(told(&pack(&frame(), "IPv4", &groups([0, 3, 4, 9]), &existing, true)), ["y=3,4,9"]);
    }

    #[test]
    fn the_last_endpoint_leaves_an_empty_slice_in_its_place() {
        let existing = [slice("x", 0..2)];
        let commands = pack(&frame(), "IPv4", &BTreeMap::new(), &existing, true);
        assert_eq!(told(&commands), ["x="]);
        let Command::Replace(empty) = &commands[0] else { panic!() };
        assert!(empty.ports.as_ref().unwrap().is_empty());
        let existing = [Arc::new(empty.clone())];
        assert!(pack(&frame(), "IPv4", &BTreeMap::new(), &existing, true).is_empty());
        assert_eq!(told(&pack(&frame(), "IPv4", &groups([1]), &existing, true)), ["x=1"]);
    }

    #[test]
    fn without_a_placeholder_the_last_slice_goes() {
        assert_eq!(told(&pack(&frame(), "IPv4", &BTreeMap::new(), &[slice("x", 0..2)], false)), ["-x"]);
    }

    #[test]
    fn labels_are_put_right() {
        let mut spoilt = EndpointSlice::clone(&slice("x", 0..2));
        spoilt.metadata.labels = None;
        assert_eq!(told(&pack(&frame(), "IPv4", &groups(0..2), &[Arc::new(spoilt)], true)), ["x=0,1"]);
    }
}
