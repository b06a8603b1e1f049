"""Makes the helper modules of this folder importable by name, whatever the import mode.

Guide: tests/README.md
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAMES = ("broken_caches", "broken_engines")

for name in NAMES:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
