"""Faults of the tree: matching, splitting, inserting, locking and evicting.

Most are hunted at level `cache`, where the runner plays allocator and model and every answer of the
tree is held to a contract; a few show only when a request lives on what the tree gave it.

Nothing here is right. Chapter: spec/02-radix-tree.md, spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from minisgl_ref.zoo.fault import CACHE, Edit, Fault
from minisgl_spec.invariants import CONTENT, OWNERSHIP, STRUCTURE

RADIX = "minisgl_ref.kvcache.radix_cache"
BASE = "minisgl_ref.kvcache.base"
NAIVE = "minisgl_ref.kvcache.naive_cache"

UNTIL_NOTHING_IS_QUEUED = Edit(
    RADIX, "while len(pages) < num_pages:", "while len(pages) < num_pages and queue:"
)
"""An eviction that finds its queue empty returns what it has, as a search for leaves would."""

LOCKS = (
    Fault(
        name="lock_skips_its_own_node",
        edits=(
            Edit(
                RADIX,
                "        num_pages = 0\n        while node is not None:\n",
                "        num_pages = 0\n        node = handle.node.parent or node\n"
                "        while node is not None:\n",
            ),
            Edit(
                RADIX,
                "        node = handle.node\n        while (parent",
                "        node = handle.node.parent or handle.node\n        while (parent",
            ),
        ),
        rule="ref_count_counts_handles",
        undoes="MS-1",
        sentence="Lock and unlock step to the parent before they count: the handle's node is unprotected.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="handle_names_the_root",
        edits=(
            Edit(
                RADIX,
                "return Handle(self, node, length // TOKEN_BYTES)",
                "return Handle(self, self._root, length // TOKEN_BYTES)",
            ),
        ),
        rule="match_returns_cached_slots",
        undoes="MS-2",
        sentence="A match stores the root in its handle, so locking the handle protects nothing.",
        level=CACHE,
        judges=(CONTENT,),
        why="Nodes are well formed and own their pages; a handle tells other pages than theirs.",
    ),
    Fault(
        name="unlock_to_zero_is_refused",
        edits=(
            Edit(
                RADIX,
                "            node.ref_count -= 1\n            if not node.ref_count:\n",
                "            node.ref_count -= 1\n            assert node.ref_count > 0\n"
                "            if not node.ref_count:\n",
            ),
        ),
        rule="ref_count_counts_handles",
        undoes="MS-3",
        sentence="Unlock insists on ref_count > 0 after counting down, though 0 is what evictable means.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="split_forgets_the_lock",
        edits=(Edit(RADIX, "            lower.ref_count,\n", "            0,\n"),),
        rule="ref_count_counts_handles",
        undoes="family 4: lock and unlock differ",
        sentence="The upper half of a split starts with ref_count 0 though the lower half is locked.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="leaf_inherits_the_lock",
        edits=(
            Edit(
                RADIX,
                "list(pages[first_page:num_pages]), self._tick, self._next_node_id\n",
                "list(pages[first_page:num_pages]), self._tick, self._next_node_id, node.ref_count\n",
            ),
        ),
        rule="ref_count_counts_handles",
        undoes="family 4: lock and unlock differ",
        sentence="A new leaf takes over its parent's ref_count, and nobody ever takes it back.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="unlock_stops_below_the_root",
        edits=(Edit(RADIX, "        node.ref_count -= 1  # the root", "        # the root"),),
        rule="ref_count_counts_handles",
        undoes="family 4: lock and unlock differ",
        sentence="Lock counts at the root, unlock does not.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="unlock_of_an_unlocked_handle",
        edits=(
            Edit(
                RADIX, "if not handle.is_locked or handle.cache is not self:", "if handle.cache is not self:"
            ),
            Edit(RADIX, "del self._locked[handle]", "self._locked.pop(handle, None)"),
        ),
        rule="mistakes_are_refused",
        undoes="SG-18",
        sentence="Unlock does not ask whether its handle was locked, and counts down what nobody counted up.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="What was accepted breaks counts or lengths; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="lock_of_a_locked_handle",
        edits=(
            Edit(
                RADIX,
                "if handle.is_locked or handle.cache is not self or not handle.node.in_tree:",
                "if handle.cache is not self or not handle.node.in_tree:",
            ),
        ),
        rule="mistakes_are_refused",
        undoes="family 4: lock and unlock differ",
        sentence="A handle may be locked twice and is unlocked once: what the second lock counted stays.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="What was accepted breaks counts or lengths; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="lock_counts_protected_pages_again",
        edits=(
            Edit(
                RADIX,
                "            if not node.ref_count:\n                num_pages += len(node.pages)\n"
                "            node.ref_count += 1",
                "            num_pages += len(node.pages)\n            node.ref_count += 1",
            ),
        ),
        rule="sizes_match_locks",
        undoes="SG-4",
        sentence="A second lock on a path moves its pages from evictable to protected a second time.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="protected_size_never_falls",
        edits=(Edit(RADIX, "        self.protected_size -= num_pages * self.page_size\n", ""),),
        rule="sizes_match_locks",
        undoes="family 4: lock and unlock differ",
        sentence="Unlock adds to evictable_size and takes nothing from protected_size.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
)

MATCHES = (
    Fault(
        name="handle_lends_its_list",
        edits=(Edit(BASE, "            return node.pages.copy()\n", "            return node.pages\n"),),
        rule="keys_page_aligned",
        undoes="SG-17",
        sentence="A handle hands out the node's own list of pages; a request appends private pages to it.",
        judges=(STRUCTURE, OWNERSHIP, CONTENT),
    ),
    Fault(
        name="path_is_not_reversed",
        edits=(Edit(BASE, "        nodes.reverse()\n", ""),),
        rule="match_returns_cached_slots",
        undoes="family 3: wrong pages under right tokens",
        sentence="Pages are gathered from the node up to the root and returned in that order.",
        level=CACHE,
        judges=(CONTENT,),
        why="Nodes are well formed and own their pages; a handle tells other pages than theirs.",
    ),
    Fault(
        name="handle_names_its_last_node_only",
        edits=(Edit(BASE, "for above in node.path():", "for above in node.path()[-1:]:"),),
        rule="match_returns_cached_slots",
        undoes="TG-3",
        sentence="A handle returns the pages of its node and leaves out those of the nodes above.",
        level=CACHE,
        judges=(CONTENT,),
        why="Nodes are well formed and own their pages; a handle tells other pages than theirs.",
    ),
    Fault(
        name="only_the_first_page_is_compared",
        edits=(
            Edit(
                RADIX,
                "            if key.startswith(node.key, start):\n",
                "            if len(key) - start >= len(node.key):\n",
            ),
        ),
        rule="match_is_longest",
        undoes="VL-8",
        sentence="A child found by its first page is trusted for the rest of its key.",
        level=CACHE,
        judges=(STRUCTURE, OWNERSHIP, CONTENT),
    ),
    Fault(
        name="children_by_their_first_token",
        edits=(
            Edit(
                RADIX,
                "node.children.get(key[start : start + page_bytes])",
                "node.children.get(key[start : start + 4])",
            ),
            Edit(
                RADIX,
                "node.children[key[start : start + self._page_bytes]] = leaf",
                "node.children[key[start : start + 4]] = leaf",
            ),
            Edit(RADIX, "first = lower.key[: self._page_bytes]", "first = lower.key[:4]"),
            Edit(
                RADIX,
                "upper.children[lower.key[: self._page_bytes]] = lower",
                "upper.children[lower.key[:4]] = lower",
            ),
            Edit(
                RADIX,
                "del parent.children[leaf.key[: self._page_bytes]]",
                "del parent.children[leaf.key[:4]]",
            ),
        ),
        rule="parents_and_children_agree",
        undoes="family 10: a key says less than the content",
        sentence="A child is found by its first token, whatever the page size: siblings displace each other.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="What is displaced goes on naming its pages; they keep one owner, and slots their tokens.",
    ),
    Fault(
        name="partly_matched_node_keeps_its_tick",
        edits=(
            Edit(
                RADIX,
                "            child.last_used = tick\n            node = child\n",
                "            node = child\n",
            ),
            Edit(
                RADIX,
                "                start += len(node.key)\n",
                "                child.last_used = tick\n                start += len(node.key)\n",
            ),
        ),
        rule="agrees_with_oracle",
        undoes="deviation 14, L15",
        sentence="A node that is matched in part is split with its old tick: what was just used goes first.",
        level=CACHE,
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
)

INSERTS = (
    Fault(
        name="node_keeps_the_callers_list",
        edits=(
            Edit(
                RADIX,
                "list(pages[first_page:num_pages]), self._tick, self._next_node_id\n",
                "pages if (first_page, num_pages) == (0, len(pages)) else list(pages[first_page:num_pages]),"
                " self._tick, self._next_node_id\n",
            ),
        ),
        rule="keys_page_aligned",
        undoes="MS-4",
        sentence="A leaf keeps the list it was given: it changes when the request takes its next page.",
        judges=(STRUCTURE, OWNERSHIP, CONTENT),
    ),
    Fault(
        name="split_leaves_all_pages_below",
        edits=(Edit(RADIX, "        lower.pages = lower.pages[num_pages:]\n", ""),),
        rule="keys_page_aligned",
        undoes="family 2: free is not forgotten",
        sentence="The lower half of a split keeps the upper half's pages.",
        level=CACHE,
        judges=(STRUCTURE, OWNERSHIP, CONTENT),
    ),
    Fault(
        name="insertion_counts_what_was_cached",
        edits=(
            Edit(
                RADIX,
                "self.evictable_size += (num_pages - first_page) * page_size",
                "self.evictable_size += num_pages * page_size",
            ),
        ),
        rule="sizes_match_locks",
        undoes="family 6: estimate and allocation differ",
        sentence="evictable_size grows by the whole insertion, the part that was cached before included.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="insertion_counts_the_tail",
        edits=(
            Edit(
                RADIX,
                "self.evictable_size += (num_pages - first_page) * page_size",
                "self.evictable_size += len(key) // TOKEN_BYTES - first_page * page_size",
            ),
        ),
        rule="sizes_match_locks",
        undoes="SG-1",
        sentence="evictable_size grows by the tokens of the key, eviction takes away whole pages.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="insertion_stores_the_first_pages",
        edits=(Edit(RADIX, "list(pages[first_page:num_pages])", "list(pages[: num_pages - first_page])"),),
        rule="slots_cached_once",
        undoes="VL-3",
        sentence="The new leaf holds the pages of the prefix that was cached already, not those behind it.",
        judges=(OWNERSHIP, CONTENT),
    ),
)

EVICTIONS = (
    Fault(
        name="eviction_ignores_locks",
        edits=(
            Edit(
                RADIX, "            if node.ref_count or node.children:\n", "            if node.children:\n"
            ),
        ),
        rule="evict_frees_enough",
        undoes="LD-6",
        sentence="Eviction takes a leaf that a handle has locked.",
        level=CACHE,
        judges=(STRUCTURE, OWNERSHIP),
    ),
    Fault(
        name="eviction_takes_a_locked_parent",
        edits=(
            Edit(
                RADIX,
                "                pages += node.pages\n                self._remove_leaf(node)\n",
                """\
                while True:
                    pages += node.pages
                    parent = node.parent
                    self._remove_leaf(node)
                    if parent is self._root or parent.children or parent.node_id in queued:
                        break
                    if len(pages) >= num_pages:
                        break
                    node = parent
