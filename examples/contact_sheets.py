"""Write a contact sheet beside every video of a folder; print an error for each that cannot be read.

python examples/contact_sheets.py FOLDER
"""

import sys
from pathlib import Path

import telecine

SUFFIXES = {".mp4", ".mov", ".mkv", ".webm", ".avi", ".ts"}


def main(folder: str) -> int:
    failed = 0
    for video in sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES):
        try:
            frames = telecine.load(video, num_frames=12, size=360)
        except telecine.TelecineError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        sheet = video.with_suffix(".jpg")
        frames.sheet().save(sheet, quality=90)
        print(f"{sheet}: {len(frames)} frames of {frames.info.duration:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/contact_sheets.py FOLDER")
    sys.exit(main(sys.argv[1]))
