"""The examples of the repository and of the README run and print what they promise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from PIL import Image

import telecine
from support.clips import CLIPS

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
STAND_IN = """
import json, sys, types
from dataclasses import asdict, dataclass

@dataclass
class VideoMetadata:  # the fields of transformers 5.24
    total_num_frames: int
    fps: float = None
    width: int = None
    height: int = None
    duration: float = None
    video_backend: str = None
    frames_indices: list = None

class AutoProcessor:
    @classmethod
    def from_pretrained(cls, model):
        assert model == "some/model"
        return cls()

    def apply_chat_template(self, messages, add_generation_prompt):
        (message,) = messages
        assert [part["type"] for part in message["content"]] == ["video", "text"] and add_generation_prompt
        return message["content"][1]["text"]

    def __call__(self, text, videos, video_metadata, do_sample_frames, return_tensors):
        (video,), (metadata,) = videos, video_metadata
        print(json.dumps([text, str(video.dtype), video.shape, asdict(metadata), do_sample_frames, return_tensors]))
        return {"pixel_values_videos": video}

sys.modules["transformers.video_utils"] = types.ModuleType("transformers.video_utils")
sys.modules["transformers.video_utils"].VideoMetadata = VideoMetadata
"""
"""A stand-in for transformers, which needs torch and a model: it prints what it is given."""


def run(name, *arguments, code=0, path=None):
    paths = [str(path)] if path else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(Path(telecine.__file__).parent.parent)])}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stderr
    return done


def test_every_example_is_tested_here_and_has_less_than_40_lines():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"frames_to_numpy.py", "contact_sheets.py", "transformers_inputs.py"}
    for name in names:
        assert len((EXAMPLES / name).read_text().splitlines()) < 40


@pytest.mark.parametrize("clip", ["base.mp4", "vfr.mp4"], indirect=True)
def test_frames_to_numpy_prints_the_frames_that_load_gives(clip):
    first, *rest = run("frames_to_numpy.py", clip.path()).stdout.splitlines()
    expected = telecine.load(clip.path(), num_frames=8, size=224)
    assert first == f"uint8 {list(expected.data.shape)}, mean {expected.data.mean():.1f}"
    assert rest == [f"frame {f.index} at {f.timestamp:.3f} s: mean {f.image.mean():.1f}" for f in expected]


@pytest.mark.parametrize("arguments", [[], ["one.mp4", "two.mp4"]])
@pytest.mark.parametrize("name", ["frames_to_numpy.py", "contact_sheets.py", "transformers_inputs.py"])
def test_an_example_with_wrong_arguments_prints_its_usage(tmp_path, name, arguments):
    (tmp_path / "transformers.py").write_text(STAND_IN)
    done = run(name, *arguments, code=1, path=tmp_path)
    assert done.stderr.startswith(f"usage: python examples/{name} ") and done.stderr.count("\n") == 1


def test_contact_sheets_writes_a_sheet_for_each_video_and_names_those_it_cannot_read(tmp_path):
    for name in ("base.mp4", "rotated90.mp4", "audio.mp4"):
        (tmp_path / name).symlink_to(CLIPS[name].path())
    (tmp_path / "notes.txt").write_text("no video")
    done = run("contact_sheets.py", tmp_path, code=1)
    assert done.stdout.count("12 frames of") == 2
    assert "audio.mp4: no video stream" in done.stderr
    sheets = sorted(tmp_path.glob("*.jpg"))
    assert [sheet.stem for sheet in sheets] == ["base", "rotated90"]
    for sheet in sheets:
        with Image.open(sheet) as picture:
            assert picture.width == 1280


def test_transformers_inputs_gives_the_processor_frames_and_metadata(tmp_path):
    (tmp_path / "transformers.py").write_text(STAND_IN)
    video = CLIPS["base.mp4"].path()
    first, *shapes = run("transformers_inputs.py", video, "What?", "some/model", path=tmp_path).stdout.splitlines()
    frames = telecine.load(video, policy="qwen3_vl")
    facts = frames.metadata()
    assert facts.pop("do_sample_frames") is False
    assert json.loads(first) == [["What?"], "uint8", list(frames.data.shape), facts, False, "pt"]
    assert shapes == [f"pixel_values_videos {list(frames.data.shape)}"]


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    """All Python code of its section "Use", but for the line that needs a GPU."""
    text = (EXAMPLES.parent / "README.md").read_text()
    section = text.split("## Use\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "cuda" not in line]
    assert len(blocks) == 4 and len(lines) > 20
    (tmp_path / "clip.mp4").symlink_to(CLIPS["base.mp4"].path())
    monkeypatch.chdir(tmp_path)
    exec("\n".join(lines), {"telecine": telecine, "numpy": numpy})
    assert {path.name for path in tmp_path.iterdir()} == {"clip.mp4", "frame.png", "sheet.jpg"}
