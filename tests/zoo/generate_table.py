"""Hunt the whole zoo and write what came of it beside it: `python tests/zoo/generate_table.py [workers]`.

`table.json` is for tests, `table.md` for readers: it is what `minisgl-ref bugs --all` prints.

Guide: tests/README.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from minisgl_conformance import bugs
from minisgl_conformance.adapters.zoo import faults

SEED = 1
ZOO = Path(__file__).resolve().parents[2] / "minisgl_ref" / "zoo"
HEAD = """\
# The zoo's table

Written by `python tests/zoo/generate_table.py`. What the columns mean:
[fuzzing.md](../../spec/fuzzing.md#would-it-have-found-anything). Seconds are processor time, of one machine.

"""


def main(workers: int) -> None:
    """Write both tables: one entry per fault, in the order of the zoo."""
    hunts = bugs.hunt_all(list(faults()), SEED, workers)
    table = {"seed": SEED, "hunts": [hunted.to_json() for hunted in hunts]}
    (ZOO / "table.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    (ZOO / "table.md").write_text(HEAD + bugs.table(hunts), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
