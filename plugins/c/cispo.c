/* cispo: clipped importance weights on the policy gradient, an algorithm plug-in with a loss in C from prl.h alone.
 *
 *   A_i = r_i - mean(r)
 *   L   = -(1/N) sum_t w_t * c_t * A_t * logp_t        c_t = min(exp(logp_t - mu_t), 5), held constant
 *
 * Source: MiniMax, "MiniMax-M1", arXiv:2506.13585, section 3.1.
 *
 *   cc -O2 -fPIC -shared -I sdk/abi/include plugins/c/cispo.c -o libcispo.so -lm
 *   prl rl @ examples/reverse_text/rl.toml --plugin libcispo.so --orchestrator.algo.type cispo \
 *     --trainer.loss.type custom --trainer.loss.name cispo
 */
#include "prl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

PRL_METADATA("{\"name\": \"cispo\", \"version\": \"0.1.0\", \"abi\": \"1.0\", \"hooks\": [\"score_group\", \"loss\"],"
             " \"action_loss\": \"rl\","
             " \"config_schema\": {\"type\": \"object\", \"additionalProperties\": false}}");

static const double LARGEST_RATIO = 5.0;

typedef struct {
  const prl_host *host;
} cispo;

static int32_t fail(const prl_host *host, const char *text) {
  host->error(host->ctx, (prl_str){text, strlen(text)});
  return PRL_ERROR;
}

static int32_t describe(prl_description *out) {
  out->action_loss = PRL_ACTION_RL;
  out->metadata = PRL_LITERAL(prl_metadata);
  return PRL_OK;
}

static int32_t create(const prl_host *host, prl_str config, void **instance) {
  if (config.len != 2 || memcmp(config.ptr, "{}", 2) != 0) return fail(host, "cispo has no options");
  cispo *self = malloc(sizeof *self);
  if (!self) return fail(host, "out of memory");
  self->host = host;
  *instance = self;
  return PRL_OK;
}

static void destroy(void *instance) { free(instance); }

static int32_t score_group(void *instance, const prl_group *group) {
  const prl_host *host = ((cispo *)instance)->host;
  const double *reward = prl_column_ptr(group, PRL_COL_REWARD, PRL_F64);
  if (!reward) return fail(host, "the host gave no rewards");
  double mean = 0;
  for (size_t i = 0; i < group->n_rollouts; i++) mean += reward[i] / (double)group->n_rollouts;
  for (size_t i = 0; i < group->n_rollouts; i++)
    if (host->assign(host->ctx, i, reward[i] - mean) != PRL_OK) return fail(host, "an advantage was refused");
  return PRL_OK;
}

static int32_t loss(void *instance, const prl_batch *batch, prl_loss *out) {
  const prl_host *host = ((cispo *)instance)->host;
  const float *logp = prl_batch_column(batch, PRL_COL_TRAINER_LOGPROB, PRL_F32);
  const float *mu = prl_batch_column(batch, PRL_COL_SAMPLING_LOGPROB, PRL_F32);
  const float *advantage = prl_batch_column(batch, PRL_COL_ADVANTAGE, PRL_F32);
  const float *weight = prl_batch_column(batch, PRL_COL_RL_WEIGHT, PRL_F32);
  if (!logp || !mu || !advantage || !weight) return fail(host, "the host gave no logprobs, advantages or weights");
  double members = 0, held = 0;
  for (size_t t = 0; t < batch->n_tokens; t++) {
    if (weight[t] == 0) continue;
    double ratio = exp((double)logp[t] - mu[t]), pull = -weight[t] * fmin(ratio, LARGEST_RATIO) * advantage[t];
    out->loss += pull * logp[t] / batch->normalizer;
    out->d_logprob[t] = (float)(pull / batch->normalizer);
    out->token_loss[t] = (float)(pull * logp[t]);
    members += 1;
    held += ratio > LARGEST_RATIO;
  }
  host->metric(host->ctx, PRL_LITERAL("is_clipped"), members > 0 ? held / members : 0);
  return PRL_OK;
}

static const prl_plugin table = {
    .magic = PRL_MAGIC,
    .abi_major = PRL_ABI_MAJOR,
    .abi_minor = PRL_ABI_MINOR,
    .struct_size = sizeof(prl_plugin),
    .describe = describe,
    .create = create,
    .destroy = destroy,
    .score_group = score_group,
    .loss = loss,
};

PRL_EXPORT int32_t prl_plugin_init(uint32_t host_abi, const prl_plugin **out, prl_str *error) {
  if (host_abi >> 16 != PRL_ABI_MAJOR) {
    *error = PRL_LITERAL("cispo is built for plug-in ABI 1");
    return PRL_ERROR;
  }
  *out = &table;
  return PRL_OK;
}
