"""Record what every case gives now: ``python tests/golden/record.py [FAMILY ...]``.

A recording is what users saw at that time. Record anew only what is meant to change, and say so in the change log.
"""

import json
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def recording_of(family):
    """Return the file of a family."""
    return _HERE / f"{family}.json"


def main(families):
    """Run the cases of these families, or of all, and write their files."""
    sys.path[:0] = [str(_HERE.parents[1]), str(_HERE.parent)]
    from golden.cases import CASES

    for family in families or CASES:
        recorded = {name: case() for name, case in CASES[family].items()}
        text = json.dumps(recorded, indent=1, sort_keys=True, ensure_ascii=False)
        recording_of(family).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
