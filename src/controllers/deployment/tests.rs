use super::*;
use crate::deployment::sets::HASH;
use serde_json::{Value, json};

fn now() -> Timestamp {
    Timestamp::from_second(10_000).unwrap()
}

fn deployment(replicas: i32, image: &str, strategy: Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "a", "uid": "d", "generation": 1},
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": strategy,
            "template": template(image),
        },
    }))
    .unwrap()
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn rolling(surge: Value, unavailable: Value) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

/// A set of this revision and size, all of whose pods but `down` are available.
fn set(deployment: &Deployment, image: &str, revision: i64, size: i32, down: i32) -> Arc<ReplicaSet> {
    let mut of = deployment.clone();
    of.spec.as_mut().unwrap().template = serde_json::from_value(template(image)).unwrap();
    let mut set = make(&of, revision);
    set.metadata.creation_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(revision).unwrap()));
    set_replicas(&mut set, size);
    note_size(deployment, &mut set);
    let status = json!({"replicas": size, "readyReplicas": size - down, "availableReplicas": size - down});
    set.status = Some(serde_json::from_value(status).unwrap());
    Arc::new(set)
}

/// Commands as text: `image+n` created, `image:from>to` scaled, `image=` rewritten, `image-` deleted.
fn told(plan: &Plan) -> Vec<String> {
    let image = |set: &ReplicaSet| {
        let spec = set.spec.as_ref().unwrap().template.as_ref().unwrap().spec.as_ref().unwrap();
        spec.containers[0].image.clone().unwrap()
    };
    let tell = |command: &Command| match command {
        Command::Create(set) => format!("{}+{}", image(set), replicas(set)),
        Command::Replace(set, Some((from, to))) => format!("{}:{from}>{to}", image(set)),
        Command::Replace(set, None) => format!("{}=", image(set)),
        Command::Delete(set) => format!("{}-", image(set)),
    };
    plan.commands.iter().map(tell).collect()
}

fn progressing(plan: &Plan) -> (String, String, String) {
    let status = plan.deployment.status.as_ref().unwrap();
    let condition = status::find(status, PROGRESSING).unwrap().clone();
    (condition.status, condition.reason.unwrap(), condition.message.unwrap())
}

#[test]
fn the_first_set_is_made_at_full_size() {
    let deployment = deployment(3, "v1", rolling(json!("25%"), json!("25%")));
    let plan = plan(&deployment, &[], false, now());
    assert_eq!(told(&plan), ["v1+3"]);
    let Command::Create(made) = &plan.commands[0] else { panic!() };
    assert_eq!(revision(&made.metadata), 1);
    let hash = made.metadata.labels.as_ref().unwrap()[HASH].clone();
    assert_eq!(made.metadata.name.as_deref(), Some(format!("web-{hash}").as_str()));
    assert_eq!(made.spec.as_ref().unwrap().selector.match_labels.as_ref().unwrap()[HASH], hash);
    assert_eq!(annotation(&plan.deployment.metadata, sets::REVISION), Some("1"));
    assert_eq!(progressing(&plan).1, "NewReplicaSetCreated");
}

#[test]
fn a_rolling_update_surges_then_shrinks() {
    let deployment = deployment(3, "v2", rolling(json!(1), json!(0)));
    let old = set(&deployment, "v1", 1, 3, 0);
    assert_eq!(told(&plan(&deployment, &[old.clone()], false, now())), ["v2+1"]);
    let starting = set(&deployment, "v2", 2, 1, 1);
    assert!(told(&plan(&deployment, &[old.clone(), starting], false, now())).is_empty());
    let ready = set(&deployment, "v2", 2, 1, 0);
    assert_eq!(told(&plan(&deployment, &[old, ready], false, now())), ["v1:3>2"]);
}

#[test]
fn the_new_sets_unavailable_pods_hold_the_old_ones() {
    let deployment = deployment(10, "v2", rolling(json!(0), json!(2)));
    let old = set(&deployment, "v1", 1, 8, 0);
    let new = set(&deployment, "v2", 2, 2, 2);
    assert!(told(&plan(&deployment, &[old, new], false, now())).is_empty());
}

#[test]
fn unhealthy_old_pods_go_first() {
    let deployment = deployment(10, "v3", rolling(json!(0), json!(2)));
    let (sick, well) = (set(&deployment, "v1", 1, 3, 3), set(&deployment, "v2", 2, 7, 0));
    let new = set(&deployment, "v3", 3, 0, 0);
    assert_eq!(told(&plan(&deployment, &[sick, well, new], false, now())), ["v1:3>1"]);
}

#[test]
fn surge_0_and_unavailable_1_percent_of_2_replicas_progress_one_by_one() {
    let deployment = deployment(2, "v2", rolling(json!(0), json!("1%")));
    let (old, new) = (set(&deployment, "v1", 1, 2, 0), set(&deployment, "v2", 2, 0, 0));
    assert_eq!(told(&plan(&deployment, &[old, new.clone()], false, now())), ["v1:2>1"]);
    let old = set(&deployment, "v1", 1, 1, 0);
    assert_eq!(told(&plan(&deployment, &[old, new], false, now())), ["v2:0>1"]);
}

#[test]
fn scaling_in_the_middle_of_a_rollout_is_proportional() {
    let before = deployment(10, "v2", rolling(json!(2), json!(2)));
    let (old, new) = (set(&before, "v1", 1, 8, 0), set(&before, "v2", 2, 4, 4));
    let mut after = before.clone();
    after.spec.as_mut().unwrap().replicas = Some(20);
    let plan = plan(&after, &[old, new], false, now());
    assert_eq!(told(&plan), ["v1:8>15", "v2:4>7"]);
}

