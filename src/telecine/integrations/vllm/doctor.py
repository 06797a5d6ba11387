"""What ``telecine doctor --vllm`` prints."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from telecine.integrations.vllm.plugin import state

__all__ = ["report"]


def report(as_json: bool) -> tuple[list[str], bool]:
    """The state of the plugin as lines for people, or as one JSON document; and whether every part is on."""
    with contextlib.redirect_stdout(sys.stderr):  # vLLM logs there while it is imported
        found = state()
    on = all(part == "on" for part in found["parts"].values())
    return ([json.dumps(found, indent=2)] if as_json else list(_lines(found))), on


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"vLLM {found['vllm'] or 'is not usable here'}"
    yield "parts"
    yield from _table(found["parts"])
    if found["vllm"] is None:
        return
    yield "loaders, and how telecine decodes for them"
    yield from _table(found["loaders"])
    yield "media connectors (VLLM_MEDIA_CONNECTOR)"
    yield f"  {', '.join(found['connectors'])}"
    yield 'options of the codec, in the part "video" of --media-io-kwargs'
    yield f"  {', '.join(found['codec_options'])}"
    yield "environment"
    yield from _table({name: "not set" if value is None else value for name, value in found["chosen"].items()})


def _table(rows: dict[str, str]) -> Iterator[str]:
    widest = max(map(len, rows), default=0)
    yield from (f"  {name:<{widest}}  {value}" for name, value in rows.items())
