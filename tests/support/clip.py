"""The class of a test clip: a recipe and the known facts about the result."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from support import recipes
from support.ffmpeg_cli import Reference, reference
from support.recipes import Recipe

__all__ = ["CLIPS", "Clip", "clips", "declare"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """A test clip and its known facts."""

    name: str
    """File name; the suffix says the container."""
    recipe: Recipe
    codec: str | None
    """FFmpeg's name of the codec; None if there is no video."""
    width: int = 0
    """Pixels as displayed, after rotation."""
    height: int = 0
    """Pixels as displayed, after rotation."""
    num_frames: int = 0
    """Number of presentable frames."""
    header_frames: int | None = None
    """Number in the header (``stream.frames`` of PyAV) if that is another one; 0 if it has none."""
    fps: Fraction | None = None
    """Frames per second if they are evenly spaced."""
    uneven: tuple[float, ...] | None = None
    """Times after the first frame if they are not evenly spaced, seconds."""
    start: float | None = 0.0
    """Time of the first frame in the clock of the file, seconds; None if ffmpeg guesses it."""
    rotation: int = 0
    """Degrees clockwise by which the stored picture is rotated for display."""
    mirrored: bool = False
    """True if it is then mirrored left to right."""
    bit_depth: int = 8
    painted: bool = True
    """True if every frame shows a number."""
    numbers: tuple[int, ...] = ()
    """The number that each presentable frame shows."""
    lost: tuple[int, ...] = ()
    """Frame indices with a packet that ffmpeg cannot decode; counted in ``num_frames``."""
    damaged: tuple[int, ...] = ()
    """Frame indices that ffmpeg decodes to other pixels than in the undamaged clip."""
    damaged_from: str | None = None
    """Name of the undamaged clip."""
    stream: int = 0
    """Index of the video stream in the file."""
    tags: frozenset[str] = frozenset()
    """Tags for :func:`clips`; codec and container are among them."""

    def __str__(self) -> str:
        return self.name

    @property
    def vfr(self) -> bool:
        """True if the frames are unevenly spaced in time."""
        return self.uneven is not None

    @property
    def time_tolerance(self) -> float:
        """Largest rounding error of the times in the file, seconds: some containers count in milliseconds."""
        return 1e-3 if self.tags & {"mkv", "webm", "flv", "asf", "milliseconds"} else 1e-5

    @property
    def times(self) -> list[float]:
        """Time of each frame after the first one, seconds."""
        if self.uneven is not None:
            return list(self.uneven)
        assert self.fps is not None, f"{self.name} declares no times"
        return [float(k / self.fps) for k in range(self.num_frames)]

    def path(self) -> Path:
        """Return the path of the file; make the file on first use."""
        return recipes.make(self.name, _RECIPES)

    def bytes(self) -> bytes:
        """Return the content of the file."""
        return self.path().read_bytes()

    def reference(self) -> Reference:
        """Return all frames and times as the ffmpeg command line decodes them."""
        return reference(self.path(), self.stream)


CLIPS: dict[str, Clip] = {}
"""All clips by name."""
_RECIPES: dict[str, Recipe] = {}


def clips(*tags: str) -> list[Clip]:
    """Return the clips with all these tags, in order of declaration."""
    return [clip for clip in CLIPS.values() if clip.tags.issuperset(tags)]


def declare(name: str, tags: str, recipe: Recipe, **facts: Any) -> None:
    """Declare a clip. Facts that are not given follow from the recipe, or from the clip that it starts from."""
    known = dict(recipe.facts)
    if known:
        first = known.pop("first_number")
        known["numbers"] = tuple(range(first, first + known["num_frames"]))
    elif recipe.needs:
        parent = CLIPS[recipe.needs[0]]
        inherited = "codec width height num_frames fps uneven start bit_depth painted numbers".split()
        known = {field: getattr(parent, field) for field in inherited}
    known |= facts
    if not known.get("painted", True):
        known["numbers"] = ()
    known["tags"] = frozenset([*tags.split(), known["codec"] or "novideo", Path(name).suffix[1:]])
    assert name not in CLIPS, f"{name} is declared twice"
    CLIPS[name] = Clip(name=name, recipe=recipe, **known)
    _RECIPES[name] = recipe
