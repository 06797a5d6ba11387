"""One number makes one mutated file, with what may be expected of its frames."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from fuzz.corpus import SEEDS, Seed, load_seed

__all__ = ["MUTATORS", "Case", "Draft", "Mutator", "describe_case", "make_case", "mutator"]

Identity = Literal["index", "time", "none"]


@dataclass
class Draft:
    """A file that is being mutated, and the claims that the mutators make about it."""

    seed: Seed
    rng: random.Random
    data: bytearray
    identity: Identity = "index"
    """"index": frame k of the intact file still has index k; "time": it still has its time; "none": neither is sure."""
    at_risk: set[int] | None = field(default_factory=set)
    """Frames that may be lost; None if any may be."""
    steps: list[str] = field(default_factory=list)
    """Description of each mutation."""

    def damage(self, packets: set[int]) -> None:
        """Record that packets were damaged, which may lose frames."""
        if self.at_risk is not None:
            self.at_risk |= self.seed.frames_at_risk(packets)

    def lose_identity(self, identity: Identity = "none") -> None:
        """Record that frames may have other indices, or other indices and times."""
        if not self.seed.has_times:
            identity = "none"
        order: list[Identity] = ["index", "time", "none"]
        self.identity = max(self.identity, identity, key=order.index)
        if self.identity == "none":
            self.at_risk = None

    def write(self, at: int, value: bytes) -> None:
        """Overwrite bytes; what would be beyond the end is left out."""
        self.data[at : at + len(value)] = value[: len(self.data) - at]


@dataclass(frozen=True)
class Case:
    """A mutated file."""

    number: int
    seed: Seed
    steps: tuple[str, ...]
    data: bytes
    identity: Identity
    at_risk: frozenset[int] | None

    @property
    def is_harmless(self) -> bool:
        """True if every frame of the intact file must be returned."""
        return self.at_risk is not None and not self.at_risk

    def __str__(self) -> str:
        return f"{self.seed.name}: {'; '.join(self.steps)}"


@dataclass(frozen=True)
class Mutator:
    """A kind of mutation."""

    name: str
    apply: Callable[[Draft], str]
    """Changes the draft and returns a description."""
    applies: Callable[[Seed], bool]
    weight: int
    is_in_place: bool
    """True if all bytes stay at their offsets, so that another mutation can follow."""


MUTATORS: dict[str, Mutator] = {}
"""All mutators by name."""


def mutator(
    applies: Callable[[Seed], bool] = lambda seed: True, weight: int = 4, is_in_place: bool = True
) -> Callable[[Callable[[Draft], str]], Callable[[Draft], str]]:
    """Register a function as a mutator."""

    def register(function: Callable[[Draft], str]) -> Callable[[Draft], str]:
        MUTATORS[function.__name__] = Mutator(function.__name__, function, applies, weight, is_in_place)
        return function

    return register


def describe_case(number: int) -> tuple[str, str]:
    """Return the name of the intact file of a case and that of its first mutator, without making either."""
    rng = random.Random(number)
    name = rng.choice(SEEDS)
    return name, _choose(rng, load_seed(name)).name


def make_case(number: int) -> Case:
    """Make the mutated file of a number; the same number always gives the same file."""
    rng = random.Random(number)
    seed = load_seed(rng.choice(SEEDS))
    draft = Draft(seed, rng, bytearray(seed.data))
    chosen = _choose(rng, seed)
    draft.steps.append(f"{chosen.name} {chosen.apply(draft)}")
    while chosen.is_in_place and rng.random() < 0.15:
        chosen = _choose(rng, seed)
        draft.steps.append(f"{chosen.name} {chosen.apply(draft)}")
    at_risk = None if draft.at_risk is None else frozenset(draft.at_risk)
    return Case(number, seed, tuple(draft.steps), bytes(draft.data), draft.identity, at_risk)


def _choose(rng: random.Random, seed: Seed) -> Mutator:
    usable = [kind for kind in MUTATORS.values() if kind.applies(seed)]
    return rng.choices(usable, [kind.weight for kind in usable])[0]