""",
            ),
        ),
        rule="evict_frees_enough",
        undoes="family 4: lock and unlock differ; section 2, evicts locked parent",
        sentence="Having taken a node's last child, eviction climbs on to it without asking who locked it.",
        level=CACHE,
        judges=(STRUCTURE, OWNERSHIP),
    ),
    Fault(
        name="parent_is_not_queued_again",
        edits=(
            Edit(
                RADIX,
                "            and parent.node_id not in self._queued\n"
                "            and parent.parent is not None\n        ):\n"
                "            self._enqueue(parent)\n",
                "            and parent.node_id not in self._queued\n"
                "            and parent.parent is not None\n        ):\n            return\n",
            ),
            UNTIL_NOTHING_IS_QUEUED,
        ),
        rule="evict_frees_enough",
        undoes="SG-2",
        sentence="A node that an eviction makes a leaf is never a candidate: the next eviction stops early.",
        level=CACHE,
        judges=(OWNERSHIP,),
        why="An eviction gives too little; what stays is well formed and holds its tokens.",
    ),
    Fault(
        name="unlocked_leaf_is_not_queued_again",
        edits=(
            Edit(
                RADIX,
                "                if not node.children and node.node_id not in self._queued:\n"
                "                    self._enqueue(node)\n",
                "",
            ),
            UNTIL_NOTHING_IS_QUEUED,
        ),
        rule="evict_frees_enough",
        undoes="SG-42",
        sentence="A leaf that was skipped while it was locked is no candidate after it is unlocked.",
        level=CACHE,
        judges=(OWNERSHIP,),
        why="An eviction gives too little; what stays is well formed and holds its tokens.",
    ),
    Fault(
        name="evicted_leaf_is_not_unlinked",
        edits=(Edit(RADIX, "        del parent.children[leaf.key[: self._page_bytes]]\n", ""),),
        rule="parents_and_children_agree",
        undoes="VL-5",
        sentence="An evicted leaf stays among its parent's children and is matched again.",
        level=CACHE,
        judges=(STRUCTURE, OWNERSHIP, CONTENT),
    ),
    Fault(
        name="evicted_leaf_still_counts",
        edits=(Edit(RADIX, "        self.evictable_size -= len(pages) * self.page_size\n", ""),),
        rule="sizes_match_locks",
        undoes="family 6: estimate and allocation differ",
        sentence="Eviction does not lower evictable_size.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="evicted_leaf_says_it_is_cached",
        edits=(Edit(RADIX, "        leaf.in_tree = False\n", ""),),
        rule="mistakes_are_refused",
        undoes="VL-29",
        sentence="Eviction unlinks a leaf and leaves the leaf's own mark: its stale handle can be locked.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A stale handle is locked; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="eviction_takes_inner_nodes",
        edits=(
            Edit(
                RADIX, "            if node.ref_count or node.children:\n", "            if node.ref_count:\n"
            ),
        ),
        rule="evict_leaves_first",
        undoes="TR-5",
        sentence="A node is evicted although it has children: what hangs below it is out of reach.",
        level=CACHE,
        judges=(STRUCTURE, OWNERSHIP),
    ),
    Fault(
        name="eviction_rounds_down",
        edits=(
            Edit(RADIX, "num_pages = div_ceil(size, self.page_size)", "num_pages = size // self.page_size"),
        ),
        rule="evict_frees_enough",
        undoes="family 5: pages against tokens",
        sentence="Eviction turns the size it is asked for into pages by rounding down.",
        level=CACHE,
        judges=(OWNERSHIP,),
        why="An eviction gives too little; what stays is well formed and holds its tokens.",
    ),
    Fault(
        name="eviction_beyond_the_limit_asserts",
        edits=(
            Edit(
                RADIX,
                "        if not 0 <= size <= self.evictable_size:\n            self._refuse_evict(size)\n",
                "        assert 0 <= size <= self.evictable_size\n",
            ),
        ),
        rule="steps_complete",
        undoes="deviation 15, L17",
        sentence="Evicting more than is evictable fails an assertion where an error is promised.",
        level=CACHE,
        why="It raises before a state is wrong.",
    ),
    Fault(
        name="negative_eviction",
        edits=(Edit(RADIX, "if not 0 <= size <= self.evictable_size:", "if size > self.evictable_size:"),),
        rule="mistakes_are_refused",
        undoes="L17",
        sentence="Evicting a negative size is accepted.",
        level=CACHE,
        why="It shows in an answer: accepting the call leaves every state well formed.",
    ),
    Fault(
        name="eviction_goes_by_the_first_tick",
        edits=(
            Edit(
                RADIX,
                """\
            elif entry >> ID_BITS != node.last_used:
                heapreplace(queue, node.last_used << ID_BITS | node.node_id)
