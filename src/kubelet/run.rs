//! Start-up: flags and configuration into a running kubelet.

use crate::allocation::Allocations;
use crate::backoff::Backoff;
use crate::cgroups::{Cgroups, Driver, unified};
use crate::config::Config;
use crate::events::{Events, Level, LogRecorder, Recorder};
use crate::eviction::thresholds::{Signal, Threshold, thresholds};
use crate::eviction::{Evictor, enforced};
use crate::flags::{Options, command};
use crate::gc::{ContainerGc, Policy};
use crate::images::gc::ImageGc;
use crate::images::guarded::Guarded;
use crate::images::{Images, Pulling};
use crate::kubelet::{Inputs, Kubelet, Listed, Request};
use crate::logs::rotate::{self, rotate_all};
use crate::mirror::Mirrors;
use crate::node::addresses::detect;
use crate::node::agent::{Agent, Seen};
use crate::node::lease::LeaseKeeper;
use crate::node::machine::{Disk, Machine};
use crate::node::status::{Settings, differs};
use crate::objects::Objects;
use crate::pods::files::{DnsSettings, parse_resolver};
use crate::probes::ProbeManager;
use crate::runtime::cri::Cri;
use crate::runtime::resources::Rules;
use crate::runtime::security;
use crate::server::listen::serve;
use crate::sources::Manifests;
use crate::status::manager::StatusManager;
use crate::table::Table;
use crate::units::{ResourceList, from_bytes, from_milli, milli, value};
use crate::volumes::Volumes;
use crate::work::context::{Context, RuntimeHealth};
use crate::work::worker::Workers;
use base::Fault;
use base::component::Threads;
use base::flags::Flags;
use base::shutdown::{Shutdown, unless};
use client::{Connection, Informer, Selection};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::mpsc;

/// Runs the kubelet as a program; the first argument is its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    // What computes or blocks for long is done by the containers, by their runtime and by blocking threads.
    base::component::main(command(), args, Threads::One, |flags, shutdown| async move { run(&flags, shutdown).await })
}

/// Hands events to the API through the client's recorder.
struct ApiRecorder(client::Recorder);

impl Recorder for ApiRecorder {
    fn event(&self, about: ObjectReference, level: Level, reason: &str, message: String) {
        let kind = match level {
            Level::Normal => client::events::EventKind::Normal,
            Level::Warning => client::events::EventKind::Warning,
        };
        self.0.record(&about, kind, reason, message);
    }
}

/// Runs the kubelet until the shutdown; containers live on.
///
/// # Errors
/// When it can't start.
pub async fn run(flags: &Flags, shutdown: Shutdown) -> Result<(), Fault> {
    let options = Options::from_flags(flags)?;
    prepare(&options)?;
    let connection = connect(&options).await?;
    let events = events(&options, connection.as_ref());
    let cri = runtime(&options.config)?;
    let runtime_name = wait_for_runtime(&cri, &shutdown).await?;
    let ground = Ground::lay(&options, &cri, &events).await?;

    let (objects, object_changes) = Objects::new(connection.clone());
    let (ctx, wake_workers) = context(&options, connection.as_ref(), &cri, runtime_name, events, objects, &ground)?;
    let table = Arc::new(Table::default());
    let (finished_send, finished) = mpsc::unbounded_channel();
    let workers = Arc::new(Workers::new(ctx.clone(), finished_send));
    if wake_workers.set(Arc::downgrade(&workers)).is_err() {
        return Err("the workers were made twice".into());
    }
    let node: Arc<RwLock<Node>> = Arc::default();
    let pods = connection.as_ref().map(|connection| pods_of(connection, &options.node_name));
    let unsafe_sysctls = options.config.allowed_unsafe_sysctls.clone();
    let kubelet = Kubelet::new(ctx.clone(), table.clone(), workers, node.clone(), pods, unsafe_sysctls);
    let agent = agent(&options, &ctx, ground.reserved, ground.machine, &node, &kubelet.listed);
    // Admission looks at the node: it must be known before the first pod.
    agent.prepare().await;
    let _node_watch = connection.as_ref().map(|connection| watch_node(connection, &agent));

    let servers = serve(flags, &options, &ctx, &table, &kubelet.listed, &shutdown)?;
    let (requests, requested) = mpsc::channel(16);
    keep_house(&options, &kubelet, ground.thresholds, &agent, requests, &shutdown)?;
    if let Some(client) = &ctx.client {
        report(client, &options, &ctx, &shutdown);
    }
    tokio::spawn(agent.run(shutdown.clone()));
    let manifests = manifests(&options);
    tracing::info!(node = options.node_name, version = base::version::GIT_VERSION, "started kubelet");
    kubelet.run(Inputs { manifests, finished, objects: object_changes, requests: requested }, shutdown).await;
    // The ports are free again when this returns.
    for server in servers {
        server.await?;
    }
    Ok(())
}

