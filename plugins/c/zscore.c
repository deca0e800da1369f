/* zscore: A_i = (r_i - mean(r)) / (std(r) + 1e-6), an algorithm plug-in in C from prl.h alone.
 *
 *   cc -O2 -fPIC -shared -I sdk/abi/include plugins/c/zscore.c -o libzscore.so -lm
 *   prl rl @ examples/reverse_text/rl.toml --plugin libzscore.so --orchestrator.algo.type zscore
 */
#include "prl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

PRL_METADATA("{\"name\": \"zscore\", \"version\": \"0.1.0\", \"abi\": \"1.0\", \"hooks\": [\"score_group\"],"
             " \"action_loss\": \"rl\","
             " \"config_schema\": {\"type\": \"object\", \"additionalProperties\": false}}");

typedef struct {
  const prl_host *host;
} zscore;

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
  if (config.len != 2 || memcmp(config.ptr, "{}", 2) != 0) return fail(host, "zscore has no options");
  zscore *self = malloc(sizeof *self);
  if (!self) return fail(host, "out of memory");
  self->host = host;
  *instance = self;
  return PRL_OK;
}

static void destroy(void *instance) { free(instance); }

static int32_t score_group(void *instance, const prl_group *group) {
  const prl_host *host = ((zscore *)instance)->host;
  const double *reward = prl_column_ptr(group, PRL_COL_REWARD, PRL_F64);
  if (!reward) return fail(host, "the host gave no rewards");
  double mean = 0, variance = 0, n = (double)group->n_rollouts;
  for (size_t i = 0; i < group->n_rollouts; i++) mean += reward[i] / n;
  for (size_t i = 0; i < group->n_rollouts; i++) variance += (reward[i] - mean) * (reward[i] - mean) / n;
  for (size_t i = 0; i < group->n_rollouts; i++)
    if (host->assign(host->ctx, i, (reward[i] - mean) / (sqrt(variance) + 1e-6)) != PRL_OK)
      return fail(host, "an advantage was refused");
  host->metric(host->ctx, PRL_LITERAL("zscore/std"), sqrt(variance));
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
};

PRL_EXPORT int32_t prl_plugin_init(uint32_t host_abi, const prl_plugin **out, prl_str *error) {
  if (host_abi >> 16 != PRL_ABI_MAJOR) {
    *error = PRL_LITERAL("zscore is built for plug-in ABI 1");
    return PRL_ERROR;
  }
  *out = &table;
  return PRL_OK;
}
