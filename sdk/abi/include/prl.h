/* prl.h - the C ABI of prl's algorithm plug-ins, version 1.0. This header is the specification.
 *
 * A plug-in is a shared library for the host's machine (ELF) with
 *   - one exported function, prl_plugin_init, and
 *   - a section .prl_meta that holds one JSON object (see PRL_METADATA), which the host reads before it loads the code.
 * It turns the rewards and token-level facts of a group of rollouts into per-token numbers for the trainer, and may
 * supply the loss itself.
 *
 * Growth. The major number changes when something below changes its meaning or place. A minor number only appends:
 * fields at the end of structs that carry struct_size, functions at the end of prl_host and prl_plugin, column ids,
 * stream ids, bits, and keys of the metadata with a default. A host of 1.n loads every plug-in of 1.m with m <= n and
 * refuses m > n. prl_str and prl_column are elements of arrays and never grow. Reserved fields are 0. A plug-in passes
 * over columns whose id it does not know; the host passes over keys of the metadata that it does not know. A struct from
 * the host is at least as long as in the version that the plug-in was built against.
 *
 * Memory. Whoever makes a thing owns it. Views that the host passes in (groups, batches, strings, bytes) are read-only,
 * are valid until the function returns, and must not be kept; the arrays of prl_loss are the host's too, and are written.
 * The host copies what a plug-in passes to a callback before the callback returns. The prl_host passed to create is
 * valid, at the same address, until destroy returns.
 *
 * Threads. The host calls one instance from one thread at a time, not always the same one; instances are independent and
 * may run at the same time. Callbacks may be called only while a function of that instance runs, from any thread.
 *
 * Errors. Functions return PRL_OK or another number. Before returning another number, call host->error with one line of
 * text for the user. No exception, panic or longjmp may leave a function. A crash of native code ends the process.
 *
 * Numbers. Rewards and statistics are f64; token streams are f32; every number a plug-in hands out must be finite.
 * Log-probabilities and entropies are natural (nats), over the whole vocabulary, at the sampling temperature.
 * Strings are UTF-8 without a final NUL. All machines are 64-bit little-endian.
 */
#ifndef PRL_H
#define PRL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PRL_ABI_MAJOR 1
#define PRL_ABI_MINOR 0
/* A version as one number, as prl_plugin_init receives it. */
#define PRL_ABI_VERSION (((uint32_t)PRL_ABI_MAJOR << 16) | PRL_ABI_MINOR)
/* First field of prl_plugin: the bytes "PRLALGO\1". */
#define PRL_MAGIC UINT64_C(0x014f474c414c5250)

/* Return values. */
#define PRL_OK 0
#define PRL_ERROR 1 /* failed; the text is in host->error */
#define PRL_PANIC 2 /* a bug in the plug-in was caught; the text is in host->error */

/* A view of UTF-8 text. ptr may be NULL when len is 0. */
typedef struct prl_str {
  const char *ptr;
  size_t len; /* bytes */
} prl_str;

/* A view of bytes. ptr may be NULL when len is 0. */
typedef struct prl_bytes {
  const uint8_t *ptr;
  size_t len;
} prl_bytes;

/* ---- columns: all input data ------------------------------------------------------------------------------------ */

/* Element types. */
#define PRL_U8 1
#define PRL_U32 2
#define PRL_U64 3
#define PRL_F32 4
#define PRL_F64 5
#define PRL_STR 6 /* elements are prl_str */

/* What a row of a column is about. */
#define PRL_AXIS_GROUP 1     /* one row */
#define PRL_AXIS_ROLLOUT 2   /* n_rollouts rows, by member */
#define PRL_AXIS_SAMPLE 3    /* n_samples rows: all samples of rollout 0, then of rollout 1, ... */
#define PRL_AXIS_TOKEN 4     /* n_tokens rows: all tokens of sample 0, then of sample 1, ... */
#define PRL_AXIS_COMPONENT 5 /* reward components of rollout 0, then of rollout 1, ... */
#define PRL_AXIS_METRIC 6    /* metrics of rollout 0, then of rollout 1, ... */
#define PRL_AXIS_TURN 7      /* turns of rollout 0, then of rollout 1, ... */

