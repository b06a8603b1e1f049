"""The zoo: deliberate bugs, kept so that the judges can be shown to see them.

`fault.py` says what a fault is and loads an engine that has it. `deviations.py` and `later_deviations.py`
list what undoes each of the deviations of `spec/deviations.md`, the other modules the faults of one place
each. `variants.py` has the opposite: engines that are right and not like ours.

Nothing here is imported by the engine.
Chapter: spec/deviations.md
"""

from __future__ import annotations

from minisgl_ref.zoo import deviations, later_deviations, managers, prefill, scheduler_faults, streams, tree
from minisgl_ref.zoo.fault import Fault

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for faults in (
        deviations.UNDOS.values(),
        later_deviations.FAULTS,
        tree.FAULTS,
        managers.FAULTS,
        prefill.FAULTS,
        scheduler_faults.FAULTS,
        streams.FAULTS,
    )
    for fault in faults
}
"""Every fault by its name: the deviations first, then by place."""
