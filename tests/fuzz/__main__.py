"""``python -m tests.fuzz``: run the fuzzer by hand, for as long as wanted, or repeat one case.

::

    python -m tests.fuzz --minutes 60                     # from a new seed, all CPU backends that work here
    python -m tests.fuzz --seed 1 --count 500 --backend pyav --codec hevc --mutator insert_harmless_units
    python -m tests.fuzz --replay 1234567 --backend pyav --keep case.mp4
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
if str(_TESTS) not in sys.path:
    sys.path.insert(0, str(_TESTS))


def main() -> int:
    """Run the fuzzer and return 1 if there was a finding that no backend may have."""
    from fuzz import container_mutations, packet_mutations, remux_mutations  # noqa: F401
    from fuzz.campaign import Campaign, Record
    from fuzz.mutations import MUTATORS, make_case

    arguments = _parse(sorted(MUTATORS))
    backends = tuple(arguments.backend or _usable_backends())
    if arguments.replay is not None:
        arguments.seed, arguments.count = arguments.replay, 1
        if arguments.keep:
            Path(arguments.keep).write_bytes(make_case(arguments.replay).data)
    numbers = range(arguments.seed, arguments.seed + arguments.count)

    def is_wanted(seed: str, mutator: str) -> bool:
        return (
            seed.startswith(arguments.codec)
            and seed.endswith(arguments.container)
            and (arguments.mutator is None or mutator == arguments.mutator)
        )

    def report(record: Record) -> None:
        if record.is_hard or arguments.soft or arguments.replay is not None:
            _tell(str(record))

    campaign = Campaign(backends)
    campaign.run(numbers, arguments.minutes * 60, is_wanted, report)
    _tell(f"{campaign.cases} cases from {numbers[0]} on: {dict(sorted(campaign.outcomes.items()))}")
    _tell(f"slowest: {campaign.slowest[0]} s, number {campaign.slowest[1]}")
    for (verdict, backend, seed, mutator), count in _groups(campaign.records):
        _tell(f"{count:5} {verdict:18} {backend:11} {seed:24} {mutator}")
    return int(any(record.is_hard for record in campaign.records))


def _parse(mutators: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the CPU backends of telecine.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 40), help="first case")
    parser.add_argument("--count", type=int, default=10**9, help="number of cases")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time after which no case is started")
    parser.add_argument("--backend", action="append", help="backend to test; may be repeated; default: all that work")
    parser.add_argument("--codec", default="", help="only intact files whose name starts so")
    parser.add_argument("--container", default="", help="only intact files whose name ends so")
    parser.add_argument("--mutator", choices=mutators, help="only cases that begin with this mutator")
    parser.add_argument("--soft", action="store_true", help="also print damage that a decoder did not notice")
    parser.add_argument("--replay", type=int, help="repeat one case")
    parser.add_argument("--keep", metavar="FILE", help="write the file of the repeated case")
    return parser.parse_args()


def _usable_backends() -> list[str]:
    from telecine.backends.registry import get_backend

    return [name for name in ("pyav", "opencv", "torchcodec") if get_backend(name).status().usable]


def _groups(records: list) -> list:
    groups = Counter((r.verdict, r.backend, r.case.partition(":")[0], r.mutator) for r in records)
    return sorted(groups.items())


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