/// Checks the machine, and makes the process and its directories fit.
fn prepare(options: &Options) -> Result<(), Fault> {
    for name in &options.idle {
        tracing::warn!(name, "the configuration sets what has no effect in this kubelet");
    }
    check_machine(&options.config)?;
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(options.root_dir.join("pods"))?;
    protect_self(options.config.oom_score_adj);
    open_files(options.config.max_open_files);
    Ok(())
}

/// Raises how many files the kubelet may open; the system has the last word.
fn open_files(most: i64) {
    let most = most.max(0) as u64;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| match soft < most {
        true => setrlimit(Resource::RLIMIT_NOFILE, most, hard.max(most)),
        false => Ok(()),
    });
    if let Err(error) = raised {
        tracing::warn!(most, %error, "can't raise how many files the kubelet may open");
    }
}

/// The recorder of events, with the first ones.
fn events(options: &Options, connection: Option<&Connection>) -> Events {
    let (config, node) = (&options.config, &options.node_name);
    let recorder: Arc<dyn Recorder> = match connection.map(Connection::client) {
        // Zero stands for the client's own pace.
        Some(client) => Arc::new(ApiRecorder(match (config.event_record_qps, config.event_burst) {
            (0, _) => client::Recorder::paced(client, "kubelet", node, 10.0, 5.0),
            (qps, burst) => client::Recorder::paced(client, "kubelet", node, burst.max(1).into(), qps.into()),
        })),
        None => Arc::new(LogRecorder),
    };
    let events = Events::new(recorder);
    events.node(node, Level::Normal, "Starting", "Starting kubelet.");
    if !unified() {
        let text = "cgroup v1 support is in maintenance mode, please migrate to cgroup v2";
        events.node(node, Level::Warning, "CgroupV1", text);
    }
    events
}

fn runtime(config: &Config) -> Result<Cri, Fault> {
    let images = match config.image_service_endpoint.as_str() {
        "" => &config.container_runtime_endpoint,
        own => own,
    };
    Ok(Cri::new(&config.container_runtime_endpoint, images, config.runtime_request_timeout.0)?)
}

/// What the machine has, and what of it is for pods.
struct Ground {
    machine: Machine,
    rules: Rules,
    thresholds: Vec<Threshold>,
    reserved: ResourceList,
    cgroups: Option<Cgroups>,
}

