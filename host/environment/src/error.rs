//! What can go wrong, as values. Two kinds with different consequences: [`LoadError`] is bad input that ends the
//! command before a run starts, [`EnvError`] costs one rollout (or the start, when it comes from `configure`).

use std::path::PathBuf;
use std::time::Duration;

/// A component file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Nothing found under this id.
    #[error(
        "no environment `{id}`; looked for {} (or a folder of that name with an env.wasm). Put the file there, set \
         PRL_ENV_PATH, or give a path that ends in .wasm",
        places.iter().map(|place| format!("`{}`", place.display())).collect::<Vec<_>>().join(", ")
    )]
    NotFound {
        /// As the configuration names it.
        id: String,
        /// Files looked for, in order.
        places: Vec<PathBuf>,
    },
    /// The file cannot be read.
    #[error("cannot read environment `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No WASM at all.
    #[error("`{}` is not a WASM file: {reason}", path.display())]
    NotWasm {
        /// The file.
        path: PathBuf,
        /// What is there instead.
        reason: &'static str,
    },
    /// A core module.
    #[error(
        "`{}` is a core WASM module, not a component; wrap it with `wasm-tools component new` or build it with \
         envs/build.sh",
        path.display()
    )]
    CoreModule {
        /// The file.
        path: PathBuf,
    },
    /// The file ends in the middle of a section.
    #[error("`{}` is cut off: its last section needs {missing} more bytes", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes missing at least.
        missing: u64,
    },
    /// Does not validate or compile.
    #[error("`{}` is not a valid WASM component: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The validator's or compiler's words.
        reason: String,
    },
    /// A component for something else.
    #[error(
        "`{}` is a component but not an environment: it exports {} and not `prl:env/environment`",
        path.display(), list(exports)
    )]
    NotAnEnvironment {
        /// The file.
        path: PathBuf,
        /// What it exports.
        exports: Vec<String>,
    },
    /// Built against another track of the contract.
    #[error("`{}` was built for prl:env {found}, this prl runs prl:env {supported}: {advice}", path.display())]
    WrongVersion {
        /// The file.
        path: PathBuf,
        /// The component's version.
        found: String,
        /// What this host takes.
        supported: String,
        /// What to do.
        advice: String,
    },
    /// Wants something the run does not grant.
    #[error(
        "`{}` imports `{import}`, which this run does not grant; if it may, add \"{}\" to its `grants`",
        path.display(), grant.name()
    )]
    NotGranted {
        /// The file.
        path: PathBuf,
        /// The first import that is not granted.
        import: String,
        /// What would grant it.
        grant: crate::Grant,
    },
    /// Wants something that no run can give.
    #[error(
        "`{}` imports `{import}`, which no environment can have; there are `prl:env/log`, with a grant {}, and \
         `wasi:*@0.2`, which is denied deterministically",
        path.display(),
        list(&crate::Grant::ALL.map(|grant| format!("prl:env/{}", grant.name())))
    )]
    UnknownImport {
        /// The file.
        path: PathBuf,
        /// The first import that is not known.
        import: String,
    },
    /// The right names with the wrong shapes.
    #[error("`{}` does not match the interface it names: {reason}", path.display())]
    Interface {
        /// The file.
        path: PathBuf,
        /// The linker's words.
        reason: String,
    },
    /// Fails while it is being described.
    #[error("`{}` cannot be described: {source}", path.display())]
    Describe {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: EnvError,
    },
    /// An address that names no server.
    #[error("{0}")]
    Address(String),
    /// A server that does not say what its environment is.
    #[error(
        "no environment can be had at `{url}`: {reason}; start one there with `prl env serve-python FOLDER`, or correct the \
         address"
    )]
    Server {
        /// Its address.
        url: String,
        /// What it said, or how it failed.
        reason: String,
    },
    /// The engine or its threads could not be made.
    #[error("cannot start the WASM sandbox: {0}")]
    Sandbox(String),
}

fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".into(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// An environment that cannot serve a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StartError {
    /// The run's arguments do not follow its schema.
    #[error("environment `{env}`: {reason}")]
    Args {
        /// The environment's name in the run.
        env: String,
        /// What does not fit, with the key.
        reason: String,
    },
    /// The run sets the weight of a component that there is not.
    #[error("environment `{env}`: {reason}")]
    Weights {
        /// The environment's name in the run.
        env: String,
        /// What does not fit, with the key.
        reason: String,
    },
    /// It asks a model of a role for which the run has none.
    #[error("environment `{env}` asks a model in the role `{role}`, for which there is none; add it to its `llm`")]
    Role {
        /// The environment's name in the run.
        env: String,
        /// The role.
        role: String,
    },
    /// It failed while it was configured.
    #[error(transparent)]
    Env(#[from] EnvError),
}

