//! The files in deploy/ are consistent with each other and with the binary. Needs neither Docker nor a cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_net::credentials;
use serde::Deserialize;
use serde_json::Value;

use crate::harness::skip::skip_or_fail;
use crate::support::{BINARY, lockkeeper, text};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All documents of a YAML file, with merge keys resolved.
pub(crate) fn yaml(path: &str) -> Vec<Value> {
    let text = read(path);
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| {
            let mut value = serde_yaml_ng::Value::deserialize(document)
                .unwrap_or_else(|error| panic!("{path} is not YAML: {error}"));
            value.apply_merge().unwrap();
            serde_json::to_value(value).unwrap()
        })
        .collect()
}

/// The first block of code in this language below a heading of a page.
pub(crate) fn block(page: &str, heading: &str, language: &str) -> String {
    let text = read(page);
    let below = text.split_once(heading).unwrap_or_else(|| panic!("{page} has no {heading}")).1;
    let code = below.split_once(&format!("```{language}\n")).unwrap_or_else(|| panic!("no {language}")).1;
    code.split_once("```").unwrap().0.to_owned()
}

/// The settings of `serve` and of the verbs, as variables.
fn variables() -> BTreeSet<String> {
    let output = lockkeeper().args(["config", "show", "--output", "json"]).output().unwrap();
    let settings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_serve =
        settings.as_object().unwrap().keys().map(|key| format!("LOCKKEEPER_{}", key.to_uppercase()));
    let of_verbs = [credentials::CA, credentials::TOKEN_FILE].map(str::to_owned);
    of_serve.chain(of_verbs).collect()
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = read("deploy/systemd/lockkeeper.service");
    for line in
        ["Type=notify", "DynamicUser=yes", "NoNewPrivileges=yes", "ExecStart=/usr/bin/lockkeeper serve"]
    {
        assert!(unit.lines().any(|found| found == line), "{line} is missing");
    }
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip_or_fail(
            "systemd-analyze is not installed, which verifies the unit",
            "install the package systemd",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lockkeeper.service");
    // systemd checks that the program exists.
    fs::write(&path, unit.replace("/usr/bin/lockkeeper", BINARY)).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
    let messages = text(&output.stderr);
    let own: Vec<_> = messages.lines().filter(|line| line.contains("lockkeeper.service")).collect();
    assert!(own.is_empty(), "{own:#?}");
}

#[test]
fn dockerfile_copies_existing_files_and_runs_unprivileged() {
    let file = read("deploy/docker/Dockerfile");
    let ignored = read("deploy/docker/Dockerfile.dockerignore");
    let mut copied = Vec::new();
    for line in file.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from=")) {
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        copied.extend(words[..words.len() - 1].iter().map(|word| (*word).to_owned()));
    }
    assert!(copied.contains(&"Cargo.lock".to_owned()), "{copied:?}");
    for path in &copied {
        assert!(root().join(path).exists(), "{path} is copied and does not exist");
        assert!(ignored.lines().any(|line| line == format!("!{path}")), "{path} is not in the build context");
    }
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let version = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(
        file.contains(&format!("FROM rust:{version}-alpine")),
        "the compiler must be the minimum supported version {version}"
    );
    assert!(file.contains("\nFROM scratch\n") && file.contains("\nUSER 65532:65532\n"));
    let known = variables();
    let named = file
        .split(|c: char| !(c.is_ascii_uppercase() || c == '_'))
        .filter(|word| word.starts_with("LOCKKEEPER_"));
    for name in named {
        assert!(known.contains(name), "{name} is not a setting");
    }
}

#[test]
fn compose_lists_its_three_nodes_as_members() {
    let compose = yaml("deploy/docker/compose.yaml").remove(0);
    let services = compose["services"].as_object().unwrap();
    assert_eq!(services.len(), 3);
    let known = variables();
    let mut ids = BTreeSet::new();
    let mut folders = BTreeSet::new();
    for (name, service) in services {
        assert!(
            root()
                .join("deploy/docker")
                .join(service["build"]["context"].as_str().unwrap())
                .join("Cargo.toml")
                .exists()
        );
        let variables = service["environment"].as_object().unwrap();
        assert!(variables.keys().all(|name| known.contains(name)), "{variables:?}");
        let id = variables["LOCKKEEPER_NODE_ID"].as_str().unwrap();
        let member = format!("{id}={name}:7420");
        assert!(
            variables["LOCKKEEPER_CELL"].as_str().unwrap().split(',').any(|found| found == member),
            "{member}"
        );
        ids.insert(id.to_owned());
        let volume = service["volumes"][0].as_str().unwrap().split(':').next().unwrap().to_owned();
        assert!(compose["volumes"].as_object().unwrap().contains_key(&volume));
        folders.insert(volume);
    }
    assert_eq!((ids.len(), folders.len()), (3, 3), "each node has its own id and folder");
}

