//! From the words of a command line to an opened environment. Owns where a bare name, a folder or a file leads, and which
//! flags stand behind which grant; must not know what is done with it.

use crate::environments::{sandbox, seconds, server};
use crate::failure::{Failure, input, run as running};
use crate::remote::Client;
use crate::remote::chat::{ChatModels, Roles};
use crate::remote::model::{RemoteModel, key_of};
use clap::Args;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{
    Assets, EnvFile, Grant, Http, Isolation, Kv, Limits, Llm, LlmRequest, LlmResponse, LoadConfig, LoadError, LogLevel,
    LogSink, Pool, PoolConfig, Sandbox, SearchPath, Server, ServiceError, Services,
};
use prl_registry::Reference;
use prl_types::{Message, Role};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Requests under way at once to one model of an environment.
const LLM_REQUESTS: usize = 32;
/// Bound of an environment's scratch map, bytes.
const KV_BYTES: u64 = 64 << 20;
/// Variable with the key of the models' servers.
pub const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// Which environment, how it is set up, and what it may reach.
#[derive(Args, Clone)]
pub struct Asked {
    /// A `.wasm` file, a folder that holds one, an oci:// reference, a name that is looked up as in a run's configuration, or
    /// the http:// address of a served environment.
    pub env: String,
    /// Its arguments, a JSON object.
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub args: String,
    /// A model it may ask; the key comes from OPENAI_API_KEY.
    #[arg(long = "llm", value_name = "ROLE=MODEL@URL")]
    pub llm: Vec<String>,
    /// An address it may reach, and all below it.
    #[arg(long, value_name = "URL")]
    pub http_allow: Vec<String>,
    /// Cap on an instance's memory, MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub memory_mb: u32,
    /// Seconds one call into it may take.
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    pub call_timeout: f64,
    /// Print what it logs to standard error.
    #[arg(short, long)]
    pub verbose: bool,
}

impl Asked {
    /// Just this environment, with room and time enough for a look at it.
    pub fn plain(env: &str) -> Self {
        Asked {
            env: env.into(),
            args: "{}".into(),
            llm: Vec::new(),
            http_allow: Vec::new(),
            memory_mb: 1024,
            call_timeout: 60.0,
            verbose: false,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            memory_bytes: u64::from(self.memory_mb) << 20,
            call_timeout: seconds(self.call_timeout),
            rollout_timeout: seconds(f64::INFINITY),
            ..Limits::default()
        }
    }
}

/// What an environment is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Work: it needs what it asks for.
    Use,
    /// A look at it: models and servers that no flag names are stood in for.
    Look,
}

/// A loaded environment and what stands behind its grants.
pub struct Opened {
    /// The file.
    pub file: EnvFile,
    /// Its arguments.
    pub args: Value,
    services: Services,
    log: LogSink,
    /// Roles that [`Purpose::Look`] put a stand-in behind.
    pub stood_in: Vec<String>,
}

/// Where an environment is.
pub enum Place {
    /// In a file.
    File(PathBuf),
    /// At a server, outside the sandbox.
    Server(String),
}

/// The place that `what` names.
///
/// # Errors
/// As [`find`].
pub fn place(what: &str, beside: &Path) -> Result<Place, String> {
    match Server::is_meant(what) {
        true => Ok(Place::Server(what.to_owned())),
        false => find(what, beside).map(Place::File),
    }
}

/// The component that `what` names.
///
/// # Errors
/// Nothing there, or a folder with several.
pub fn find(what: &str, beside: &Path) -> Result<PathBuf, String> {
    if Reference::is_meant(what) {
        return super::registry::component(what);
    }
    let path = beside.join(what);
    if path.is_file() {
        return Ok(path);
    }
    let folder = if path.is_dir() { Some(in_folder(&path)) } else { None };
    if let Some(Ok(file)) = folder {
        return Ok(file);
    }
    match (searched(beside, |search| prl_environment::resolve(what, search)), folder) {
        (Ok(found), _) => Ok(found),
        (Err(_), Some(Err(reason))) => Err(format!("`{}` {reason}", path.display())),
        (Err(error), _) => Err(error.to_string()),
    }
}

