"""`python -m tests.fuzz [kind …] --count 100000`: exit code 1 if anything was found."""

from __future__ import annotations

import argparse
import time

from tests.fuzz.kinds import KINDS
from tests.fuzz.run import finds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all")
    parser.add_argument("--count", type=int, default=100_000, help="damaged files of each kind")
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    total = 0
    for kind in args.kinds or KINDS:
        started, number = time.monotonic(), 0
        for find in finds(kind, args.count, args.first_seed):
            number += 1
            print(f"  {find.kind} seed {find.seed}: {find.problem}", flush=True)
        print(
            f"{kind}: {args.count} files, {number} finds, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        total += number
    return int(total > 0)


if __name__ == "__main__":
    raise SystemExit(main())