typedef struct prl_column {
  uint32_t id;    /* PRL_COL_* */
  uint32_t dtype; /* PRL_U8 ... PRL_STR */
  uint32_t axis;  /* PRL_AXIS_* */
  uint32_t width; /* elements a row; 1 for every column of version 1.0 */
  size_t len;     /* elements in all: rows * width, and one more for the *_START columns */
  const void *ptr;
} prl_column;

/* Column ids. A START column holds, for each row of its axis, where that row's part of the finer axis begins, and one
 * last entry with the total: part i is [start[i], start[i+1]). With a group, a host of version 1.0 passes all of them but
 * those marked "loss", and REF_LOGPROB only where there is one; prl_batch names those that come with a batch. */
#define PRL_COL_GROUP_ID 1        /* group,   u64: number of the group in the run */
#define PRL_COL_ENV 2             /* group,   str: the environment's name in the run */
#define PRL_COL_TASK_KEY 3        /* group,   str: identity of the task across runs */
#define PRL_COL_TASK_PAYLOAD 4    /* group,   str: JSON, the task's own data */
#define PRL_COL_TASK_ANSWER 5     /* group,   str: JSON, the reference answer; "null" when there is none */
#define PRL_COL_MEMBER 16         /* rollout, u32: 0-based place in the group; gaps where members failed */
#define PRL_COL_REWARD 17         /* rollout, f64: total reward */
#define PRL_COL_OUTPUT_TOKENS 18  /* rollout, u64: sampled tokens over all samples */
#define PRL_COL_TOTAL_TOKENS 19   /* rollout, u64: all tokens over all samples */
#define PRL_COL_TURNS 20          /* rollout, u32: sampled turns */
#define PRL_COL_TRUNCATED 21      /* rollout, u8:  1 when it was cut off */
#define PRL_COL_POLICY_VERSION 22 /* rollout, u64: weights' version when its group started */
#define PRL_COL_STOP_CONDITION 23 /* rollout, str: why it ended */
#define PRL_COL_SCORE_INFO 24     /* rollout, str: JSON from the environment's scoring; "null" when there is none */
#define PRL_COL_SAMPLE_START 25   /* rollout, u64: start in the sample axis */
#define PRL_COL_COMPONENT_START 26 /* rollout, u64: start in the component axis */
#define PRL_COL_METRIC_START 27   /* rollout, u64: start in the metric axis */
#define PRL_COL_TURN_START 28     /* rollout, u64: start in the turn axis */
#define PRL_COL_TOKEN_START 48    /* sample,  u64: start in the token axis */
#define PRL_COL_TEMPERATURE 49    /* sample,  f32: sampling temperature */
#define PRL_COL_VERSION_MIN 50    /* sample,  u64: oldest weights that drew one of its tokens; 0 when none of the run's did */
#define PRL_COL_VERSION_MAX 51    /* sample,  u64: newest such weights */
#define PRL_COL_TOKEN_ID 64       /* token,   u32: vocabulary index; prompt and completion */
#define PRL_COL_MASK 65           /* token,   u8:  1 where the model sampled the token, else 0 */
#define PRL_COL_SAMPLING_LOGPROB 66 /* token, f32: logprob when drawn, at the sampling temperature; 0 where mask is 0 */
#define PRL_COL_ROLE 67           /* token,   u8:  PRL_ROLE_* of the message it came from */
#define PRL_COL_CONTENT 68        /* token,   u8:  1 for a message's own text, 0 for the chat template's scaffold */
#define PRL_COL_REF_LOGPROB 69    /* token,   f32: logprob under the reference; NaN on all tokens of a sample without one */
#define PRL_COL_TRAINER_LOGPROB 70 /* token,  f32: logprob under the weights being trained; loss */
#define PRL_COL_ENTROPY 71        /* token,   f32: entropy of the distribution the token was predicted from; loss */
#define PRL_COL_ADVANTAGE 72      /* token,   f32: advantage; 0 where none was written; loss */
#define PRL_COL_RL_WEIGHT 73      /* token,   f32: weight in the rl component; not 0 means member; loss */
#define PRL_COL_COMPONENT_NAME 80 /* component, str */
#define PRL_COL_COMPONENT_VALUE 81 /* component, f64 */
#define PRL_COL_COMPONENT_WEIGHT 82 /* component, f64: weight in the total reward */
#define PRL_COL_METRIC_NAME 96    /* metric,  str */
#define PRL_COL_METRIC_VALUE 97   /* metric,  f64 */
#define PRL_COL_TURN_TOKENS 112   /* turn,    u64: sampled tokens */
#define PRL_COL_TURN_REWARD 113   /* turn,    f64: the environment's credit for this turn; NaN when it gave none */