impl Ground {
    /// Looks at the machine and sets up the control groups above all pods.
    async fn lay(options: &Options, cri: &Cri, events: &Events) -> Result<Self, Fault> {
        let config = &options.config;
        let machine = Machine::read();
        let rules = rules(config, &machine);
        let thresholds = thresholds(config)?;
        let disk = Disk::of(&options.root_dir)?;
        let defended: &[Threshold] = if options.ignore_eviction { &[] } else { &thresholds };
        let reserved = reserved(config, defended, &machine, &disk)?;
        let cgroups = cgroups(config, cri, &rules).await?;
        if let Some(groups) = &cgroups {
            let all = machine.cpus * 1000 - reserved.get("cpu").map_or(0, milli);
            let memory = machine.memory - reserved_without_eviction(config)?;
            let enforce = config.enforce_node_allocatable.iter().any(|place| place == "pods");
            groups.set_up(enforce.then_some((all, memory)))?;
            if enforce {
                enforced(events, &options.node_name);
            }
        }
        if !config.pod_cidr.is_empty() && options.kubeconfig.is_none() {
            cri.set_pod_cidr(&config.pod_cidr).await?;
        }
        Ok(Self { machine, rules, thresholds, reserved, cgroups })
    }
}

/// Where the workers will be, for those that wake them and must keep nothing alive.
type LateWorkers = Arc<OnceLock<Weak<Workers>>>;

fn context(
    options: &Options, connection: Option<&Connection>, cri: &Cri, runtime_name: String, events: Events,
    objects: Arc<Objects>, ground: &Ground,
) -> Result<(Arc<Context>, LateWorkers), Fault> {
    let config = &options.config;
    let statuses = Arc::new(StatusManager::default());
    // The workers need the probes, and these wake the workers.
    let workers = LateWorkers::default();
    let waker = workers.clone();
    let probes = ProbeManager::new(cri.clone(), events.clone(), statuses.clone(), move |uid| {
        if let Some(workers) = waker.get().and_then(Weak::upgrade) {
            workers.wake(uid);
        }
    });
    let pulling = Pulling {
        parallel: config.parallel_pulls(),
        per_second: config.registry_pull_qps,
        burst: config.registry_burst,
    };
    let client = connection.map(Connection::client);
    let ctx = Context {
        node: options.node_name.clone(),
        cri: cri.clone(),
        runtime_name,
        mirrors: client.clone().map(|client| Mirrors::new(client, options.node_name.clone())),
        client,
        images: Images::new(cri.clone(), events.clone(), pulling, Guarded::load(&options.root_dir)?),
        events,
        statuses,
        probes,
        volumes: Volumes::new(options.root_dir.clone(), objects.clone()),
        objects,
        cgroups: ground.cgroups.clone(),
        rules: ground.rules.clone(),
        allocations: Allocations::load(&options.root_dir)?,
        backoff: Mutex::new(Backoff::crash_loop(signed(config.crash_loop_back_off.max_container_restart_period.0))),
        security: security::Settings {
            seccomp_root: options.root_dir.join("seccomp"),
            seccomp_default: config.seccomp_default,
        },
        dns: dns(config),
        log_root: config.pod_logs_dir.clone().into(),
        host_ips: RwLock::new(addresses(options)?.iter().map(ToString::to_string).collect()),
        allocatable: RwLock::default(),
        health: RwLock::new(RuntimeHealth::default()),
        resync: config.sync_frequency.0,
        relist: Arc::default(),
    };
    Ok((Arc::new(ctx), workers))
}

fn agent(
    options: &Options, ctx: &Arc<Context>, reserved: ResourceList, machine: Machine, node: &Arc<RwLock<Node>>,
    listed: &Listed,
) -> Agent {
    let config = &options.config;
    Agent {
        ctx: ctx.clone(),
        settings: settings(options, reserved),
        node: node.clone(),
        seen: Seen::default(),
        pressure: Arc::default(),
        listed: listed.clone(),
        root: options.root_dir.clone(),
        update: config.node_status_update_frequency.0,
        report: config.report_frequency(),
        hold: signed(config.eviction_pressure_transition_period.0),
        wake: Arc::default(),
        register: config.register_node,
        machine,
        damper: Mutex::default(),
        pod_cidr: Mutex::default(),
    }
}