""",
                "",
            ),
        ),
        rule="evict_takes_oldest_leaf",
        undoes="SG-42",
        sentence="A leaf keeps the place in the queue that it got first, however often it is used.",
        level=CACHE,
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
    Fault(
        name="eviction_takes_the_newest",
        edits=(
            Edit(
                RADIX,
                "            elif entry >> ID_BITS != node.last_used:\n"
                "                heapreplace(queue, node.last_used << ID_BITS | node.node_id)\n",
                "            elif -(entry >> ID_BITS) != node.last_used:\n"
                "                heapreplace(queue, -node.last_used << ID_BITS | node.node_id)\n",
            ),
            Edit(
                RADIX,
                "heappush(self._queue, node.last_used << ID_BITS | node.node_id)",
                "heappush(self._queue, -node.last_used << ID_BITS | node.node_id)",
            ),
        ),
        rule="evict_takes_oldest_leaf",
        undoes="LD-2",
        sentence="The most recently used leaf goes first.",
        level=CACHE,
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
    Fault(
        name="ties_go_to_the_newer_node",
        edits=(
            Edit(RADIX, "node = queued[entry & ID_MASK]", "node = queued[ID_MASK - (entry & ID_MASK)]"),
            Edit(
                RADIX,
                "heapreplace(queue, node.last_used << ID_BITS | node.node_id)",
                "heapreplace(queue, node.last_used << ID_BITS | ID_MASK - node.node_id)",
            ),
            Edit(
                RADIX,
                "heappush(self._queue, node.last_used << ID_BITS | node.node_id)",
                "heappush(self._queue, node.last_used << ID_BITS | ID_MASK - node.node_id)",
            ),
        ),
        rule="evict_takes_oldest_leaf",
        undoes="L27",
        sentence="Of two leaves used in the same operation, the one an insertion has just made goes first.",
        level=CACHE,
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
    Fault(
        name="eviction_takes_everything",
        edits=(
            Edit(
                RADIX,
                "while len(pages) < num_pages:",
                "while size and len(pages) * self.page_size < self.evictable_size:",
            ),
        ),
        rule="agrees_with_oracle",
        undoes="SG-3",
        sentence="The count of what is evicted never ends the loop: one page asked for empties the cache.",
        level=CACHE,
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
)

RESETS = (
    Fault(
        name="reset_keeps_its_size",
        edits=(Edit(RADIX, "        self.evictable_size = 0\n        return [", "        return ["),),
        rule="sizes_match_locks",
        undoes="SG-20",
        sentence="A reset drops every node and goes on counting their slots.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="reset_under_a_lock",
        edits=(Edit(RADIX, "        self._check_reset()\n", ""),),
        rule="mistakes_are_refused",
        undoes="L17",
        sentence="A reset does not ask whether a handle is locked.",
        level=CACHE,
        judges=(STRUCTURE, OWNERSHIP),
    ),
)

WITHOUT_A_CACHE = (
    Fault(
        name="nothing_cached_but_covered",
        edits=(
            Edit(
                NAIVE,
                "        self._check_insert(key, pages)\n"
                "        return InsertResult(0, Handle(self, self._root, 0))\n",
                "        covered = self._check_insert(key, pages) * self.page_size\n"
                "        return InsertResult(0, Handle(self, self._root, covered))\n",
            ),
        ),
        rule="locked_nodes_in_tree",
        undoes="LL-5",
        sentence="With the cache off, an insertion still says that its pages are the cache's now.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A length is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="naive_unlock_does_not_count",
        edits=(Edit(NAIVE, "        self._root.ref_count -= 1\n", ""),),
        rule="ref_count_counts_handles",
        undoes="family 4: lock and unlock differ",
        sentence="With the cache off, unlocking does not count down.",
        level=CACHE,
        judges=(STRUCTURE,),
        why="A count is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="naive_eviction_asserts",
        edits=(
            Edit(
                NAIVE, "        if size:\n            self._refuse_evict(size)\n", "        assert not size\n"
            ),
        ),
        rule="steps_complete",
        undoes="L17",
        sentence="With the cache off, evicting anything fails an assertion where an error is promised.",
        level=CACHE,
        why="It raises before a state is wrong.",
    ),
)

FAULTS = (*LOCKS, *MATCHES, *INSERTS, *EVICTIONS, *RESETS, *WITHOUT_A_CACHE)