#define PRL_ROLE_NONE 0
#define PRL_ROLE_SYSTEM 1
#define PRL_ROLE_USER 2
#define PRL_ROLE_ASSISTANT 3
#define PRL_ROLE_TOOL 4

/* The rollouts of one task that finished without an error: at least one, at most group_size. */
typedef struct prl_group {
  uint32_t struct_size;
  uint32_t n_columns;
  const prl_column *columns; /* n_columns of them, in no particular order */
  size_t n_rollouts;
  size_t n_samples; /* a rollout has one sample per branch of its conversation */
  size_t n_tokens;
} prl_group;

/* A packed micro-batch of whole samples, in the order of the batch's columns. Columns:
 *   token axis   TOKEN_ID, MASK, TRAINER_LOGPROB, SAMPLING_LOGPROB, ADVANTAGE, RL_WEIGHT; REF_LOGPROB when a sample has
 *                one; ENTROPY when the plug-in needs it
 *   sample axis  TOKEN_START, TEMPERATURE, VERSION_MIN, VERSION_MAX
 * Members are the tokens with RL_WEIGHT != 0: sampled ones that the algorithm did not weigh 0, and never a sample's first
 * token, which nothing predicts. Every batch has a member. Tokens without a member's weight are there so that samples are
 * whole; their TRAINER_LOGPROB and ENTROPY are real (a sample's first token has those of a uniform distribution). */
typedef struct prl_batch {
  uint32_t struct_size;
  uint32_t n_columns;
  const prl_column *columns; /* n_columns of them, in no particular order */
  size_t n_samples;
  size_t n_tokens;
  double normalizer; /* members in the whole step, over all its micro-batches; at least 1 */
} prl_batch;

/* What a custom loss gives. The arrays have n_tokens elements, are the host's, and hold zeros. */
typedef struct prl_loss {
  uint32_t struct_size;
  uint32_t reserved;
  double loss;       /* this micro-batch's addend to the step's loss, all denominators included; the host sums them */
  float *d_logprob;  /* d loss / d TRAINER_LOGPROB of each token; the host sets those of non-members back to 0 */
  float *d_entropy;  /* d loss / d ENTROPY of each token, likewise; NULL without PRL_NEEDS_ENTROPY */
  float *token_loss; /* loss of each member without denominators, for the spread in the run's metrics; may stay 0 */
} prl_loss;

/* ---- callbacks of the host ---------------------------------------------------------------------------------------- */

#define PRL_LOG_ERROR 1
#define PRL_LOG_WARN 2
#define PRL_LOG_INFO 3
#define PRL_LOG_DEBUG 4

/* Streams a plug-in can write, one f32 a token of a sample. The trainer minimises
 *   sum(rl)/N_rl + sum(ce)/N_ce + sum(ref_kl)/N_ref_kl
 * with each N the number of tokens of the whole batch that the component weights.
 * Stream not written: rl weight 1 on sampled tokens; no ce tokens; no ref_kl tokens. */
#define PRL_STREAM_ADVANTAGES 1
#define PRL_STREAM_RL_WEIGHTS 2
#define PRL_STREAM_CE_WEIGHTS 3
#define PRL_STREAM_REF_KL_WEIGHTS 4
#define PRL_STREAM_REF_LOGPROBS 5

