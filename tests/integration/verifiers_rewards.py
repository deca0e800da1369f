"""The rewards that published environments give under the real `verifiers`. Helper of python_envs.py, run in that
version's own virtual environment.

Usage: verifiers_rewards.py ENVIRONMENT [OPTION] < requests.json > rewards.json

A request is `{"index", "text"}`: the task's index and the model's message. An answer is `{"prompt", "rewards",
"reward"}`."""

import asyncio
import itertools
import json
import sys


def constraint_gym() -> object:
    from stardata.envs.constraint_gym import load_environment

    return load_environment()


def reasoning_gym(task: str) -> object:
    from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv

    return ReasoningGymEnv(task, num_train_examples=99, num_eval_examples=1, seed=0)


async def rubric_scores(env, requests) -> list[dict]:
    """verifiers 0.1: the environment's rubric on a finished rollout."""
    import time

    import verifiers as vf

    answers = []
    for request in requests:
        row = env.get_dataset()[request["index"]]
        state = vf.State(row)
        completion = [{"role": "assistant", "content": request["text"]}]
        state.update(
            completion=completion, prompt=row["prompt"], answer=row.get("answer", ""), info=row.get("info", {})
        )
        state.update(trajectory=[], timing=vf.types.RolloutTiming(start_time=time.time()), task="")
        if isinstance(state["info"], str):
            state["info"] = json.loads(state["info"])
        await env.rubric.score_rollout(state)
        prompt = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
        answers.append({"prompt": prompt, "reward": state["reward"], "rewards": state["metrics"]})
    return answers


async def marble(requests) -> list[dict]:
    """verifiers 0.4: the task's own `score` on a trace."""
    import verifiers.v1 as vf
    from marble_v1.taskset import MarbleConfig, MarbleTaskset
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask

    count = 1 + max(request["index"] for request in requests)
    tasks = list(itertools.islice(MarbleTaskset(MarbleConfig()).load(), count))
    answers = []
    for request in requests:
        task = tasks[request["index"]]
        trace = Trace(task=TraceTask(type="MarbleTask", data=task.data), agent=AgentInfo(config=vf.AgentConfig()))
        trace.root_reply = request["text"]
        await task.score(trace, None)
        rewards = {name: reward.score for name, reward in trace.rewards.items()}
        total = sum(reward.score * reward.weight for reward in trace.rewards.values())
        answers.append({"prompt": task.data.prompt, "reward": total, "rewards": rewards})
    return answers


def main() -> None:
    name, *options = sys.argv[1:]
    requests = json.load(sys.stdin)
    # What is printed meanwhile goes elsewhere.
    out, sys.stdout = sys.stdout, sys.stderr
    if name == "marble":
        answers = asyncio.run(marble(requests))
    else:
        env = {"constraint-gym": constraint_gym, "reasoning-gym": reasoning_gym}[name](*options)
        answers = asyncio.run(rubric_scores(env, requests))
    json.dump(answers, out)


main()
