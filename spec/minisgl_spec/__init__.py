"""The oracle and the words: a definition of prefix caching that runs, standard library only.

    from minisgl_spec import RadixTree, Scheduler, invariants

Chapter: spec/README.md
"""

from minisgl_spec import contracts, draw, errors, invariants, messages, numerics, shadow, trace, units, views
from minisgl_spec.errors import BackendUnavailable, ContractError, InvariantError, Refusal, Violation
from minisgl_spec.radix_tree import RadixTree
from minisgl_spec.requests import Config, Submission
from minisgl_spec.scheduler import Abort, Outputs, Scheduler, step

__version__ = trace.PACKAGE_VERSION

__all__ = [
    "Abort",
    "BackendUnavailable",
    "Config",
    "ContractError",
    "InvariantError",
    "Outputs",
    "RadixTree",
    "Refusal",
    "Scheduler",
    "Submission",
    "Violation",
    "contracts",
    "draw",
    "errors",
    "invariants",
    "messages",
    "numerics",
    "shadow",
    "step",
    "trace",
    "units",
    "views",
]