#[test]
fn manifests_are_consistent_with_each_other_and_the_binary() {
    let kustomization = yaml("deploy/kubernetes/kustomization.yaml").remove(0);
    let listed: BTreeSet<_> = kustomization["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    let there: BTreeSet<_> = fs::read_dir(root().join("deploy/kubernetes"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    assert_eq!(listed, there);
    let all: Vec<Value> = listed.iter().flat_map(|name| yaml(&format!("deploy/kubernetes/{name}"))).collect();
    for object in &all {
        for field in ["/apiVersion", "/kind", "/metadata/name"] {
            assert!(object.pointer(field).is_some_and(Value::is_string), "{field} is missing: {object}");
        }
    }
    let kind = |kind: &str| all.iter().filter(move |object| object["kind"] == kind).collect::<Vec<_>>();
    let set = kind("StatefulSet")[0];
    let label = &set["spec"]["selector"]["matchLabels"];
    assert_eq!(&set["spec"]["template"]["metadata"]["labels"], label);
    for service in kind("Service") {
        assert_eq!(&service["spec"]["selector"], label);
    }
    assert_eq!(&kind("PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"], label);
    assert_eq!(kind("PodDisruptionBudget")[0]["spec"]["maxUnavailable"], 1);
    let service = set["spec"]["serviceName"].as_str().unwrap();
    let headless = kind("Service").into_iter().find(|found| found["metadata"]["name"] == service).unwrap();
    assert_eq!(headless["spec"]["clusterIP"], "None");
    assert_eq!(
        headless["spec"]["publishNotReadyAddresses"], true,
        "nodes that are not ready yet must find each other"
    );

    let container = &set["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    let names = container["env"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
    let known = variables();
    assert!(names.clone().all(|name| known.contains(name)), "{:?}", names.collect::<Vec<_>>());

    // The pods' own names are the members of the cell.
    let (set_name, namespace) = (&set["metadata"]["name"], &kustomization["namespace"]);
    let first = set["spec"]["ordinals"]["start"].as_u64().unwrap();
    let members: Vec<_> = (first..first + set["spec"]["replicas"].as_u64().unwrap())
        .map(|id| {
            let (set_name, namespace) = (set_name.as_str().unwrap(), namespace.as_str().unwrap());
            format!("{id}={set_name}-{id}.{service}.{namespace}.svc:7420")
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("lockkeeper.toml");
    fs::write(&settings, kind("ConfigMap")[0]["data"]["lockkeeper.toml"].as_str().unwrap()).unwrap();
    let shown = lockkeeper()
        .args(["config", "show", "--output", "json", "--config"])
        .arg(&settings)
        .output()
        .unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["cell"]["value"], members.join(","));
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(
        mounts.iter().any(|mount| mount["mountPath"] == shown["data_dir"]["value"]),
        "data is kept: {mounts:?}"
    );

    // References between the objects resolve.
    let names = |list: &Value| -> BTreeSet<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    let pod = &set["spec"]["template"]["spec"];
    let volumes = names(&pod["volumes"]);
    let claims = set["spec"]["volumeClaimTemplates"].as_array().unwrap();
    let claims: BTreeSet<_> =
        claims.iter().map(|claim| claim["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names(&container["volumeMounts"]), volumes.union(&claims).cloned().collect());
    let maps: Vec<_> =
        pod["volumes"].as_array().unwrap().iter().map(|one| &one["configMap"]["name"]).collect();
    assert!(maps.contains(&&kind("ConfigMap")[0]["metadata"]["name"]), "{maps:?}");
    let ports = names(&container["ports"]);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(ports.contains(container[probe]["httpGet"]["port"].as_str().unwrap()), "{probe}");
    }
    for service in kind("Service") {
        assert!(ports.contains(service["spec"]["ports"][0]["targetPort"].as_str().unwrap()), "{service}");
    }
    for constraint in pod["topologySpreadConstraints"].as_array().unwrap() {
        assert_eq!(&constraint["labelSelector"]["matchLabels"], label);
    }
    only_known_fields(&all);
}

/// Kubernetes refuses or ignores unknown fields: here they are typing errors.
fn only_known_fields(manifests: &[Value]) {
    const KNOWN: &[(&str, &[&str])] = &[
        (
            "/spec",
            &[
                "serviceName",
                "replicas",
                "ordinals",
                "podManagementPolicy",
                "selector",
                "template",
                "volumeClaimTemplates",
            ],
        ),
        (
            "/spec/template/spec",
            &[
                "terminationGracePeriodSeconds",
                "automountServiceAccountToken",
                "enableServiceLinks",
                "securityContext",
                "topologySpreadConstraints",
                "containers",
                "volumes",
            ],
        ),
        (
            "/spec/template/spec/securityContext",
            &["runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile"],
        ),
        (
            "/spec/template/spec/containers/0",
            &[
                "name",
                "image",
                "args",
                "env",
                "ports",
                "startupProbe",
                "livenessProbe",
                "readinessProbe",
                "resources",
                "securityContext",
                "volumeMounts",
            ],
        ),
        (
            "/spec/template/spec/containers/0/securityContext",
            &["allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"],
        ),
        ("/spec/template/spec/containers/0/startupProbe", PROBE),
        ("/spec/template/spec/containers/0/livenessProbe", PROBE),
        ("/spec/template/spec/containers/0/readinessProbe", PROBE),
        ("/spec/template/spec/containers/0/readinessProbe/httpGet", &["path", "port", "scheme"]),
        ("/spec/template/spec/volumes/0", &["name", "configMap", "secret"]),
        ("/spec/template/spec/volumes/1", &["name", "configMap", "secret"]),
    ];
    const PROBE: &[&str] = &["httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"];
    for manifest in manifests {
        let top: &[&str] = &["apiVersion", "kind", "metadata", "spec", "data"];
        assert!(manifest.as_object().unwrap().keys().all(|key| top.contains(&key.as_str())), "{manifest}");
    }
    let set = manifests.iter().find(|one| one["kind"] == "StatefulSet").unwrap();
    for (place, known) in KNOWN {
        for key in set.pointer(place).and_then(Value::as_object).expect(place).keys() {
            assert!(known.contains(&key.as_str()), "{place} has no field {key}");
        }
    }
}
