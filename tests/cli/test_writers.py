"""Frames on disk: complete or not at all; wrong targets are refused before anything is decoded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.clips import CLIPS, read_number
from telecine import DeadlineError, OptionsError, load
from telecine.cli.writers import as_document, claim, claim_sheet, save_sheet
from telecine.deadline import Deadline


@pytest.fixture(scope="module")
def frames():
    return load(CLIPS["base.mp4"].path(), indices=[47, 3, 47])


def write(frames, target, source="-"):
    with claim(str(target), source) as writer:
        writer(frames, Deadline())


def test_a_folder_has_one_png_for_each_frame_index(frames, tmp_path):
    write(frames, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "frame_000003.png",
        "frame_000047.png",
        "frames.json",
    ]
    for index in (3, 47):
        with Image.open(tmp_path / f"out/frame_{index:06d}.png") as picture:
            pixels = np.asarray(picture)
        assert read_number(pixels) == index
        assert (pixels == frames.data[frames.indices == index][0]).all()
    document = json.loads((tmp_path / "out/frames.json").read_text())
    assert document == json.loads(json.dumps(as_document(frames, folder=True)))
    assert [row["file"] for row in document["frames"]] == [f"frame_{i:06d}.png" for i in (47, 3, 47)]


def test_other_files_in_an_existing_folder_are_kept(frames, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "frames.json").write_text("old")
    write(frames, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert json.loads((tmp_path / "frames.json").read_text())["info"]["num_frames"] == 60


def test_an_npz_file_has_frames_indices_timestamps_and_metadata(frames, tmp_path):
    write(frames, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert set(arrays) == {"frames", "indices", "timestamps", "metadata"}
        assert (arrays["frames"] == frames.data).all()
        assert arrays["indices"].tolist() == [47, 3, 47]
        assert arrays["timestamps"].tolist() == frames.timestamps.tolist()
        metadata = json.loads(str(arrays["metadata"]))
    assert metadata["metadata"] == frames.metadata()
    assert metadata["info"]["sample_aspect_ratio"] == "1/1"


@pytest.mark.parametrize("name", ["sheet.jpg", "sheet.jpeg", "sheet.png", "SHEET.JPG"])
def test_a_contact_sheet_has_the_format_of_its_suffix(frames, tmp_path, name):
    write(frames, tmp_path / name)
    with Image.open(tmp_path / name) as picture:
        assert picture.format == ("PNG" if name.endswith("png") else "JPEG")
        assert picture.size == frames.sheet().size


def test_output_files_have_the_default_permissions(frames, tmp_path):
    (tmp_path / "other").touch()
    write(frames, tmp_path / "out.npz")
    assert (tmp_path / "out.npz").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_target_that_is_a_link_stays_a_link(frames, tmp_path):
    (tmp_path / "link.png").symlink_to(tmp_path / "real.png")
    write(frames, tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink() and (tmp_path / "real.png").is_file()


@pytest.mark.parametrize("target", ["out.npz", "out.jpg", "out", "deep/out", "a/b/c/", "a/b/../c/d/"])
def test_nothing_is_left_behind_if_decoding_fails(frames, tmp_path, target):
    with pytest.raises(RuntimeError, match="decoding failed"), claim(str(tmp_path / target), "-"):
        assert list(tmp_path.iterdir())  # claimed
        raise RuntimeError("decoding failed")
    assert list(tmp_path.iterdir()) == []


def test_existing_folders_and_folders_in_use_are_kept_if_decoding_fails(frames, tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(RuntimeError), claim(str(tmp_path / "old/a/b/c"), "-"):
        (tmp_path / "old/a/other.txt").write_text("somebody else's")
        raise RuntimeError("decoding failed")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "old", "other.txt"]


def test_a_folder_that_cannot_be_made_leaves_no_parent_folder_behind(tmp_path, monkeypatch):
    real = os.mkdir

    def mkdir(path, *arguments):
        if Path(path).name == "c":
            raise OSError(28, "No space left on device")
        real(path, *arguments)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(OptionsError, match="No space left"), claim(str(tmp_path / "a/b/c/d"), "-"):
        pytest.fail("it was claimed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["sheet.foo", "sheet.npz", "sheet", "", "sheet/", "folder.png"])
def test_claim_sheet_refuses_targets_that_are_no_contact_sheet(tmp_path, target):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(OptionsError, match=r"must be the path of a contact sheet \(\.jpg, \.jpeg, \.png\)"):
        with claim_sheet(str(tmp_path / target) if target else "", "-"):
            pytest.fail("it was claimed")
    with pytest.raises(OptionsError, match="cannot be written"), claim_sheet(str(tmp_path / "absent/x.png"), "-"):
        pytest.fail("it was claimed")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.png"]


def test_a_contact_sheet_gets_its_name_when_it_is_complete(frames, tmp_path):
    target = tmp_path / "sheet.PNG"
    with claim_sheet(str(target), "-") as write_file:
        write_file(lambda path: (save_sheet(frames.sheet(), path), target.exists() and pytest.fail("too early")))
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.PNG"]
    with pytest.raises(RuntimeError), claim_sheet(str(tmp_path / "other.jpg"), "-"):
        raise RuntimeError("decoding failed")
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.PNG"]


def test_an_existing_file_is_kept_if_writing_fails(frames, tmp_path, monkeypatch):
    (tmp_path / "out.npz").write_bytes(b"old")

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OptionsError, match="No space left on device"):
        write(frames, tmp_path / "out.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]
    assert (tmp_path / "out.npz").read_bytes() == b"old"


def test_the_deadline_is_checked_while_frames_are_written(frames, tmp_path):
    deadline = Deadline(1e-9)
    for target in ("out", "out.png"):
        with pytest.raises(DeadlineError), claim(str(tmp_path / target), "-") as writer:
            writer(frames, deadline)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["out.gif", "out.mp4", "frames.json", "-", ""])
def test_an_unknown_suffix_is_refused_with_the_allowed_ones(tmp_path, target):
    with pytest.raises(OptionsError, match=r"\.npz"), claim(str(tmp_path / target) if "." in target else target, "-"):
        pytest.fail("it was claimed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["absent/out.png", "file/out.png", "file/out", "file"])
def test_a_target_that_cannot_be_written_is_refused(tmp_path, target):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OptionsError, match="cannot be written"), claim(str(tmp_path / target), "-"):
        pytest.fail("it was claimed")


def test_a_target_that_is_the_video_itself_is_refused(tmp_path):
    video = tmp_path / "animation.png"
    video.write_bytes(b"pixels")
    os.link(video, tmp_path / "same.png")
    for target in (video, tmp_path / "same.png"):
        with pytest.raises(OptionsError, match="the video itself"), claim(str(target), str(video)):
            pytest.fail("it was claimed")
    assert video.read_bytes() == b"pixels"