typedef struct prl_host {
  uint32_t struct_size;
  uint32_t abi_version; /* PRL_ABI_VERSION of the host */
  void *ctx;            /* first argument of every callback */
  /* A line for the run's log. */
  void (*log)(void *ctx, uint32_t level, prl_str message);
  /* A number for the run's metrics; finite, with a name. Several values of one name in one step are averaged. */
  void (*metric)(void *ctx, prl_str name, double value);
  /* Uniform 64 random bits. The sequence depends on the run's seed and on the group (or on the step and the place of
   * the micro-batch in it), never on timing. */
  uint64_t (*rng)(void *ctx);
  /* The text that belongs to the non-zero value about to be returned. */
  void (*error)(void *ctx, prl_str message);
  /* Gives `advantage` to every sampled token of a rollout and 0 to its other tokens. score_* only. */
  int32_t (*assign)(void *ctx, size_t rollout, double advantage);
  /* Writes one stream (PRL_STREAM_*) of one sample (index in the sample axis): n must be its number of tokens.
   * Replaces what was there. score_* only. */
  int32_t (*write)(void *ctx, uint32_t stream, size_t sample, const float *values, size_t n);
  /* Takes a rollout out of training; the reason goes to the log and is counted. score_* only. */
  int32_t (*drop)(void *ctx, size_t rollout, prl_str reason);
  /* Appends to the state. save_state only. */
  int32_t (*save)(void *ctx, prl_bytes bytes);
  /* Asks for the logprobs of one sample (index in the sample axis) under the live policy, with other messages before the
   * sample's tokens: `messages` is a JSON list of {"role": "system" | "user" | "assistant" | "tool", "content": text}.
   * The host renders them without a generation prompt, scores rendered + TOKEN_ID, and keeps the part of TOKEN_ID. An
   * empty list scores the sample's tokens alone. The last word on a sample counts; a sample not asked for has no
   * reference. reference only. */
  int32_t (*reference)(void *ctx, size_t sample, prl_str messages);
} prl_host;
/* assign, write, drop, save and reference return PRL_OK, or PRL_ERROR when the arguments are wrong; the host then fails
 * the call whatever the plug-in returns. */

/* ---- the plug-in -------------------------------------------------------------------------------------------------- */

/* The loss that a rollout's sampled tokens feed. The host then sets, after score_group:
 * rl: nothing. ce: rl weights 0 everywhere, ce weight 1 on sampled tokens, other tokens' ce weights kept.
 * ref_kl: rl weights 0 everywhere, ref_kl weight 1 on sampled tokens, other tokens' ref_kl weights kept. */
#define PRL_ACTION_RL 1
#define PRL_ACTION_CE 2
#define PRL_ACTION_REF_KL 3

/* What the host must provide; the same things as in the metadata. A host refuses bits it does not know. */
#define PRL_NEEDS_TEACHER 1          /* "reference": "teacher": REF_LOGPROB under a frozen model named in the run */
#define PRL_NEEDS_POLICY_REFERENCE 2 /* "reference": "policy": REF_LOGPROB as prl_plugin.reference asks for them */
#define PRL_NEEDS_FROZEN_SOURCE 4    /* "source": "frozen": rollouts are sampled from a frozen model named in the run */
#define PRL_NEEDS_ENTROPY 8          /* "entropy": true: the custom loss takes ENTROPY and gives d_entropy */

/* The host sets struct_size to its own size and zeroes the rest; the plug-in fills the fields it knows. */
typedef struct prl_description {
  uint32_t struct_size;
  uint32_t action_loss; /* PRL_ACTION_*; as in the metadata */
  uint64_t needs;       /* PRL_NEEDS_* bits; as in the metadata */
  prl_str metadata;     /* the text in .prl_meta, byte for byte */
} prl_description;