#[test]
fn a_single_set_is_scaled_even_when_paused() {
    let mut before = deployment(3, "v1", rolling(json!(1), json!(1)));
    let only = set(&before, "v1", 1, 3, 0);
    before.spec.as_mut().unwrap().replicas = Some(5);
    before.spec.as_mut().unwrap().paused = Some(true);
    let plan = plan(&before, &[only], false, now());
    assert_eq!(told(&plan), ["v1:3>5"]);
    assert_eq!(progressing(&plan), ("Unknown".into(), "DeploymentPaused".into(), "Deployment is paused".into()));
}

#[test]
fn a_paused_deployment_makes_no_new_set() {
    let mut paused = deployment(3, "v2", rolling(json!(1), json!(1)));
    paused.spec.as_mut().unwrap().paused = Some(true);
    let old = set(&paused, "v1", 1, 3, 0);
    assert!(told(&plan(&paused, &[old], false, now())).is_empty());
}

#[test]
fn going_back_gives_the_old_set_the_highest_revision() {
    let deployment = deployment(3, "v1", rolling(json!(1), json!(0)));
    let (first, second) = (set(&deployment, "v1", 1, 0, 0), set(&deployment, "v2", 2, 3, 0));
    let plan = plan(&deployment, &[first, second], false, now());
    assert_eq!(told(&plan), ["v1:0>1"]);
    let Command::Replace(set, _) = &plan.commands[0] else { panic!() };
    assert_eq!(revision(&set.metadata), 3);
    assert_eq!(annotation(&set.metadata, "deployment.kubernetes.io/revision-history"), Some("1"));
    assert_eq!(annotation(&plan.deployment.metadata, sets::REVISION), Some("3"));
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let deployment = deployment(2, "v2", json!({"type": "Recreate"}));
    let old = set(&deployment, "v1", 1, 2, 0);
    assert_eq!(told(&plan(&deployment, &[old], true, now())), ["v1:2>0"]);
    let gone = set(&deployment, "v1", 1, 0, 0);
    assert!(told(&plan(&deployment, &[gone.clone()], true, now())).is_empty());
    assert_eq!(told(&plan(&deployment, &[gone], false, now())), ["v2+2"]);
}

#[test]
fn a_complete_rollout_says_so_and_forgets_old_sets() {
    let mut deployment = deployment(3, "v3", rolling(json!(1), json!(0)));
    let mut sets =
        vec![set(&deployment, "v1", 1, 0, 0), set(&deployment, "v2", 2, 0, 0), set(&deployment, "v3", 3, 3, 0)];
    let first = plan(&deployment, &sets, false, now());
    assert_eq!(progressing(&first).1, "NewReplicaSetAvailable");
    assert!(progressing(&first).2.contains("has successfully progressed."));
    deployment = first.deployment;
    sets.reverse();
    let second = plan(&deployment, &sets, false, now());
    assert_eq!(told(&second), ["v1-"]);
    assert_eq!(second.deployment, deployment, "nothing to write");
    assert_eq!(second.again, None);
}

#[test]
fn a_rollout_without_progress_times_out() {
    let mut deployment = deployment(3, "v1", rolling(json!(1), json!(0)));
    let stuck = [set(&deployment, "v1", 1, 3, 3)];
    deployment = plan(&deployment, &stuck, false, now()).deployment;
    let waiting = plan(&deployment, &stuck, false, now());
    assert_eq!(waiting.again, Some(Duration::from_secs(601)));
    let late = now() + Duration::from_secs(601);
    let plan = plan(&deployment, &stuck, false, late);
    let (status, reason, message) = progressing(&plan);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProgressDeadlineExceeded"));
    assert!(message.contains("has timed out progressing."));
    assert_eq!(plan.again, None);
}

#[test]
fn a_set_that_cant_make_pods_shows_in_the_deployment() {
    let deployment = deployment(3, "v1", rolling(json!(1), json!(0)));
    let mut failing = ReplicaSet::clone(&set(&deployment, "v1", 1, 3, 3));
    failing.status.as_mut().unwrap().conditions = Some(vec![
        serde_json::from_value(json!({
            "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota",
            "lastTransitionTime": "2020-01-01T00:00:00Z",
        }))
        .unwrap(),
    ]);
    let plan = plan(&deployment, &[Arc::new(failing)], false, now());
    let status = plan.deployment.status.unwrap();
    assert_eq!(status::find(&status, "ReplicaFailure").unwrap().message.as_deref(), Some("exceeded quota"));
    assert_eq!(status::find(&status, "Available").unwrap().status, "False");
}

#[test]
fn counts_are_as_upstream_counts() {
    let deployment = deployment(4, "v2", rolling(json!(1), json!(1)));
    let sets = [set(&deployment, "v1", 1, 3, 1), set(&deployment, "v2", 2, 2, 1)];
    let status = plan(&deployment, &sets, false, now()).deployment.status.unwrap();
    assert_eq!((status.replicas, status.updated_replicas), (Some(5), Some(2)));
    assert_eq!((status.ready_replicas, status.available_replicas), (Some(3), Some(3)));
    assert_eq!(status.unavailable_replicas, Some(1), "one is taken away in this very step");
}