/// Starts what keeps the node's memory, disk and logs within bounds.
fn keep_house(
    options: &Options, kubelet: &Kubelet, thresholds: Vec<Threshold>, agent: &Agent, requests: mpsc::Sender<Request>,
    shutdown: &Shutdown,
) -> Result<(), Fault> {
    let (config, ctx, table) = (&options.config, &kubelet.ctx, &kubelet.table);
    let (cri, node) = (&ctx.cri, options.node_name.clone());
    let images = Arc::new(ImageGc::new(cri.clone(), ctx.events.clone(), node, image_policy(config)));
    let evictor = Evictor {
        ctx: ctx.clone(),
        table: table.clone(),
        thresholds,
        soft_grace: config.eviction_max_pod_grace_period.into(),
        storage_limits: config.local_storage_capacity_isolation,
        pressure: agent.pressure.clone(),
        wake: agent.wake.clone(),
        requests,
        images: images.clone(),
    };
    tokio::spawn(shutdown.clone().run_until_cancelled_owned(evictor.run()));
    let gc = Arc::new(ContainerGc {
        cri: cri.clone(),
        table: table.clone(),
        workers: kubelet.workers.clone(),
        complete: kubelet.complete.clone(),
        log_root: ctx.log_root.clone(),
        policy: Policy {
            min_age: options.dead_age,
            per_container: options.dead_per_container,
            total: options.dead_containers,
        },
    });
    periodic(shutdown, Duration::from_secs(60), move || {
        let gc = gc.clone();
        async move { gc.run_once().await }
    });
    if config.image_gc_high_threshold_percent < 100 {
        periodic(shutdown, Duration::from_secs(300), move || {
            let images = images.clone();
            async move { images.run_once().await }
        });
    }
    let (cri, limits) = (cri.clone(), log_limits(config)?);
    periodic(shutdown, config.container_log_monitor_interval.0, move || {
        let cri = cri.clone();
        async move { rotate_all(&cri, limits).await }
    });
    Ok(())
}

/// Starts what tells the API server of pods and that the node lives.
fn report(client: &kube::Client, options: &Options, ctx: &Context, shutdown: &Shutdown) {
    tokio::spawn(shutdown.clone().run_until_cancelled_owned(ctx.statuses.clone().run(client.clone())));
    let lease = LeaseKeeper {
        client: client.clone(),
        node: options.node_name.clone(),
        seconds: options.config.node_lease_duration_seconds,
    };
    tokio::spawn(lease.run(shutdown.clone()));
}

/// Starts the reader of static pods, where there is a place for them.
fn manifests(options: &Options) -> Option<mpsc::Receiver<Vec<Arc<Pod>>>> {
    let config = &options.config;
    (!config.static_pod_path.is_empty()).then(|| {
        let (send, receive) = mpsc::channel(1);
        let path = config.static_pod_path.clone().into();
        tokio::spawn(Manifests::new(path, options.node_name.clone(), config.file_check_frequency.0).run(send));
        receive
    })
}

fn signed(duration: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX)
}

/// Refuses a machine that the configuration does not allow.
fn check_machine(config: &Config) -> Result<(), Fault> {
    if config.fail_cgroup_v1 && !unified() {
        return Err("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release".into());
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if config.fail_swap_on && swaps.lines().count() > 1 {
        return Err(format!(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false. /proc/swaps contained: {:?}",
            swaps.lines().collect::<Vec<_>>()
        )
        .into());
    }
    Ok(())
}

/// Asks the kernel to spare the kubelet. Not every container that it runs in may ask.
fn protect_self(score: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        tracing::debug!(score, %error, "can't set the kubelet's own out-of-memory score");
    }
}

async fn connect(options: &Options) -> Result<Option<Connection>, Fault> {
    let Some(kubeconfig) = &options.kubeconfig else {
        tracing::info!("standalone mode, no API client");
        return Ok(None);
    };
    if !kubeconfig.exists()
        && let Some(first) = &options.bootstrap_kubeconfig
    {
        crate::bootstrap::bootstrap(first, kubeconfig, &options.cert_dir, &options.node_name).await?;
    }
    Ok(Some(Connection::open(Some(kubeconfig), "kubelet").await?))
}