/// A call into an environment that gave nothing usable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("environment `{env}` (worker {worker}) in `{call}`: {failure}")]
pub struct EnvError {
    /// The environment's name in the run.
    pub env: String,
    /// The worker, as in its log file's name.
    pub worker: usize,
    /// The call of the contract, such as `step`.
    pub call: &'static str,
    /// What happened.
    pub failure: Failure,
}

impl EnvError {
    /// What the error is to the rest of the run.
    pub fn kind(&self) -> prl_types::ErrorKind {
        match self.failure {
            Failure::Cancelled => prl_types::ErrorKind::Cancelled,
            _ => prl_types::ErrorKind::EnvError,
        }
    }

    /// Whether the environment says that another try may work.
    pub fn is_retryable(&self) -> bool {
        matches!(self.failure, Failure::Guest { retryable: true, .. } | Failure::Lost)
    }
}

/// How a call failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The guest crashed: a panic, an uncaught exception, a stack overflow.
    #[error("it crashed ({reason}){}", said.as_ref().map(|said| format!("; it said: {said}")).unwrap_or_default())]
    Trap {
        /// The trap.
        reason: String,
        /// The last error line it logged in this call, most often the panic's text.
        said: Option<String>,
    },
    /// One call took too long.
    #[error("no answer within {}", seconds(limit))]
    CallTimeout {
        /// The limit.
        limit: Duration,
    },
    /// All phases of the rollout together took too long.
    #[error("the rollout took longer than {}", seconds(limit))]
    RolloutTimeout {
        /// The limit.
        limit: Duration,
    },
    /// Wanted more memory than its cap.
    #[error("out of memory: it asked for {wanted_bytes} bytes, the cap is {limit_bytes}")]
    OutOfMemory {
        /// Bytes it would have held.
        wanted_bytes: u64,
        /// The cap.
        limit_bytes: u64,
    },
    /// Used up its instructions.
    #[error("out of fuel: it used the {limit} units of one call")]
    OutOfFuel {
        /// The limit.
        limit: u64,
    },
    /// The system has no room for another instance.
    #[error(
        "the system gave no room for another instance ({reason}); lower `max_concurrent`, or raise the limits on \
         address space (ulimit -v) and mappings (vm.max_map_count)"
    )]
    NoRoom {
        /// The system's words.
        reason: String,
    },
    /// Handed over more data than allowed.
    #[error("it handed over more than {limit_bytes} bytes in one call")]
    TooMuchData {
        /// The cap.
        limit_bytes: u64,
    },
    /// Answered with an error of its own.
    #[error("{code}: {message}")]
    Guest {
        /// Its class.
        code: GuestErrorCode,
        /// Its text.
        message: String,
        /// The guest's advice.
        retryable: bool,
    },
    /// Answered with something that may not reach the trainer.
    #[error("invalid answer: {0}")]
    Invalid(String),
    /// Asked for something it does not offer.
    #[error("{0}")]
    Unsupported(String),
    /// The caller gave the call up before it was done; the rollout is over.
    #[error("cancelled in the middle of a call")]
    Cancelled,
    /// Called after a call that failed or was cancelled.
    #[error("the rollout is over: an earlier call failed or was cancelled")]
    Over,
    /// The server serves another environment than that which the run began with.
    #[error("another environment is served there: it {0}; serve the one of before, or begin anew")]
    Replaced(String),
    /// Another rollout of the same worker ended the instance, and the environment is not deterministic.
    #[error("its worker was replaced after another rollout's failure, and it cannot be replayed")]
    Lost,
}

fn seconds(limit: &Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}

/// The contract's error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestErrorCode {
    /// The arguments cannot work.
    InvalidConfig,
    /// No such task.
    InvalidTask,
    /// A call it does not offer.
    Unsupported,
    /// Called out of order.
    InvalidState,
    /// Something it asked for is not allowed.
    Denied,
    /// Something it asked for is not there.
    NotFound,
    /// Something it asked for is more than it may have.
    Limit,
    /// Something it depends on failed.
    Upstream,
    /// A bug of its own.
    Internal,
}

impl std::fmt::Display for GuestErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            GuestErrorCode::InvalidConfig => "invalid config",
            GuestErrorCode::InvalidTask => "invalid task",
            GuestErrorCode::Unsupported => "unsupported",
            GuestErrorCode::InvalidState => "invalid state",
            GuestErrorCode::Denied => "denied",
            GuestErrorCode::NotFound => "not found",
            GuestErrorCode::Limit => "limit",
            GuestErrorCode::Upstream => "upstream failure",
            GuestErrorCode::Internal => "internal error",
        })
    }
}
