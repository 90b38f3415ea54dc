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
    # Programs of the machine, with what they load.
    - {{name: usr, mountPath: /usr, readOnly: true}}
    - {{name: lib, mountPath: /lib, readOnly: true}}
    - {{name: lib64, mountPath: /lib64, readOnly: true}}
  volumes:
  - {{name: settings, configMap: {{name: settings}}}}
  - {{name: hidden, secret: {{secretName: hidden, defaultMode: 0400}}}}
  - {{name: scratch, emptyDir: {{}}}}
  - {{name: host, hostPath: {{path: {host}, type: DirectoryOrCreate}}}}
  - {{name: usr, hostPath: {{path: /usr}}}}
  - {{name: lib, hostPath: {{path: /lib}}}}
  - {{name: lib64, hostPath: {{path: /lib64}}}}
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

/// What is in the image can't speak TLS as it is today; kubectl from the machine can.
fn the_token_lets_in(cluster: &Cluster) {
    const DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let ask = |args: &str| {
        let line = format!(
            "HOME=/tmp kubectl --server=https://kubernetes.default.svc --certificate-authority={DIR}/ca.crt \
             --token=$(cat {DIR}/token) {args}"
        );
        cluster.try_kubectl(&["exec", "mounts", "-c", "main", "--", "sh", "-c", &line])
    };
    let pod = ask("get pod mounts -n default -o name");
    assert!(pod.ok && pod.out == "pod/mounts\n", "{pod:?}");
    let secrets = ask("get secrets");
    let forbidden = "User \"system:serviceaccount:default:reader\" cannot list resource \"secrets\"";
    assert!(!secrets.ok && secrets.err.contains(forbidden), "{secrets:?}");
    assert_eq!(inside(cluster, &format!("cat {DIR}/namespace")), "default");
}

fn a_change_reaches_the_file(cluster: &Cluster) {
    cluster.kubectl(&["patch", "configmap", "settings", "-p", r#"{"data":{"color":"blue"}}"#]);
    // A touched pod is synced at once; otherwise the kubelet looks about every minute.
    cluster.kubectl(&["annotate", "pod", "mounts", "touched=yes"]);
    cluster.until(&["exec", "mounts", "-c", "main", "--", "cat", "/settings/color"], |out| out == "blue");
    cluster.kubectl(&["delete", "pod", "mounts"]);
}
