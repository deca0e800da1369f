//! From an environment's table in the configuration to its running pool. Owns what stands behind its grants; where its file
//! is looked up is `env::open`'s.

use crate::caches;
use crate::env::open::{Place, place};
use crate::env::registry::check_pinned;
use crate::failure::{Failure, input};
use crate::remote::Client;
use crate::remote::chat::ChatModels;
use crate::remote::model::RemoteModel;
use prl_config::{EnvHost, LlmRole, Loaded, Source};
use prl_environment::{
    Assets, EnvFile, Grant, Http, Isolation, Kv, Limits, LoadConfig, LogSink, Pool, PoolConfig, Sandbox, SandboxConfig,
    Server, Services,
};
use prl_registry::Reference;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The folder for compiled components; none without a home.
pub fn compiled_cache() -> Option<PathBuf> {
    caches::folder("wasm")
}

/// A sandbox with its cache in the usual place.
pub fn sandbox() -> Result<Sandbox, Failure> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    Sandbox::new(&SandboxConfig { cache_dir: compiled_cache(), threads }).map_err(Failure::input)
}

/// What reaches the environment that is served at `url`.
pub fn server(url: &str) -> Server {
    Server { url: url.to_owned(), client: Arc::new(Client::new()), bridge: None }
}

/// What must be said of an environment that the sandbox does not hold.
pub fn outside(pool: &Pool) -> Option<String> {
    let url = pool.file().unsandboxed()?;
    Some(format!("environment `{}` runs outside the sandbox at {url}", pool.name()))
}

/// A time limit; what is beyond 30 years is none.
pub fn seconds(limit: f64) -> Duration {
    Duration::from_secs_f64(limit.min(30.0 * 365.0 * 24.0 * 3600.0))
}

/// Opens one environment of the configuration. `key` is the dotted path of its table.
pub async fn environment<C>(
    sandbox: &Sandbox,
    loaded: &Loaded<C>,
    key: &str,
    host: &EnvHost,
    max_rollouts: usize,
    log: LogSink,
) -> Result<Pool, Failure> {
    let dir = loaded.dir_of(&format!("{key}.id"));
    let written = match loaded.source(&format!("{key}.id")) {
        place @ Source::File { .. } => format!("{place}: "),
        _ => String::new(),
    };
    let subject = format!("{written}environment `{}` (`{key}`)", host.name);
    if Reference::is_meant(&host.id) {
        check_pinned(&host.id).map_err(input(&subject))?;
    }
    let file = match place(&host.id, dir).map_err(input(&subject))? {
        Place::File(path) => {
            let load = LoadConfig { limits: limits(host), grants: host.grants.iter().copied().map(grant).collect() };
            sandbox.load(&path, &load).await.map_err(input(&subject))?
        }
        Place::Server(url) => {
            if !host.grants.is_empty() {
                return Err(Failure::input(format_args!(
                    "{subject}: `{key}.grants` is for environments in the sandbox; what is served at `{url}` reaches what it \
                     likes: remove the key"
                )));
            }
            sandbox.connect(&server(&url), &limits(host)).await.map_err(input(&subject))?
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = match &host.pool {
        prl_config::Pool::Elastic(pool) => {
            max_rollouts.div_ceil(pool.multiplex).clamp(1, pool.max_workers.unwrap_or(cores))
        }
        prl_config::Pool::Static(pool) => pool.num_workers,
    };
    let config = PoolConfig {
        name: host.name.clone(),
        args: serde_json::Value::Object(host.args.clone()),
        weights: weights(host),
        workers,
        max_rollouts: host.max_concurrent.unwrap_or(max_rollouts),
        isolation: match host.isolation {
            prl_config::Isolation::Rollout => Isolation::Rollout,
            prl_config::Isolation::Worker => Isolation::Worker,
        },
        services: services(&file, host, key)?,
        log,
    };
    Pool::start(&file, config).await.map_err(input(format_args!("{written}`{key}`")))
}

/// The weights that a table sets; what is no number was refused before.
pub fn weights(host: &EnvHost) -> BTreeMap<String, f64> {
    host.weights.iter().filter_map(|(name, weight)| Some((name.clone(), weight.as_f64()?))).collect()
}

fn limits(host: &EnvHost) -> Limits {
    // A rollout is cut off and scored when its time is over; this is for one that does not even come to its score.
    let rollout = host.timeout.rollout.map_or(f64::INFINITY, |limit| limit + 4.0 * host.timeout.call);
    Limits {
        memory_bytes: u64::from(host.memory_mb) << 20,
        call_timeout: seconds(host.timeout.call),
        rollout_timeout: seconds(rollout),
        fuel: host.fuel,
        ..Limits::default()
    }
}

fn grant(grant: prl_config::Grant) -> Grant {
    match grant {
        prl_config::Grant::Assets => Grant::Assets,
        prl_config::Grant::Http => Grant::Http,
        prl_config::Grant::Kv => Grant::Kv,
        prl_config::Grant::Llm => Grant::Llm,
    }
}

fn services(file: &EnvFile, host: &EnvHost, key: &str) -> Result<Services, Failure> {
    let mut services = Services::default();
    let client = Client::new();
    for grant in &host.grants {
        match grant {
            prl_config::Grant::Assets => {
                let dir = file.assets_dir();
                let opened = Assets::open(&dir);
                services.assets = Some(opened.map_err(input(format_args!("`{key}.grants`: `{}`", dir.display())))?);
            }
            prl_config::Grant::Http => {
                let http = Http::new(&host.http_allow, Arc::new(client.clone()));
                services.http = Some(http.map_err(input(format_args!("`{key}.http_allow`")))?);
            }
            prl_config::Grant::Kv => services.kv = Some(Kv::new(u64::from(host.kv_mb) << 20)),
            prl_config::Grant::Llm => {
                let roles = host.llm.iter().enumerate().map(|(i, role)| {
                    let room = Arc::new(Semaphore::new(role.max_concurrent.min(Semaphore::MAX_PERMITS)));
                    Ok((role.role.clone(), (model(role, &format!("{key}.llm.{i}"))?, room)))
                });
                let roles = roles.collect::<Result<BTreeMap<_, _>, Failure>>()?;
                services.llm = Some(Arc::new(ChatModels::new(client.clone(), roles)));
            }
        }
    }
    Ok(services)
}

fn model(role: &LlmRole, key: &str) -> Result<RemoteModel, Failure> {
    let api_key = match &role.api_key_var {
        Some(variable) => Some(std::env::var(variable).map_err(|_| {
            Failure::input(format_args!("`{key}.api_key_var`: there is no variable `{variable}` with the key"))
        })?),
        None => None,
    };
    Ok(RemoteModel {
        base_url: role.base_url.clone(),
        model: role.model.clone(),
        api_key,
        timeout: seconds(role.timeout),
        max_retries: role.max_retries,
    })
}
