"""The formulas of algorithms and losses in float64, from the papers and from prime-rl's behaviour, for comparison.

Written with numpy alone and independent of the plug-ins: lists in, arrays out, no shortcut of theirs. Sources:

- grpo      Shao et al., arXiv:2402.03300, without the deviation (Liu et al., arXiv:2503.20783); length penalty of prime-rl
- max_rl    Tajwar et al., arXiv:2602.02710
- echo      Shrivastava et al., arXiv:2605.24517
- rae       Liu et al., arXiv:2506.24119
- gspo      Zheng et al., arXiv:2507.18071
- cispo     MiniMax-M1, arXiv:2506.13585
- default   a policy gradient with importance ratios that drops tokens whose probability moved too far, and a squared
            log-ratio; ipo is the same with a symmetric threshold
- ce, ref_kl  cross-entropy; reverse KL to reference log-probabilities with the gradient of a policy gradient
"""

from fractions import Fraction

import numpy as np

F64 = np.float64


def mean(values):
    """Exact, and rounded once."""
    return F64(float(sum(map(Fraction, map(float, values))) / len(values)))


def grpo(rewards):
    """Distances to the mean, exact and rounded once: plain sums lose what close rewards differ by."""
    exact = [Fraction(float(reward)) for reward in rewards]
    centre = sum(exact) / len(exact)
    return np.array([F64(float(reward - centre)) for reward in exact])


def length_penalty(rewards, output, context, turns, weights):
    """Rewards less the group's mean reward times the fraction of the longest, weighted over three kinds of length."""
    rewards = np.asarray(rewards, F64)
    fraction = np.zeros(len(rewards))
    for weight, lengths in zip(weights, (output, context, turns)):
        lengths = np.asarray(lengths, F64)
        fraction += weight * lengths / max(1.0, lengths.max())
    return rewards - mean(rewards) * fraction


def max_rl(rewards):
    centre = mean(rewards)
    return grpo(rewards) / centre if centre > 0 else np.zeros(len(rewards))


def rae(groups, decay):
    """Advantages of groups one after another: the baseline is taken before it moves."""
    baseline, result = F64(0), []
    for rewards in groups:
        advantages = []
        for reward in rewards:
            advantages.append(F64(reward) - baseline)
            baseline = decay * baseline + (1 - decay) * F64(reward)
        result.append(np.array(advantages))
    return result


def broadcast(advantage, mask):
    """One value on every sampled token, 0 elsewhere."""
    return np.where(np.asarray(mask, bool), advantage, 0.0)


def echo_weights(mask, roles, contents, ids, alphas, max_tokens=None, skipped=()):
    """Weights of observed tokens in one sample: what was not sampled, after the first token that was."""
    weights = np.zeros(len(mask))
    if 1 not in mask:
        return weights
    observation, counted = None, 0
    for t in range(list(mask).index(1), len(mask)):
        seen = roles[t] if not mask[t] and contents[t] else None
        if seen != observation:
            observation, counted = seen, 0
        if seen not in alphas or ids[t] in skipped or (max_tokens is not None and counted >= max_tokens):
            continue
        weights[t] = alphas[seen]
        counted += 1
    return weights


def as_columns(values):
    """Inputs reach a loss in float32; everything after that is float64."""
    return np.asarray(values, np.float32).astype(F64)


def surrogate(lp, mu, advantage, keep, tau):
    """(loss, derivative) of each token: -keep*A*exp(lp - mu) + tau*(lp - mu)^2."""
    rho = lp - mu
    policy = np.where(keep, -advantage * np.exp(rho), 0.0)
    return policy + tau * rho**2, policy + 2 * tau * rho


def reduce(loss, derivative, weight):
    """Sum over members divided by their number (at least 1)."""
    members = weight != 0
    count = max(1, int(members.sum()))
    return (weight * loss)[members].sum() / count, np.where(members, weight * derivative, 0.0) / count


def policy_gradient(kind, lp, mu, advantage, mask, weight, low=0.2, high=0.2, threshold=0.1, adv_tau=1.0, kl_tau=1e-3):
    moved = np.exp(lp) - np.exp(mu)
    if kind == "default":
        dropped = np.where(advantage > 0, moved > high, moved < -low)
    else:
        dropped = np.abs(moved) > threshold
    loss, derivative = surrogate(lp, mu, adv_tau * advantage, ~dropped, kl_tau)
    return reduce(loss, derivative, np.where(mask, weight, 0.0))


def cross_entropy(lp, weight):
    return reduce(-lp, -np.ones(len(lp)), weight)


def reference_kl(lp, mu, reference, mask, weight):
    keep = ~(np.exp(lp) - np.exp(mu) < -0.2)
    loss, derivative = surrogate(lp, mu, reference - lp, keep, 1e-3)
    return reduce(loss, derivative, np.where(mask, weight, 0.0))


def standardised(rewards):
    """Distance to the mean in population deviations; 0 for equal rewards."""
    above = grpo(rewards)
    deviation = np.sqrt(mean(above**2))
    return above / deviation if deviation > 0 else np.zeros(len(above))


def gspo(lp, mu, advantage, mask, weight, lengths, low=3e-4, high=4e-4):
    """Clipped ratios of whole sequences, each the geometric mean of its members' ratios; the sum over all members is divided
    by their number (the paper takes the mean over sequences)."""
    member = np.where(mask, weight, 0.0) != 0
    loss, derivative, start = F64(0), np.zeros(len(lp)), 0
    for length in lengths:
        tokens = np.arange(start, start + length)[member[start : start + length]]
        start += length
        if len(tokens) == 0:
            continue
        ratio = np.exp(mean(lp[tokens] - mu[tokens]))
        plain = ratio * advantage[tokens]
        clipped = np.clip(ratio, 1 - low, 1 + high) * advantage[tokens]
        loss -= (weight[tokens] * np.minimum(plain, clipped)).sum()
        derivative[tokens] -= (weight[tokens] * np.where(plain <= clipped, plain, 0.0)).sum() / len(tokens)
    count = max(1, int(member.sum()))
    return loss / count, derivative / count


def cispo(lp, mu, advantage, mask, weight, largest=5.0):
    """The log-probability times its advantage times its ratio, which is clipped above and held constant."""
    pull = np.minimum(np.exp(lp - mu), largest) * advantage
    return reduce(-pull * lp, -pull, np.where(mask, weight, 0.0))