/* The plug-in's own static table. Functions marked optional may be NULL. */
typedef struct prl_plugin {
  uint64_t magic;       /* PRL_MAGIC */
  uint32_t abi_major;   /* PRL_ABI_MAJOR of the header it was built with */
  uint32_t abi_minor;   /* PRL_ABI_MINOR of the same */
  uint32_t struct_size; /* sizeof(prl_plugin) of the same */
  uint32_t reserved;
  /* Says what the plug-in is; called first and without an instance. */
  int32_t (*describe)(prl_description *out);
  /* Makes an instance from a JSON object: the keys of [orchestrator.algo] other than those the host reads (`type`,
   * `teacher`, `sampling`), or, for an instance whose loss is called, those of [trainer.loss] other than `type` and `name`.
   * Unknown keys and bad values are errors. *instance may be NULL for a plug-in without state. */
  int32_t (*create)(const prl_host *host, prl_str config, void **instance);
  /* Ends an instance. */
  void (*destroy)(void *instance);
  /* Optional. Sees one rollout of a complete group once its reference is there; what it writes is there when the group is
   * scored. */
  int32_t (*score_rollout)(void *instance, const prl_group *rollout);
  /* Optional. Sees a group when all of its rollouts have ended. With action loss rl, every rollout that is not dropped
   * needs advantages once this returns. */
  int32_t (*score_group)(void *instance, const prl_group *group);
  /* Optional, both or neither. The state that a checkpoint must hold, in a form of the plug-in's choice. load_state
   * comes after create, before any score, with bytes that save_state of the same plug-in wrote. */
  int32_t (*save_state)(void *instance);
  int32_t (*load_state)(void *instance, prl_bytes state);
  /* Optional. The custom loss that [trainer.loss] type = "custom" selects by this plug-in's name. It takes the place of
   * the rl component; ce and ref_kl stay the host's. Called once for each micro-batch of a step that has a member, on an
   * instance of its own that scores nothing. Which samples share a micro-batch depends on their lengths and on memory:
   * the sum over a step must not. The host then backpropagates
   *   sum over tokens of d_logprob * TRAINER_LOGPROB + d_entropy * ENTROPY
   * with d_logprob and d_entropy as constants. */
  int32_t (*loss)(void *instance, const prl_batch *batch, prl_loss *out);
  /* Optional; there exactly when PRL_NEEDS_POLICY_REFERENCE is set. Sees one rollout when it finishes, before
   * score_rollout, and calls host->reference for each sample that is to have a reference. */
  int32_t (*reference)(void *instance, const prl_group *rollout);
} prl_plugin;

/* The exported function. Checks host_abi (PRL_ABI_VERSION of the host), stores the address of its table in *table and
 * returns PRL_OK, or stores a static text in *error and returns PRL_ERROR. */
int32_t prl_plugin_init(uint32_t host_abi, const prl_plugin **table, prl_str *error);

/* ---- conveniences for C; no part of the binary interface ---------------------------------------------------------- */

#if defined(__GNUC__)
/* Places the metadata: one JSON object with
 *   name           the value of [orchestrator.algo] type: letters, digits, _ and -
 *   version        of the plug-in, free text
 *   abi            "1.0": the header it was built with
 *   hooks          list of "score_rollout", "score_group", "state", "loss", "reference": the optional functions that are
 *                  not NULL
 *   action_loss    "rl", "ce" or "ref_kl"
 *   reference      "none", "teacher" or "policy" (left out: "none")
 *   source         "policy" or "frozen" (left out: "policy")
 *   entropy        whether the custom loss needs entropies (left out: false)
 *   config_schema  JSON Schema of the configuration object (may be left out)
 */
#define PRL_METADATA(json) __attribute__((section(".prl_meta"), used)) static const char prl_metadata[] = json
#define PRL_EXPORT __attribute__((visibility("default")))
#else
#define PRL_EXPORT
#endif

/* A prl_str of a string literal or char array. */
#define PRL_LITERAL(text) ((prl_str){(text), sizeof(text) - 1})

static inline const void *prl_find_column(const prl_column *columns, uint32_t n, uint32_t id, uint32_t dtype) {
  for (uint32_t i = 0; i < n; i++)
    if (columns[i].id == id && columns[i].dtype == dtype) return columns[i].ptr;
  return NULL;
}

/* The column of a group with this id and element type, or NULL. */
static inline const void *prl_column_ptr(const prl_group *group, uint32_t id, uint32_t dtype) {
  return prl_find_column(group->columns, group->n_columns, id, dtype);
}

/* The column of a batch with this id and element type, or NULL. */
static inline const void *prl_batch_column(const prl_batch *batch, uint32_t id, uint32_t dtype) {
  return prl_find_column(batch->columns, batch->n_columns, id, dtype);
}

#ifdef __cplusplus
}
#endif
#endif
