"""Where componentize-py looks for the resource of the interface `environment`."""

from prl_env.guest.exports import Rollout

__all__ = ["Rollout"]
