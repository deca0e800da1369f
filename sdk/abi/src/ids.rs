//! Numbers that name things across the border: the `PRL_*` constants of `include/prl.h`, which documents them.

macro_rules! ids {
    ($(#[$doc:meta])* $module:ident { $($name:ident = $value:literal,)* }) => {
        $(#[$doc])*
        pub mod $module {
            $(#[doc = concat!("See `prl.h`: ", stringify!($name), " = ", stringify!($value), ".")]
            pub const $name: u32 = $value;)*
            /// All of them, with their names.
            pub const ALL: &[(&str, u32)] = &[$((stringify!($name), $value),)*];
        }
    };
}

ids! {
    /// Element types of columns: `PRL_*`.
    dtype { U8 = 1, U32 = 2, U64 = 3, F32 = 4, F64 = 5, STR = 6, }
}

ids! {
    /// What a row is about: `PRL_AXIS_*`.
    axis { GROUP = 1, ROLLOUT = 2, SAMPLE = 3, TOKEN = 4, COMPONENT = 5, METRIC = 6, TURN = 7, }
}

ids! {
    /// Columns: `PRL_COL_*`.
    col {
        GROUP_ID = 1,
        ENV = 2,
        TASK_KEY = 3,
        TASK_PAYLOAD = 4,
        TASK_ANSWER = 5,
        MEMBER = 16,
        REWARD = 17,
        OUTPUT_TOKENS = 18,
        TOTAL_TOKENS = 19,
        TURNS = 20,
        TRUNCATED = 21,
        POLICY_VERSION = 22,
        STOP_CONDITION = 23,
        SCORE_INFO = 24,
        SAMPLE_START = 25,
        COMPONENT_START = 26,
        METRIC_START = 27,
        TURN_START = 28,
        TOKEN_START = 48,
        TEMPERATURE = 49,
        VERSION_MIN = 50,
        VERSION_MAX = 51,
        TOKEN_ID = 64,
        MASK = 65,
        SAMPLING_LOGPROB = 66,
        ROLE = 67,
        CONTENT = 68,
        REF_LOGPROB = 69,
        TRAINER_LOGPROB = 70,
        ENTROPY = 71,
        ADVANTAGE = 72,
        RL_WEIGHT = 73,
        COMPONENT_NAME = 80,
        COMPONENT_VALUE = 81,
        COMPONENT_WEIGHT = 82,
        METRIC_NAME = 96,
        METRIC_VALUE = 97,
        TURN_TOKENS = 112,
        TURN_REWARD = 113,
    }
}

ids! {
    /// Roles of tokens: `PRL_ROLE_*`.
    role { NONE = 0, SYSTEM = 1, USER = 2, ASSISTANT = 3, TOOL = 4, }
}

ids! {
    /// Streams a plug-in writes: `PRL_STREAM_*`.
    stream { ADVANTAGES = 1, RL_WEIGHTS = 2, CE_WEIGHTS = 3, REF_KL_WEIGHTS = 4, REF_LOGPROBS = 5, }
}

ids! {
    /// Losses that sampled tokens feed: `PRL_ACTION_*`.
    action { RL = 1, CE = 2, REF_KL = 3, }
}

ids! {
    /// What a plug-in needs of the host, bits: `PRL_NEEDS_*`.
    needs { TEACHER = 1, POLICY_REFERENCE = 2, FROZEN_SOURCE = 4, ENTROPY = 8, }
}

ids! {
    /// Log levels: `PRL_LOG_*`.
    log { ERROR = 1, WARN = 2, INFO = 3, DEBUG = 4, }
}
