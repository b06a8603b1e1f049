"""Hunt the whole zoo and write what came of it beside it: `python tests/zoo/generate_table.py [workers]`.

Guide: tests/README.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from minisgl_conformance import bugs
from minisgl_conformance.adapters.zoo import faults

SEED = 1
TABLE = Path(__file__).resolve().parents[2] / "minisgl_ref" / "zoo" / "table.json"


def main(workers: int) -> None:
    """Write the table: one entry per fault, in the order of the zoo."""
    hunts = bugs.hunt_all(list(faults()), SEED, workers)
    table = {"seed": SEED, "hunts": [hunted.to_json() for hunted in hunts]}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
