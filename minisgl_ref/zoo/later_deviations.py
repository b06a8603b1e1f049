"""The undo of each of deviations 9 to 16: what upstream does at its borders.

`rule` is the first that the conformance runner names. `spec/deviations.md` names the rule that
excludes upstream's way; where that is broken in a later step, the first is `mistakes_are_refused`.

Nothing here is right. Chapter: spec/deviations.md
"""

from __future__ import annotations

from minisgl_ref.zoo import managers, tree
from minisgl_ref.zoo.fault import Edit, Fault
from minisgl_spec.invariants import CONTENT, OWNERSHIP, STRUCTURE

SCHEDULER = "minisgl_ref.scheduler.scheduler"
CACHE_MANAGER = "minisgl_ref.scheduler.cache"

_NAMED = {fault.name: fault for fault in (*tree.FAULTS, *managers.FAULTS)}

BAD_INPUT_IS_ACCEPTED = Fault(
    name="bad_input_is_accepted",
    edits=(
        Edit(SCHEDULER, '        if not len(ids):\n            return Refusal("empty_prompt", 0, 1)\n', ""),
        Edit(
            SCHEDULER,
            "        if params.max_tokens < 1:\n"
            '            return Refusal("max_tokens_not_positive", params.max_tokens, 1)\n',
            "",
        ),
    ),
    rule="mistakes_are_refused",
    undoes="deviation 9, L9",
    sentence="An empty prompt or a max_tokens below 1 is accepted, and the scheduler dies of it.",
    judges=(STRUCTURE,),
    why="What was accepted breaks counts or lengths; pages keep one owner and slots their tokens.",
)

TOO_LONG_IS_DROPPED = Fault(
    name="too_long_is_dropped",
    edits=(
        Edit(
            SCHEDULER,
            "        refusal = self._refusal_of(ids, params)\n        if refusal is not None:\n"
            "            return refusal\n",
            "        refusal = self._refusal_of(ids, params)\n"
            '        if refusal is not None and refusal.reason == "prompt_too_long":\n'
            "            return None\n"
            "        if refusal is not None:\n            return refusal\n",
        ),
    ),
    rule="mistakes_are_refused",
    undoes="deviation 10, L10",
    sentence="A prompt that is too long is accepted and dropped: nobody ever answers.",
    why="It shows in an answer: accepting the call leaves every state well formed.",
)

CLAMPED_FOR_EVERYBODY = Fault(
    name="clamped_for_everybody",
    edits=(
        Edit(
            SCHEDULER,
            "        return min(max_tokens, self.max_seq_len - prompt_len)\n",
            """\
        shared = min(max_tokens, self.__dict__.get("_shared", max_tokens))
        clamped = min(shared, self.max_seq_len - prompt_len)
        if clamped < shared:
            self.__dict__["_shared"] = clamped
        return clamped
""",
        ),
    ),
    rule="ends_with_its_last_token",
    undoes="deviation 11, L11",
    sentence="Clamping changes the parameters that all later prompts share: one long prompt shortens them.",
    why="It shows in the replies: every state behind them is a right one.",
)

SUMS_ARE_ALL_THAT_IS_CHECKED = Fault(
    name="sums_are_all_that_is_checked",
    edits=(
        Edit(
            SCHEDULER,
            "duplicates = req.pages[old.prefix_len // page_size : result.prefix_len // page_size]",
            "duplicates = result.handle.pages()[old.prefix_len // page_size : result.prefix_len // "
            "page_size]",
        ),
        Edit(CACHE_MANAGER, "        check_full(view)\n", ""),
        Edit(SCHEDULER, "        check_full(self.view())\n", "        self.view()\n"),
    ),
    rule="pages_partitioned",
    undoes="deviation 13, MS-16 and L14",
    sentence="The tree's page is given back for its duplicate: sums stay right, and only they are checked.",
    judges=(OWNERSHIP, CONTENT),
)

DUPLICATE_UID_IS_ACCEPTED = Fault(
    name="duplicate_uid_is_accepted",
    edits=(
        Edit(
            SCHEDULER,
            "        if uid in self.requests or any(reply.uid == uid for reply in self._replies):\n",
            "        if any(reply.uid == uid for reply in self._replies):\n",
        ),
    ),
    rule="mistakes_are_refused",
    undoes="deviation 16, VL-18 and L22",
    sentence="A second request under the uid of a live one takes its place in every map.",
    judges=(OWNERSHIP,),
    why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
)

UNDOS: dict[int, Fault] = {
    9: BAD_INPUT_IS_ACCEPTED,
    10: TOO_LONG_IS_DROPPED,
    11: CLAMPED_FOR_EVERYBODY,
    12: _NAMED["decode_in_the_order_of_ids"],
    13: SUMS_ARE_ALL_THAT_IS_CHECKED,
    14: _NAMED["partly_matched_node_keeps_its_tick"],
    15: _NAMED["eviction_beyond_the_limit_asserts"],
    16: DUPLICATE_UID_IS_ACCEPTED,
}
"""By the number of the deviation."""

FAULTS = tuple(UNDOS.values())
