"""Faults of the tree: matching, splitting, inserting, locking and evicting.

Most are hunted at level `cache`, where the runner plays allocator and model and every answer of the
tree is held to a contract; a few show only when a request lives on what the tree gave it.

Nothing here is right. Chapter: spec/02-radix-tree.md, spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from minisgl_ref.zoo.fault import CACHE, Edit, Fault

RADIX = "minisgl_ref.kvcache.radix_cache"
BASE = "minisgl_ref.kvcache.base"
NAIVE = "minisgl_ref.kvcache.naive_cache"

EVICT_UNTIL_NOTHING_IS_QUEUED = Edit(
    RADIX, "while len(pages) < num_pages:", "while len(pages) < num_pages and queue:"
)
"""An eviction that finds its queue empty returns what it has, as a heap that is walked would."""

# -- locks -------------------------------------------------------------------------------------

LOCK_SKIPS_ITS_NODE = Fault(
    name="lock_skips_its_node",
    edits=(
        Edit(
            RADIX,
            """\
            node.ref_count += 1
            node = node.parent
""",
            """\
            if node is not handle.node or node.parent is None:
                node.ref_count += 1
            node = node.parent
""",
        ),
        Edit(
            RADIX,
            """\
            if not node.ref_count:
                num_pages += len(node.pages)
            node.ref_count
""",
            """\
            if not node.ref_count and node is not handle.node:
                num_pages += len(node.pages)
            node.ref_count
""".replace("node.ref_count\n", "node.ref_count\n"),
        ),
    ),
    rule="ref_count_counts_handles",
    undoes="MS-1",
    sentence="Locking steps to the parent before it counts, so the handle's own node is never protected.",
    level=CACHE,
)