/// What `work` makes of the places where names are looked up.
pub fn searched<T>(beside: &Path, work: impl FnOnce(&SearchPath<'_>) -> T) -> T {
    let env_path = std::env::var_os("PRL_ENV_PATH");
    let binary = std::env::current_exe().ok();
    work(&SearchPath { relative_to: Some(beside), env_path: env_path.as_deref(), binary: binary.as_deref() })
}

fn in_folder(dir: &Path) -> Result<PathBuf, String> {
    let package = dir.join("env.wasm");
    if package.is_file() {
        return Ok(package);
    }
    let mut found = components(dir).map_err(|error| format!("cannot be listed: {error}"))?;
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err("is a folder without a .wasm file; build it with `prl env build`, or name a file".into()),
        _ => {
            let names = found.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
            Err(format!("is a folder with several components; name one of {}", names.collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Every `.wasm` file of a folder, sorted.
fn components(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "wasm") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A component that may import what it likes and is only asked what it is.
///
/// # Errors
/// One that a run would not take.
pub async fn look(path: &Path) -> Result<EnvFile, Failure> {
    let grants = vec![Grant::Assets, Grant::Kv, Grant::Llm, Grant::Http];
    let limits = Asked::plain("").limits();
    sandbox()?.load(path, &LoadConfig { limits, grants }).await.map_err(Failure::input)
}

/// Runs `work` on a runtime of its own.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(prl_environment::MAX_BLOCKING).build();
    let runtime = runtime.map_err(running("runtime"))?;
    let result = runtime.block_on(work);
    // What a command gave up, such as a request under way, must not keep the process alive.
    runtime.shutdown_background();
    result
}

impl Opened {
    /// Finds and loads what is asked for.
    ///
    /// # Errors
    /// Whatever is wrong with the words, the file, or what it imports.
    pub async fn load(asked: &Asked, purpose: Purpose) -> Result<Self, Failure> {
        let place = place(&asked.env, Path::new("")).map_err(Failure::input)?;
        Self::load_in(&sandbox()?, &place, asked, purpose).await
    }

    /// Loads what is at `place`.
    ///
    /// # Errors
    /// As [`Opened::load`].
    pub async fn load_in(sandbox: &Sandbox, place: &Place, asked: &Asked, purpose: Purpose) -> Result<Self, Failure> {
        let args = arguments(&asked.args)?;
        let limit = asked.call_timeout;
        if !(limit.is_finite() && limit > 0.0) {
            return Err(Failure::input(format_args!("`--call-timeout` is {limit}; it must be above 0")));
        }
        let models = models(&asked.llm)?;
        let look = purpose == Purpose::Look;
        let mut grants = vec![Grant::Assets, Grant::Kv];
        grants.extend((look || !models.is_empty()).then_some(Grant::Llm));
        grants.extend((look || !asked.http_allow.is_empty()).then_some(Grant::Http));
        let limits = asked.limits();
        let path = match place {
            Place::File(path) => path,
            Place::Server(url) => {
                if !(asked.llm.is_empty() && asked.http_allow.is_empty()) {
                    return Err(Failure::input(format_args!(
                        "`--llm` and `--http-allow` are for environments in the sandbox; what is served at `{url}` asks by \
                         itself"
                    )));
                }
                let file = sandbox.connect(&server(url), &limits).await.map_err(Failure::input)?;
                let (services, log) = (Services::default(), sink(asked.verbose));
                return Ok(Opened { file, args, services, log, stood_in: Vec::new() });
            }
        };
        let file = sandbox.load(path, &LoadConfig { limits, grants }).await.map_err(refused)?;
        let roles = &file.info().roles;
        // With other arguments it may have other roles.
        let default = args.as_object().is_none_or(|args| args.is_empty());
        if let Some(role) = models.keys().find(|role| default && !roles.contains(*role)) {
            let known = roles.iter().map(|role| format!("`{role}`")).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none".to_owned() } else { known };
            return Err(Failure::input(format_args!(
                "`--llm {role}=…`: `{}` asks no such role; there are {known}",
                path.display()
            )));
        }
        let client = Client::new();
        let assets_dir = file.assets_dir();
        let assets = match file.grants().contains(&Grant::Assets) {
            true => Some(Assets::open(&assets_dir).map_err(input(format_args!(
                "`{}`, the folder of what `{}` reads",
                assets_dir.display(),
                path.display()
            )))?),
            false => None,
        };
        let http = Http::new(&asked.http_allow, Arc::new(client.clone())).map_err(input("`--http-allow`"))?;
        let known: Vec<String> = models.keys().cloned().collect();
        let mut stood_in = Vec::new();
        let llm: Arc<dyn Llm> = match look {
            true => {
                let roles = file.info().roles.iter().filter(|role| !known.contains(role));
                stood_in.extend(roles.cloned());
                Arc::new(StandIn { roles: file.info().roles.clone(), known, models: ChatModels::new(client, models) })
            }
            false => Arc::new(ChatModels::new(client, models)),
        };
        let services = Services { llm: Some(llm), http: Some(http), assets, kv: Some(Kv::new(KV_BYTES)) };
        Ok(Opened { file, args, services, log: sink(asked.verbose), stood_in })
    }

    /// Its name in messages: the file's, or its own where there is none.
    pub fn name(&self) -> String {
        match self.file.unsandboxed() {
            Some(_) => self.file.info().name.clone(),
            None => name_of(self.file.path()),
        }
    }

    /// Starts it under its arguments.
    ///
    /// # Errors
    /// Arguments it refuses.
    pub async fn start(&self, isolation: Isolation, max_rollouts: usize) -> Result<Pool, Failure> {
        self.start_with(self.args.clone(), isolation, max_rollouts).await.map_err(Failure::input)
    }

    /// Starts it under other arguments.
    ///
    /// # Errors
    /// Arguments it refuses.
    pub async fn start_with(
        &self,
        args: Value,
        isolation: Isolation,
        max_rollouts: usize,
    ) -> Result<Pool, prl_environment::StartError> {
        let config = PoolConfig {
            name: self.name(),
            args,
            weights: Default::default(),
            workers: 1,
            max_rollouts,
            isolation,
            services: self.services.clone(),
            log: self.log.clone(),
        };
        Pool::start(&self.file, config).await
    }
}

/// The name of a component: of its file, or of the folder of an `env.wasm`.
pub fn name_of(path: &Path) -> String {
    let named = match path.file_name() {
        Some(name) if name == "env.wasm" => path.parent().and_then(Path::file_name),
        _ => path.file_stem(),
    };
    named.map_or_else(|| "env".into(), |name| name.to_string_lossy().into_owned())
}

/// The split that is meant: the one asked for, or the first.
pub fn split(pool: &Pool, asked: Option<&str>) -> Result<String, Failure> {
    let splits = &pool.info().splits;
    let names = || splits.iter().map(|split| split.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = match asked {
        Some(name) => pool.info().split(name),
        None => splits.first(),
    };
    match found {
        Some(split) => Ok(split.name.clone()),
        None => Err(Failure::input(format_args!(
            "`--split`: environment `{}` has no split `{}`; it has {}",
            pool.name(),
            asked.unwrap_or_default(),
            names()
        ))),
    }
}

fn arguments(text: &str) -> Result<Value, Failure> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        Failure::input(format_args!("`--args` is no JSON ({error}); give an object such as '{{\"max_chars\": 20}}'"))
    })?;
    match value.is_object() {
        true => Ok(value),
        false => Err(Failure::input("`--args` is no JSON object; give one such as '{\"max_chars\": 20}'")),
    }
}

/// With the flag that grants it in place of the configuration's key.
fn refused(error: LoadError) -> Failure {
    let (grant, flag) = match &error {
        LoadError::NotGranted { grant: Grant::Llm, .. } => ("a model", "--llm ROLE=MODEL@URL"),
        LoadError::NotGranted { grant: Grant::Http, .. } => ("a server", "--http-allow URL"),
        _ => return Failure::input(error),
    };
    let LoadError::NotGranted { path, import, .. } = &error else { return Failure::input(error) };
    Failure::input(format_args!(
        "`{}` imports `{import}`: it wants to ask {grant}; if it may, add {flag}",
        path.display()
    ))
}

fn models(words: &[String]) -> Result<Roles, Failure> {
    let mut roles = Roles::new();
    for word in words {
        let parts = word.split_once('=').and_then(|(role, rest)| Some((role, rest.split_once('@')?)));
        let Some((role, (model, url))) = parts.filter(|(role, (model, _))| !role.is_empty() && !model.is_empty())
        else {
            let form = "judge=MODEL@http://localhost:8000/v1";
            return Err(Failure::input(format_args!(
                "`--llm {word}` is not of the form ROLE=MODEL@URL, such as {form}"
            )));
        };
        let model = RemoteModel {
            base_url: base_url("--llm", url)?,
            model: model.into(),
            api_key: key_of(KEY_VARIABLE),
            timeout: Duration::from_secs(120),
            max_retries: 2,
        };
        roles.insert(role.to_owned(), (model, Arc::new(Semaphore::new(LLM_REQUESTS))));
    }
    Ok(roles)
}

/// The address of a server, checked for its scheme.
pub fn base_url(flag: &str, url: &str) -> Result<String, Failure> {
    let rest = ["http://", "https://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    match rest.filter(|rest| !rest.is_empty() && !rest.starts_with('/')) {
        Some(_) => Ok(url.to_owned()),
        None => Err(Failure::input(format_args!(
            "`{flag}`: `{url}` is no address; give one such as http://localhost:8000/v1"
        ))),
    }
}

fn sink(verbose: bool) -> LogSink {
    if !verbose {
        return Arc::new(|_| ());
    }
    Arc::new(|line| {
        use std::io::Write;
        let level = match line.level {
            LogLevel::Trace => "trace",
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        };
        let rollout = line.rollout.as_deref().map(|rollout| format!(" [{rollout}]")).unwrap_or_default();
        let fields: String = line.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        // Nobody reading standard error is no error.
        let _ = writeln!(
            std::io::stderr().lock(),
            "{}",
            crate::logging::plain(&format!("log {level}{rollout}: {}{fields}", line.message))
        );
    })
}

/// Stands in for models that no flag names: each answers `1`. With a real one behind every role that has one.
struct StandIn {
    roles: Vec<String>,
    known: Vec<String>,
    models: ChatModels,
}

impl Llm for StandIn {
    fn roles(&self) -> Vec<String> {
        self.roles.iter().chain(&self.known).cloned().collect()
    }

    fn generate(&self, request: LlmRequest) -> BoxFuture<'static, Result<LlmResponse, ServiceError>> {
        if self.known.contains(&request.role) {
            return self.models.generate(request);
        }
        let message = Message::text(Role::Assistant, "1");
        async { Ok(LlmResponse { message, prompt_tokens: 1, completion_tokens: 1 }) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_files_are_found() {
        let temp = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::write(temp.path().join(name), "").unwrap();
        let found = || find("", temp.path());
        let refusal = |words: &str| {
            let text = found().unwrap_err();
            assert!(text.contains(words), "{text}");
        };
        refusal("without a .wasm file");
        file("b.wasm");
        assert_eq!(found().unwrap(), temp.path().join("b.wasm"));
        file("a.wasm");
        refusal("name one of a.wasm, b.wasm");
        file("env.wasm");
        assert_eq!(found().unwrap(), temp.path().join("env.wasm"));
        assert_eq!(name_of(Path::new("/x/words/env.wasm")), "words");
        assert_eq!(find("a", temp.path()).unwrap(), temp.path().join("a.wasm"));
        assert!(find("c", temp.path()).unwrap_err().contains("no environment `c`"));
    }

    #[test]
    fn models_are_read_from_words() {
        let roles = models(&["judge=org/m@http://h:1/v1".into()]).unwrap();
        assert_eq!((roles["judge"].0.model.as_str(), roles["judge"].0.base_url.as_str()), ("org/m", "http://h:1/v1"));
        for bad in ["judge", "judge=m", "=m@http://h", "judge=m@h:1", "judge=m@http://"] {
            assert!(models(&[bad.into()]).is_err(), "{bad}");
        }
        for bad in ["[", "1", "[]"] {
            assert_eq!(arguments(bad).unwrap_err().code, 2);
        }
    }
}
