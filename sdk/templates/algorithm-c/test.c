/* The plug-in without a host: what it assigns to a group of two. Ends with 0 when all is as it should be. */
#include "tempered.c"

#include <stdio.h>

static double assigned[2];
static prl_str last_error;

static void say(void *ctx, prl_str message) {
  (void)ctx;
  last_error = message; /* all texts of this plug-in are literals */
}

static int wrong(int step) {
  fprintf(stderr, "step %d: %.*s\n", step, (int)last_error.len, last_error.ptr ? last_error.ptr : "");
  return step;
}

static int32_t assign(void *ctx, size_t rollout, double advantage) {
  (void)ctx;
  if (rollout >= 2) return PRL_ERROR;
  assigned[rollout] = advantage;
  return PRL_OK;
}

int main(void) {
  prl_host host = {.struct_size = sizeof host, .abi_version = PRL_ABI_VERSION, .error = say, .assign = assign};
  double rewards[2] = {1, 0};
  prl_column column = {PRL_COL_REWARD, PRL_F64, PRL_AXIS_ROLLOUT, 1, 2, rewards};
  prl_group group = {.struct_size = sizeof group, .n_columns = 1, .columns = &column, .n_rollouts = 2};
  const prl_plugin *plugin = NULL;
  prl_str error;
  void *self = NULL;
  if (prl_plugin_init(PRL_ABI_VERSION, &plugin, &error) != PRL_OK) return wrong(1);
  if (plugin->create(&host, PRL_LITERAL("{}"), &self) != PRL_OK) return wrong(2);
  if (plugin->score_group(self, &group) != PRL_OK) return wrong(3);
  if (assigned[0] != 0.5 || assigned[1] != -0.5) return wrong(4);
  plugin->destroy(self);
  if (plugin->create(&host, PRL_LITERAL("{\"a\":1}"), &self) == PRL_OK) return wrong(5);
  puts("ok");
  return 0;
}
