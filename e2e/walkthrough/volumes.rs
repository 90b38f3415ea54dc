//! What containers find in their file systems, and the token that lets them in.

use e2e::{Cluster, Steps};

pub fn walk(steps: &mut Steps, cluster: &Cluster) {
    steps.run("configmap, secret, emptyDir, hostPath, token are mounted", || volumes_are_mounted(cluster));
    steps.run("the token authenticates in the cluster", || the_token_lets_in(cluster));
    steps.run("a changed configmap reaches the file", || a_change_reaches_the_file(cluster));
}

fn manifest(host: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings}}
data: {{color: green}}
---
apiVersion: v1
kind: Secret
metadata: {{name: hidden}}
stringData: {{word: sesame}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: reader}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: reader}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}}
subjects: [{{kind: ServiceAccount, name: reader}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: mounts}}
spec:
  serviceAccountName: reader
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: first
    image: localhost/busybox:debian
    command: [sh, -c, "echo left by init > /scratch/note"]
    volumeMounts: [{{name: scratch, mountPath: /scratch}}]
  containers:
  - name: main
    image: localhost/busybox:debian
    command: [sleep, "3600"]
    env:
    - name: COLOR
      valueFrom: {{configMapKeyRef: {{name: settings, key: color}}}}
    - name: ME
      valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}
    volumeMounts:
    - {{name: settings, mountPath: /settings}}
    - {{name: hidden, mountPath: /hidden, readOnly: true}}
    - {{name: scratch, mountPath: /scratch}}
    - {{name: host, mountPath: /host}}
  volumes:
  - {{name: settings, configMap: {{name: settings}}}}
  - {{name: hidden, secret: {{secretName: hidden, defaultMode: 0400}}}}
  - {{name: scratch, emptyDir: {{}}}}
  - {{name: host, hostPath: {{path: {host}, type: DirectoryOrCreate}}}}
"#
    )
}

fn inside(cluster: &Cluster, script: &str) -> String {
    cluster.kubectl(&["exec", "mounts", "-c", "main", "--", "sh", "-c", script])
}

fn volumes_are_mounted(cluster: &Cluster) {
    let host = cluster.dir().join("from-host");
    std::fs::create_dir_all(&host).expect("a directory is made");
    std::fs::write(host.join("word"), "from the host\n").expect("a file is written");
    cluster.kubectl_with(&["apply", "-f", "-"], &manifest(&host.display().to_string()));
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/mounts", "--timeout=60s"]);
    let seen = inside(cluster, "cat /settings/color; echo; cat /hidden/word; echo; cat /scratch/note /host/word");
    assert_eq!(seen, "green\nsesame\nleft by init\nfrom the host\n");
    assert_eq!(inside(cluster, "echo $COLOR $ME; stat -L -c %a /hidden/word"), "green mounts\n400\n");
    let refused = cluster.try_kubectl(&["exec", "mounts", "-c", "main", "--", "sh", "-c", "echo x > /hidden/other"]);
    assert!(!refused.ok && refused.err.contains("Read-only file system"), "{refused:?}");
}

fn the_token_lets_in(cluster: &Cluster) {
    let ask = |path: &str| {
        format!(
            "wget -q -O- --header \"Authorization: Bearer $(cat /var/run/secrets/kubernetes.io/serviceaccount/token)\" \
             https://kubernetes.default.svc{path} 2>&1"
        )
    };
    let pod = inside(cluster, &ask("/api/v1/namespaces/default/pods/mounts"));
    assert!(pod.contains("\"kind\":\"Pod\""), "{pod}");
    let secret = cluster.try_kubectl(&["exec", "mounts", "-c", "main", "--", "sh", "-c", &ask("/api/v1/secrets")]);
    assert!(!secret.ok && secret.out.contains("403"), "{secret:?}");
    let namespace = inside(cluster, "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace");
    assert_eq!(namespace, "default");
}

fn a_change_reaches_the_file(cluster: &Cluster) {
    cluster.kubectl(&["patch", "configmap", "settings", "-p", r#"{"data":{"color":"blue"}}"#]);
    // A touched pod is synced at once; otherwise the kubelet looks about every minute.
    cluster.kubectl(&["annotate", "pod", "mounts", "touched=yes"]);
    cluster.until(&["exec", "mounts", "-c", "main", "--", "cat", "/settings/color"], |out| out == "blue");
    cluster.kubectl(&["delete", "pod", "mounts"]);
}
