//! Runs the files in deploy/ and the settings of the book with real nodes, which form a cell. Ports and folders of the test
//! replace those of the containers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::deploy::{block, read, yaml};
use crate::harness::BINARY;
use crate::support::{Process, text, until};

type Environment = BTreeMap<String, String>;

/// The environment of the image.
fn image() -> Environment {
    let file = read("deploy/docker/Dockerfile").replace("\\\n", " ");
    let line = file.lines().find_map(|line| line.strip_prefix("ENV ")).expect("an ENV in the Dockerfile");
    line.split_whitespace()
        .map(|pair| pair.split_once('=').expect("NAME=VALUE"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The environment that a `docker run` in the header of the Dockerfile adds.
fn added_by(command: &str) -> Environment {
    let file = read("deploy/docker/Dockerfile").replace("\\\n#", " ");
    let line = file.lines().find(|line| line.contains(command)).expect("such a command in the Dockerfile");
    let words: Vec<_> = line.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == "-e").map(|pair| pair[1].split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The nodes of a deployment and their files.
struct Deployment {
    folder: TempDir,
    /// Ports by node id. They are free on all addresses, because a container listens on all of them.
    ports: BTreeMap<u64, u16>,
    nodes: BTreeMap<u64, Process>,
    /// Host names of the containers. All of them are this machine.
    hosts: Vec<String>,
}

impl Deployment {
    fn new(count: u64) -> Deployment {
        // Below the range of outgoing connections, which could take one in the meantime.
        let start = 10_000 + std::process::id() % 19_000;
        let mut free = (0..2_000).map(|step| (start + step) as u16).filter(|port| {
            static RESERVED: std::sync::Mutex<BTreeSet<u16>> = std::sync::Mutex::new(BTreeSet::new());
            TcpListener::bind(("0.0.0.0", *port)).is_ok() && RESERVED.lock().unwrap().insert(*port)
        });
        let ports = (1..=count).map(|id| (id, free.next().expect("a free port"))).collect();
        Deployment { folder: tempfile::tempdir().unwrap(), ports, nodes: BTreeMap::new(), hosts: Vec::new() }
    }

    /// Lets the nodes and verbs resolve these names, as the network of the containers does.
    fn name_hosts(&mut self, hosts: &[String]) {
        let lines = hosts.iter().map(|host| format!("127.0.0.1 {host}\n"));
        fs::write(self.path("hosts"), lines.collect::<String>()).unwrap();
        self.hosts = hosts.to_vec();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self, id: u64) -> String {
        format!("127.0.0.1:{}", self.ports[&id])
    }

    fn engine(&self) -> String {
        let all: Vec<_> = self.ports.keys().map(|id| self.address(*id)).collect();
        format!("lockkeeper://{}", all.join(","))
    }

    /// Replaces ports and folders in a text of the deployment by those of the test. `member` is the address of a node in the text.
    fn localize(&self, id: u64, text: &str, member: impl Fn(u64) -> String) -> String {
        let mut text = text.to_owned();
        for other in self.ports.keys() {
            let member = member(*other);
            let host = member.rsplit_once(':').map_or("", |(host, _)| host);
            // A name that resolves is kept: the node must serve requests for it.
            let address = match self.hosts.iter().any(|name| name == host) {
                true => format!("{host}:{}", self.ports[other]),
                false => self.address(*other),
            };
            text = text.replace(&member, &address);
        }
        text.replace("0.0.0.0:7420", &format!("0.0.0.0:{}", self.ports[&id]))
            .replace("/secret/", &format!("{}/", self.path("secret").display()))
            .replace("/data", &self.path(&format!("data-{id}")).display().to_string())
    }

    /// The binary in exactly this environment.
    fn command(&self, environment: &Environment) -> Command {
        const WITH_HOSTS: &str = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let mut command = Command::new("unshare");
        if !self.hosts.is_empty() {
            command.args(["--mount", "sh", "-c", WITH_HOSTS]).arg(self.path("hosts"));
        }
        command.args(["setpriv", "--pdeathsig", "KILL", BINARY]).env_clear().envs(environment);
        command.env("PATH", std::env::var_os("PATH").unwrap()).current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    fn spawn(&mut self, id: u64, words: &[String], environment: &Environment) {
        let output = |kind: &str| File::create(self.path(&format!("{id}.{kind}"))).unwrap();
        let mut command = self.command(environment);
        command.args(words).stdout(output("stdout")).stderr(output("stderr"));
        self.nodes.insert(id, Process::spawn(&mut command));
    }

    /// Waits until all nodes serve.
    fn until_all_serve(&mut self) {
        for (id, process) in &mut self.nodes {
            let text_of = |kind: &str| {
                fs::read_to_string(self.folder.path().join(format!("{id}.{kind}"))).unwrap_or_default()
            };
            until(&format!("node {id} to serve"), || {
                let ended = process.try_wait().unwrap();
                assert!(ended.is_none(), "node {id} has ended with {ended:?}: {}", text_of("stderr"));
                text_of("stdout").contains("lockkeeper serves on").then_some(())
            });
        }
    }

    /// The output of a verb in this environment.
    fn verb(&self, environment: &Environment, words: &[&str]) -> Output {
        let mut command = self.command(environment);
        command.args(words).env("LOCKKEEPER_ENGINE", self.engine()).output().unwrap()
    }

    fn assert_works(&self, environment: &Environment) {
        for words in [&["run", "demo", "--", "true"][..], &["status"]] {
            let output = self.verb(environment, words);
            assert!(output.status.success(), "{words:?}: {output:?}");
        }
    }

    /// The status of an answer, without checking the certificate, like the probes of Kubernetes.
    fn curl(&self, id: u64, scheme: &str, path: &str) -> String {
        let url = format!("{scheme}://{}{path}", self.address(id));
        let output =
            Command::new("curl").args(["-skS", "-o", "/dev/null", "-w", "%{http_code}", &url]).output();
        text(&output.unwrap().stdout)
    }

    /// The status of an answer to a request for this host.
    fn status_for(&self, id: u64, host: &str) -> String {
        let header = format!("host: {host}:7420");
        let url = format!("http://{}/v1/status", self.address(id));
        let words = ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", &header, &url];
        text(&Command::new("curl").args(words).output().unwrap().stdout)
    }

    /// Creates the secret as the book shows, with a `kubectl` that records its arguments.
    fn create_secret(&self) -> Vec<String> {
        let (work, tools, mounted) = (self.path("work"), self.path("tools"), self.path("secret"));
        for folder in [&work, &tools, &mounted] {
            fs::create_dir(folder).unwrap();
        }
        write_program(&tools.join("kubectl"), "#!/bin/sh\nprintf '%s\\n' \"$*\" >> ../calls\n");
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
        let script = block("docs/install.md", "## Kubernetes", "sh");
        let made =
            Command::new("sh").args(["-ec", &script]).env("PATH", path).current_dir(&work).output().unwrap();
        assert!(made.status.success(), "openssl makes the secret: {made:?}");
        let calls = fs::read_to_string(self.path("calls")).unwrap();
        let create = calls.lines().find(|line| line.contains("create secret")).expect("a secret");
        for file in create.split_whitespace().filter_map(|word| word.strip_prefix("--from-file=")) {
            fs::copy(work.join(file), mounted.join(file)).unwrap();
        }
        create.split_whitespace().map(str::to_owned).collect()
    }
}

fn write_program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn texts(value: &Value) -> Environment {
    let pairs = value.as_object().unwrap().iter();
    pairs.map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned())).collect()
}

fn no_member(_: u64) -> String {
    "no other node".to_owned()
}

#[test]
fn image_serves_with_the_documented_commands_and_not_without_settings() {
    let mut deployment = Deployment::new(1);
    deployment.create_secret();
    let started = |deployment: &Deployment, added: Environment| -> Environment {
        let all = image().into_iter().chain(added);
        all.map(|(name, value)| (name, deployment.localize(1, &value, no_member))).collect()
    };
    let serve = ["serve".to_owned()];
    let alone = deployment.command(&started(&deployment, Environment::new())).args(&serve).output().unwrap();
    assert!(!alone.status.success(), "{alone:?}");
    assert!(text(&alone.stderr).contains("--insecure"), "{alone:?}");

    // Without `-p 127.0.0.1:` every machine could connect.
    for (command, scheme) in [("docker run -p 127.0.0.1:", "http"), ("docker run -p 7420:", "https")] {
        let environment = started(&deployment, added_by(command));
        let open = environment.contains_key("LOCKKEEPER_INSECURE");
        assert_eq!(open, scheme == "http", "{environment:?}");
        deployment.spawn(1, &serve, &environment);
        deployment.until_all_serve();
        deployment.assert_works(&environment);
        let file = read("deploy/docker/Dockerfile");
        let check = file.split("HEALTHCHECK ").nth(1).unwrap().split("CMD ").nth(1).unwrap();
        let check: Vec<String> = serde_json::from_str(check.lines().next().unwrap()).unwrap();
        assert_eq!(check[0], "/lockkeeper");
        let words: Vec<_> = check[1..].iter().map(String::as_str).collect();
        let healthy = deployment.verb(&environment, &words);
        assert!(healthy.status.success(), "{healthy:?}");
        assert_eq!(deployment.curl(1, scheme, "/v1/status"), if open { "200" } else { "401" });
        drop(deployment.nodes.remove(&1));
    }
}

#[test]
fn compose_forms_a_cell() {
    let compose = yaml("deploy/docker/compose.yaml").remove(0);
    let services = compose["services"].as_object().unwrap();
    let mut deployment = Deployment::new(services.len() as u64);
    deployment.name_hosts(&services.keys().cloned().collect::<Vec<_>>());
    let mut environment = Environment::new();
    for service in services.values() {
        environment = image();
        environment.extend(texts(&service["environment"]));
        let mounted = service["volumes"][0].as_str().unwrap().rsplit_once(':').unwrap().1;
        assert_eq!(environment["LOCKKEEPER_DATA_DIR"], mounted, "data is kept");
        for port in service["ports"].as_array().unwrap() {
            assert!(
                port.as_str().unwrap().starts_with("127.0.0.1:"),
                "insecure, and reachable by others: {port}"
            );
        }
        let id = environment["LOCKKEEPER_NODE_ID"].parse().unwrap();
        for value in environment.values_mut() {
            *value = deployment.localize(id, value, |other| format!("node{other}:7420"));
        }
        deployment.spawn(id, &["serve".to_owned()], &environment);
    }
    deployment.until_all_serve();
    deployment.assert_works(&environment);
    // In the network of the containers, clients use these names: each node serves requests for all of them.
    for id in deployment.ports.keys() {
        for name in services.keys() {
            assert_eq!(deployment.status_for(*id, name), "200", "node {id}, asked for as {name}");
        }
        assert_eq!(deployment.status_for(*id, "node9"), "403", "node {id}");
    }
}

#[test]
fn kubernetes_manifests_form_a_cell() {
    let set = yaml("deploy/kubernetes/statefulset.yaml").remove(0);
    let config = yaml("deploy/kubernetes/config.yaml").remove(0);
    let namespace = yaml("deploy/kubernetes/kustomization.yaml").remove(0)["namespace"].clone();
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mut deployment = Deployment::new(set["spec"]["replicas"].as_u64().unwrap());
    let calls = deployment.create_secret();
    let secret = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "secret").unwrap();
    let wanted = ["-n", namespace.as_str().unwrap(), "create", "secret", "generic"];
    assert_eq!(calls[..5], wanted, "{calls:?}");
    assert_eq!(
        calls[5],
        secret["secret"]["secretName"].as_str().unwrap(),
        "the secret that the pods wait for"
    );
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().any(|mount| mount["name"] == "secret" && mount["mountPath"] == "/secret"));

    let (name, service) = (set["metadata"]["name"].as_str().unwrap(), set["spec"]["serviceName"].as_str());
    let host = |id: u64| format!("{name}-{id}.{}.{}.svc", service.unwrap(), namespace.as_str().unwrap());
    for known in (1..=3).map(host).chain(["lockkeeper-client.lockkeeper.svc".to_owned()]) {
        let certificate = deployment.path("secret/tls_cert");
        let mut check = Command::new("openssl");
        let check = check.args(["x509", "-noout", "-checkhost", &known, "-in"]).arg(certificate).output();
        let text_of = text(&check.unwrap().stdout);
        assert!(text_of.contains("does match"), "the certificate is for {known}: {text_of}");
    }
    let mut environment = Environment::new();
    for id in deployment.ports.keys().copied().collect::<Vec<_>>() {
        let member = |other| format!("{}:7420", host(other));
        let file = deployment.path(&format!("{id}.toml"));
        let settings = config["data"]["lockkeeper.toml"].as_str().unwrap();
        fs::write(&file, deployment.localize(id, settings, member)).unwrap();
        environment = image();
        for one in container["env"].as_array().unwrap() {
            let value = one["value"].as_str().map_or(id.to_string(), str::to_owned);
            environment.insert(one["name"].as_str().unwrap().to_owned(), value);
        }
        for value in environment.values_mut() {
            *value = deployment.localize(id, value, member);
        }
        let words: Vec<String> = container["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| {
                let word = word.as_str().unwrap();
                word.replace("/etc/lockkeeper/lockkeeper.toml", &file.display().to_string())
            })
            .collect();
        deployment.spawn(id, &words, &environment);
    }
    deployment.until_all_serve();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let probe = &container[probe]["httpGet"];
        let scheme = probe["scheme"].as_str().unwrap_or("HTTP").to_lowercase();
        assert_eq!(deployment.curl(1, &scheme, probe["path"].as_str().unwrap()), "200", "{probe}");
    }
    assert_eq!(deployment.curl(1, "https", "/v1/status"), "401", "a stranger");
    // `kubectl exec`: the environment of the pod configures the verbs.
    deployment.assert_works(&environment);
    let granted = deployment.verb(&environment, &["access", "grant", "ci", "builds/", "acquire"]);
    assert!(granted.status.success(), "{granted:?}");
}

#[test]
fn documented_settings_form_a_cell() {
    let mut deployment = Deployment::new(3);
    deployment.create_secret();
    let settings = block("docs/install.md", "## Settings", "toml");
    for id in 1..=3 {
        let own = settings
            .replace("/var/lib/lockkeeper", "/data")
            .replace("/etc/lockkeeper/", "/secret/")
            .replace("node_id = 1", &format!("node_id = {id}"));
        let file = deployment.path(&format!("{id}.toml"));
        fs::write(&file, deployment.localize(id, &own, |other| format!("10.0.0.{other}:7420"))).unwrap();
        let words = ["serve".to_owned(), "--config".to_owned(), file.display().to_string()];
        deployment.spawn(id, &words, &Environment::new());
    }
    deployment.until_all_serve();
    let client = [("LOCKKEEPER_CA", "peer_ca"), ("LOCKKEEPER_AUTH_TOKEN_FILE", "root_token_file")];
    let known = client
        .map(|(name, file)| (name.to_owned(), format!("{}/{file}", deployment.path("secret").display())));
    deployment.assert_works(&known.into());
}
