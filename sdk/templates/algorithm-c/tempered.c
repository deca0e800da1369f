/* tempered: A_i = r_i - mean(r), the reward of each rollout above the mean of its group.
 *
 *   cc -std=c11 -O2 -fPIC -shared tempered.c -o tempered.so
 *   cc -std=c11 test.c -o test && ./test
 *   prl algo check ./tempered.so
 *   prl rl @ rl.toml --plugin ./tempered.so --orchestrator.algo.type tempered
 *
 * prl.h, beside this file, is the specification of everything that is used here.
 */
#include "prl.h"

#include <stdlib.h>
#include <string.h>

PRL_METADATA("{\"name\": \"tempered\", \"version\": \"0.1.0\", \"abi\": \"1.0\", \"hooks\": [\"score_group\"],"
             " \"action_loss\": \"rl\","
             " \"config_schema\": {\"type\": \"object\", \"additionalProperties\": false}}");

/* One instance; an environment of a run has its own. */
typedef struct {
  const prl_host *host;
} instance;

static int32_t fail(const prl_host *host, const char *text) {
  host->error(host->ctx, (prl_str){text, strlen(text)});
  return PRL_ERROR;
}

static int32_t describe(prl_description *out) {
  out->action_loss = PRL_ACTION_RL;
  out->metadata = PRL_LITERAL(prl_metadata);
  return PRL_OK;
}

/* Options would come as JSON; a plug-in without any refuses all but {}. */
static int32_t create(const prl_host *host, prl_str config, void **out) {
  if (config.len != 2 || memcmp(config.ptr, "{}", 2) != 0) return fail(host, "tempered has no options");
  instance *self = malloc(sizeof *self);
  if (!self) return fail(host, "out of memory");
  self->host = host;
  *out = self;
  return PRL_OK;
}

static void destroy(void *self) { free(self); }

static int32_t score_group(void *self, const prl_group *group) {
  const prl_host *host = ((instance *)self)->host;
  const double *reward = prl_column_ptr(group, PRL_COL_REWARD, PRL_F64);
  if (!reward) return fail(host, "the host gave no rewards");
  /* Over distances to the first reward: equal rewards give zeros, close ones lose nothing. */
  double mean = 0;
  for (size_t i = 0; i < group->n_rollouts; i++) mean += (reward[i] - reward[0]) / (double)group->n_rollouts;
  for (size_t i = 0; i < group->n_rollouts; i++)
    if (host->assign(host->ctx, i, (reward[i] - reward[0]) - mean) != PRL_OK)
      return fail(host, "an advantage was refused");
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
    *error = PRL_LITERAL("tempered is built for plug-in ABI 1");
    return PRL_ERROR;
  }
  *out = &table;
  return PRL_OK;
}