/// The runtime's name, as soon as it answers.
async fn wait_for_runtime(cri: &Cri, shutdown: &Shutdown) -> Result<String, Fault> {
    let mut told = false;
    loop {
        match cri.version().await {
            Ok(version) => {
                tracing::info!(
                    runtime = version.runtime_name,
                    version = version.runtime_version,
                    "container runtime answers"
                );
                return Ok(version.runtime_name);
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "waiting for the container runtime");
                }
            }
        }
        if unless(shutdown, tokio::time::sleep(Duration::from_millis(200))).await.is_none() {
            return Err("shut down while waiting for the container runtime".into());
        }
    }
}

fn rules(config: &Config, machine: &Machine) -> Rules {
    Rules {
        cpu_quota: config.cpu_cfs_quota,
        cpu_period: config.cpu_cfs_quota_period.0.as_micros() as i64,
        memory_capacity: machine.memory,
        unified: unified(),
        single_process_oom_kill: config.single_process_oom_kill.unwrap_or(!unified()),
        huge_page_sizes: machine.huge_page_names(),
    }
}

async fn cgroups(config: &Config, cri: &Cri, rules: &Rules) -> Result<Option<Cgroups>, Fault> {
    if !config.cgroups_per_qos {
        return Ok(None);
    }
    // A runtime that says which driver it uses knows best; older ones don't say.
    let driver = match cri.cgroup_driver().await {
        Ok(Some(k8s_cri::v1::CgroupDriver::Systemd)) => Driver::Systemd,
        Ok(Some(k8s_cri::v1::CgroupDriver::Cgroupfs)) => Driver::Cgroupfs,
        Ok(None) | Err(_) if config.cgroup_driver == "systemd" => Driver::Systemd,
        Ok(None) | Err(_) => Driver::Cgroupfs,
    };
    let pids = (config.pod_pids_limit > 0).then_some(config.pod_pids_limit);
    Ok(Some(Cgroups::new(driver, &config.cgroup_root, rules.clone(), pids)))
}

fn amount(list: &BTreeMap<String, String>, name: &str) -> Result<i64, Fault> {
    match list.get(name) {
        None => Ok(0),
        Some(text) => match api::quantity::Quantity::parse(text) {
            Ok(quantity) => Ok(quantity.milli_value()),
            Err(_) => Err(format!("invalid quantity {text:?} for reserved {name:?}").into()),
        },
    }
}

fn reserved_without_eviction(config: &Config) -> Result<i64, Fault> {
    Ok((amount(&config.kube_reserved, "memory")? + amount(&config.system_reserved, "memory")?) / 1000)
}

/// What is kept from pods: for the cluster's parts, for the system, and what an eviction would defend.
fn reserved(config: &Config, thresholds: &[Threshold], machine: &Machine, disk: &Disk) -> Result<ResourceList, Fault> {
    let both = |name: &str| -> Result<i64, Fault> {
        Ok(amount(&config.kube_reserved, name)? + amount(&config.system_reserved, name)?)
    };
    let hard = |signal| thresholds.iter().find(|t| t.signal == signal && t.grace.is_none());
    let defended = |signal, whole| hard(signal).map_or(0, |threshold| threshold.least.of(whole) as i64);
    let memory = both("memory")? / 1000 + defended(Signal::Memory, machine.memory as u64);
    let storage = both("ephemeral-storage")? / 1000 + defended(Signal::Disk, disk.capacity);
    let mut list = ResourceList::new();
    let mut put = |name: &str, quantity: Quantity| {
        if value(&quantity) > 0 {
            list.insert(name.into(), quantity);
        }
    };
    put("cpu", from_milli(both("cpu")?));
    put("memory", from_bytes(memory));
    put("ephemeral-storage", from_bytes(storage));
    Ok(list)
}

