"""Makes the helper modules of this folder importable by name, whatever the import mode.

Guide: tests/README.md
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "broken_caches"

if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, Path(__file__).with_name(f"{NAME}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
