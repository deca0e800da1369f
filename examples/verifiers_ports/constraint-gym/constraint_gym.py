"""Poems that keep to a form: the environment of the PyPI package staros-stardata."""

import prl_env as prl
from stardata.envs.constraint_gym import build_dataset, prosody_reward

__version__ = "0.1.1"


def load_environment(forms: list[str] | None = None, topics_per_form: int = 4) -> prl.Environment:
    return prl.SingleTurnEnv(dataset=build_dataset(forms, topics_per_form), rubric=prl.Rubric([prosody_reward]))