fn addresses(options: &Options) -> Result<Vec<IpAddr>, Fault> {
    let given: Vec<IpAddr> = options.node_ips.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
    match given.is_empty() {
        true => Ok(vec![detect(&options.node_name)?]),
        false => Ok(given),
    }
}

fn dns(config: &Config) -> DnsSettings {
    let node = match config.resolv_conf.as_str() {
        "" => parse_resolver("nameserver 127.0.0.1\nsearch .\n"),
        path => match std::fs::read_to_string(path) {
            Ok(text) => parse_resolver(&text),
            Err(error) => {
                tracing::warn!(path, %error, "can't read the node's resolver configuration");
                Default::default()
            }
        },
    };
    DnsSettings { cluster_dns: config.cluster_dns.clone(), cluster_domain: config.cluster_domain.clone(), node }
}

fn pods_of(connection: &Connection, node: &str) -> Informer<Pod> {
    let slot = connection.watch_slot();
    let api = Api::all(slot.client());
    Informer::start(api, &Selection::fields(format!("spec.nodeName={node}")), slot)
}

/// Follows the node's object: a range of addresses that it is given, and what others write to its status.
fn watch_node(connection: &Connection, agent: &Agent) -> Informer<Node> {
    let slot = connection.watch_slot();
    let selection = Selection::named(&agent.settings.name);
    let informer: Informer<Node> = Informer::start(Api::all(slot.client()), &selection, slot);
    let (node, seen, wake) = (agent.node.clone(), agent.seen.clone(), agent.wake.clone());
    informer.on_change(move |change| match change {
        client::Change::Removed(_) => wake.notify_one(),
        client::Change::Added(new) | client::Change::Updated(_, new) => {
            let before = node.read().spec.as_ref().and_then(|spec| spec.pod_cidr.clone());
            let cidr = new.spec.as_ref().and_then(|spec| spec.pod_cidr.clone());
            // The status is our own to make: what the API has of it is kept apart.
            let status = node.read().status.clone();
            let foreign = status.as_ref().zip(new.status.as_ref()).is_some_and(|(own, theirs)| differs(own, theirs));
            *seen.write() = new.status.clone();
            *node.write() = Node { status: status.or_else(|| new.status.clone()), ..Node::clone(new) };
            if cidr != before || foreign {
                wake.notify_one();
            }
        }
    });
    informer
}

fn settings(options: &Options, reserved: ResourceList) -> Settings {
    let config = &options.config;
    Settings {
        name: options.node_name.clone(),
        labels: options.node_labels.clone(),
        taints: config.register_with_taints.clone(),
        provider_id: config.provider_id.clone(),
        external_cloud: options.external_cloud,
        attach_by_controller: config.enable_controller_attach_detach,
        port: config.port,
        max_pods: config.max_pods.into(),
        pods_per_core: config.pods_per_core.into(),
        reserved,
        max_images: usize::try_from(config.node_status_max_images).ok(),
    }
}

fn image_policy(config: &Config) -> crate::images::gc::Policy {
    crate::images::gc::Policy {
        high: config.image_gc_high_threshold_percent.max(0) as u64,
        low: config.image_gc_low_threshold_percent.max(0) as u64,
        min_age: config.image_minimum_gc_age.0,
        max_age: config.image_maximum_gc_age.0,
    }
}

fn log_limits(config: &Config) -> Result<rotate::Limits, Fault> {
    let size = api::quantity::Quantity::parse(&config.container_log_max_size)
        .map_err(|_| format!("failed to parse containerLogMaxSize {:?}", config.container_log_max_size))?;
    Ok(rotate::Limits { size: size.value().max(0) as u64, files: config.container_log_max_files.max(2) as usize })
}

/// Does something every so often until the shutdown.
fn periodic<F: Future<Output = ()> + Send>(shutdown: &Shutdown, every: Duration, work: impl Fn() -> F + Send + 'static)
where
    F: 'static,
{
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        while unless(&shutdown, tokio::time::sleep(every)).await.is_some() {
            work().await;
        }
    });
}
