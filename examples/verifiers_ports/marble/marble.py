"""Place pieces so that a falling marble lands in a ring: the environment of the PyPI package marble-v1."""

import prl_env as prl
from marble_v1 import levels, sim
from marble_v1.taskset import PIECES, PROMPT, parse_layout

__version__ = "0.1.0"


def row(made: levels.Generated) -> dict:
    level = made.level
    inventory = {kind.value: count for kind, count in level.inventory.items()}
    sx, sy, vx, vy, _ = sim.opening_slide()
    values = dict(gravity=sim.GRAVITY, radius=sim.MARBLE_RADIUS, sx=sx, sy=sy, vx=vx, vy=vy, ring_x=level.ring_x)
    values |= dict(
        ring_y=level.ring_y, half_width=level.ring_half_width, below=900, kill=level.bounds + 400, pieces=PIECES
    )
    values |= dict(impulse=sim.SPRING_IMPULSE, step=sim.POSITION_STEP, bounds=level.bounds)
    values["inventory"] = "\n".join(f"- {count} x {kind}" for kind, count in sorted(inventory.items()))
    solution = [{"kind": p.kind.value, "x": p.x, "y": p.y, "rot": p.rot_steps} for p in made.solution]
    ring = [level.ring_x, level.ring_y, level.ring_half_width]
    info = {"ring": ring, "bounds": level.bounds, "inventory": inventory}
    return {"question": PROMPT.format(**values), "answer": solution, "info": info}


def outcome(text: str, info: dict) -> sim.Outcome | None:
    """What the marble does with the layout in a reply, if that is a legal one."""
    layout = parse_layout(text.strip())
    inventory = {sim.Kind(kind): count for kind, count in info["inventory"].items()}
    x, y, half_width = info["ring"]
    level = sim.Level(ring_x=x, ring_y=y, ring_half_width=half_width, bounds=info["bounds"], inventory=inventory)
    legal = layout is not None and len(layout) == sum(inventory.values()) and sim.within_inventory(layout, inventory)
    inside = legal and all(sim.on_grid(p) and abs(p.x) <= level.bounds and abs(p.rot_steps) <= 12 for p in layout)
    return sim.simulate(level, layout) if inside else None


class Marble(prl.SingleTurnEnv):
    @prl.reward
    def scored(self, text, info):
        """Whether the marble goes through the ring."""
        run = outcome(text, info)
        return run is not None and run.scored

    @prl.reward(weight=0.0)
    def answered_legally(self, text, info):
        """Whether the layout keeps to the rules."""
        return outcome(text, info) is not None

    @prl.reward(weight=0.0)
    def closeness(self, text, info):
        """1 through the ring, down to 0 a ring's half width outside it."""
        run = outcome(text, info)
        if run is None or run.miss_by is None:
            return 0.0
        return 1.0 if run.scored else max(0.0, 1.0 - run.miss_by / info["ring"][2])


def load_environment(pieces: int = 1, ring_half_width: float = 118.0, seed: int = 0) -> prl.Environment:
    """Marble.

    pieces: pieces that a level needs
    ring_half_width: how far the ring reaches either side of its centre
    seed: where the stream of levels starts
    """

    def train():
        for made in levels.stream(seed, pieces, ring_half_width=ring_half_width):
            yield row(made)

    return Marble(dataset=train)
