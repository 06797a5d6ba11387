"""vLLM's own tests of video loading, with telecine decoding where they ask for OpenCV."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

vllm = pytest.importorskip("vllm", reason="needs vLLM: scripts/test vllm")

HERE = Path(__file__).parent
SUITE = Path(os.environ.get("VLLM_OWN_TESTS") or Path(sys.prefix) / "vllm-tests")

NOT_RUN = {
    "from_model_repo": "downloads the configurations of models",
}
DIFFERENT = {
    "test_qwen3_vl_unknown_source_fps_matches_hf": (
        "has OpenCV report an unknown rate; telecine measures the rate of the clip, and knows it"
    ),
    "test_video_decoder_backends_are_lazy_imported": (
        "imports vLLM in a process of its own, which PyPI's torchvision beside a PyTorch without CUDA does not survive"
    ),
}
"""Tests that fail with telecine, and the reason."""


@pytest.mark.timeout(1200)
def test_vllms_own_tests_pass_with_telecine_in_place_of_opencv(tmp_path):
    if not (SUITE / "multimodal").exists():
        pytest.skip(f"vLLM's tests are not at {SUITE}; scripts/test vllm puts them there")
    shutil.copytree(SUITE, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nmarkers =\n    cpu_test\n    core_model\n    skip_global_cleanup\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "vllm_own_tests"),
            *("-k", " and ".join(f"not {name}" for name in NOT_RUN)),
            *("tests/multimodal/test_video.py", "tests/multimodal/media/test_video.py"),
        ],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), *sys.path[1:]]),
            "TELECINE_IN_PLACE_OF_OPENCV": "1",
            "VLLM_ASSETS_CACHE": str(tmp_path / "assets"),
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    failed = {name.partition("[")[0] for name in re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", done.stdout, re.MULTILINE)}
    assert failed <= set(DIFFERENT), done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 100, done.stdout[-3000:]
