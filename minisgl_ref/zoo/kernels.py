"""Kernel faults: deliberate bugs in the kernels' sources, C, Triton and torch, one change each.

The changed source is a file of a private copy of `minisgl_kernels`, imported beside the real package and
thrown away. `rule` is the claim that finds it: `copies_are_exact`, `within_error_bound`,
`batch_changes_no_bit` or `refuses_out_of_range`.

A fault whose anchor no longer occurs exactly once is refused. Nothing here judges one.
Chapter: kernels/README.md
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minisgl_kernels
from minisgl_spec.errors import ContractError

PACKAGE = "minisgl_kernels"
COPY, BOUND, BATCH, REFUSES = (
    "copies_are_exact",
    "within_error_bound",
    "batch_changes_no_bit",
    "refuses_out_of_range",
)


@dataclass(frozen=True, slots=True)
class KernelFault:
    """A deliberate bug in one file of a kernel's folder.

    operation:  that has it.
    file:       below `minisgl_kernels`.
    anchor:     text that occurs exactly once in it; `replacement` takes its place.
    rule:       the claim that must find it.
    sentence:   what is wrong with it.
    """

    name: str
    operation: str
    file: str
    anchor: str
    replacement: str
    rule: str
    sentence: str

    @property
    def module(self) -> str:
        """The module that holds the operation."""
        folder, file = self.file.split("/")
        return f"{PACKAGE}.{folder}.{file.removesuffix('.py') if file.endswith('.py') else 'c_kernel'}"


def load(fault: KernelFault, folder: Path) -> Callable[..., Any]:
    """Return the operation with the fault, from a copy of the package in an empty folder.

    Mutates: the folder; `sys.modules` and `sys.path` while it imports.
    Raises:  ContractError if the anchor does not occur exactly once.
    """
    assert minisgl_kernels.__file__ is not None
    copy = folder / PACKAGE
    shutil.copytree(Path(minisgl_kernels.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    source = (copy / fault.file).read_text()
    if source.count(fault.anchor) != 1:
        raise ContractError(
            "load kernel fault",
            "an anchor that occurs exactly once",
            {"fault": fault.name, "file": fault.file, "count": source.count(fault.anchor)},
            "The source has changed; bring the fault up to date.",
        )
    (copy / fault.file).write_text(source.replace(fault.anchor, fault.replacement))
    with _private_import(folder):
        module = importlib.import_module(fault.module)
    operation: Callable[..., Any] = getattr(module, fault.operation)
    return operation


@contextmanager
def _private_import(folder: Path) -> Iterator[None]:
    """Hide the real kernels, and put them back at the end."""
    real = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(real)


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


_ATTENTION = ("paged_attention", "paged_attention/paged_attention.c")
_ATTENTION_TRITON = ("paged_attention", "paged_attention/triton_kernel.py")
_ATTENTION_TORCH = ("paged_attention", "paged_attention/torch_kernel.py")
_LINEAR = ("linear", "linear/linear.c")
_ROPE = ("rope", "rope/rope.c")
_SAMPLE = ("sample", "sample/sample.c")

FAULTS = tuple(
    KernelFault(name, *place, anchor, replacement, rule, sentence)
    for name, place, anchor, replacement, rule, sentence in (
        # attention, C
        (
            "missing_scale",
            _ATTENTION,
            "scores[i] * call->scale;",
            "scores[i];",
            BOUND,
            "Scores are not scaled.",
        ),
        (
            "causal_one_too_late",
            _ATTENTION,
            "(struct span){low, position + 1}",
            "(struct span){low, position + 2}",
            BOUND,
            "A query sees the token after it.",
        ),
        (
            "window_one_too_wide",
            _ATTENTION,
            "position - call->window + 1)",
            "position - call->window)",
            BOUND,
            "A sliding window holds one token too many.",
        ),
        (
            "heads_of_groups_mixed_up",
            _ATTENTION,
            "task->kv_head * group + flat % group",
            "flat % group * call->num_kv_heads + task->kv_head",
            BOUND,
            "Query heads are dealt to KV heads in turn, not in groups.",
        ),
        (
            "first_key_hidden",
            _ATTENTION,
            "(lanes >= low)",
            "(lanes > low)",
            BOUND,
            "The first key of a block that is partly hidden is hidden, too.",
        ),
        (
            "sums_not_cleared",
            _ATTENTION,
            "memset(scratch->sums, 0, (size_t)(num_rows * width) * sizeof(float));",
            "memset(scratch->sums, 0x7f, (size_t)(num_rows * width) * sizeof(float));",
            BOUND,
            "What a thread computed before is added.",
        ),
        (
            "largest_not_subtracted",
            _ATTENTION,
            "vec_exp(vec_load(scores + at) - largest)",
            "vec_exp(vec_load(scores + at) - 0 * largest)",
            BOUND,
            "Large scores overflow.",
        ),
        (
            "only_the_last_block_is_summed",
            _ATTENTION,
            "total += weights;",
            "total = weights;",
            BOUND,
            "Weights of all blocks but the last are not in the denominator.",
        ),
        (
            "values_are_keys",
            _ATTENTION,
            "call->v_cache, call->v_stride, first",
            "call->k_cache, call->k_stride, first",
            BOUND,
            "K is mixed where V should be.",
        ),
        (
            "extend_sums_in_another_order",
            _ATTENTION,
            "for (int64_t at = lane; at < width; at += LANES) {",
            "for (int64_t at = width - LANES + lane; at >= 0; at -= LANES) {",
            BATCH,
            "A token in a prompt has other bits than the same token decoded.",
        ),
        (
            "stale_row",
            _ATTENTION,
            "(int64_t)call->rows[task->request] * call->row_stride",
            "(int64_t)task->request * call->row_stride",
            BOUND,
            "A request reads the row of its place in the batch.",
        ),
        (
            "slots_not_checked",
            _ATTENTION,
            "slots[position] >= 0 && slots[position] < num_slots",
            "slots[position] >= 0 && num_slots > 0",
            REFUSES,
            "A slot beyond the cache is read.",
        ),
        (
            "kv_head_ignored",
            _ATTENTION,
            "head = task->kv_head * call->head_dim;",
            "head = 0 * task->kv_head * call->head_dim;",
            BOUND,
            "Every group reads the first KV head.",
        ),
        # linear, C
        (
            "missing_bias",
            _LINEAR,
            "bias != NULL ? sums[i] + biases[i % 2] : sums[i]",
            "sums[i] + 0 * biases[i % 2]",
            BOUND,
            "The bias is not added.",
        ),
        (
            "last_input_left_out",
            _LINEAR,
            "input < in_features; input++) {\n        vec low, high;",
            "input < in_features - 1; input++) {\n        vec low, high;",
            BOUND,
            "The last input is left out.",
        ),
        (
            "half_a_panel_has_the_others_bias",
            _LINEAR,
            "bias + first + half * LANES",
            "bias + first",
            BOUND,
            "The upper half of a panel gets the bias of the lower.",
        ),
        (
            "last_block_of_rows_left_out",
            _LINEAR,
            "row < num_rows; row += step) {",
            "row + step <= num_rows; row += step) {",
            BOUND,
            "A block that is not full is not computed.",
        ),
        (
            "stale_weight",
            ("linear", "linear/c_kernel.py"),
            "(known.address, known.version) != (address, version)",
            "known.address != address",
            BOUND,
            "A weight that was written is used as it was packed.",
        ),
        # norms, activation
        (
            "missing_epsilon",
            ("rms_norm", "rms_norm/rms_norm.c"),
            "(double)size + eps",
            "(double)size + 0 * eps",
            BOUND,
            "Small rows are scaled too far.",
        ),
        (
            "mean_over_filled_up_lanes",
            ("rms_norm", "rms_norm/rms_norm.c"),
            "/ (double)size + eps",
            "/ (double)((size + LANES - 1) / LANES * LANES) + eps",
            BOUND,
            "The zeros after the last element count.",
        ),
        (
            "missing_residual",
            ("add_rms_norm", "rms_norm/rms_norm.c"),
            "any_load(residual, first + at, part(at, size), type)",
            "0 * any_load(residual, first + at, part(at, size), type)",
            BOUND,
            "The residual is not added.",
        ),
        (
            "missing_weight",
            ("rms_norm", "rms_norm/rms_norm.c"),
            "any_load(weight, at, part(at, size), type) * value",
            "value + 0 * any_load(weight, at, part(at, size), type)",
            BOUND,
            "Rows are not scaled by the weight.",
        ),
        (
            "gate_overflows",
            ("silu_and_mul", "silu_and_mul/silu_and_mul.c"),
            "vec_exp(choose(x > 0, -x, x))",
            "vec_exp(x)",
            BOUND,
            "A large gate becomes NaN.",
        ),
        (
            "missing_up",
            ("silu_and_mul", "silu_and_mul/silu_and_mul.c"),
            "gated * y",
            "gated + 0 * y",
            BOUND,
            "The activation is not multiplied by up.",
        ),
        # rope, C
        (
            "rope_off_by_one",
            _ROPE,
            "(double)call->positions[token] * call->inv",
            "(double)(call->positions[token] + 1) * call->inv",
            BOUND,
            "Every token stands one position too far.",
        ),
        (
            "rope_turns_back",
            _ROPE,
            "a * cosine - b * sine",
            "a * cosine + b * sine",
            BOUND,
            "The pair is mirrored, not turned.",
        ),
        (
            "rope_angle_in_float",
            _ROPE,
            "(double)call->positions[token] * call->inv_freq[pair]",
            "(double)((float)call->positions[token] * (float)call->inv_freq[pair])",
            BOUND,
            "Far positions turn by a rounded angle.",
        ),
        (
            "rope_scales_only_the_cosine",
            _ROPE,
            "(float)(sine * call->scaling)",
            "(float)sine",
            BOUND,
            "yarn's factor is missing from the sine.",
        ),
        # copies, C
        (
            "v_is_k",
            ("store_kv", "store_kv/store_kv.c"),
            "v + i * v_stride, (size_t)row_bytes",
            "k + i * k_stride, (size_t)row_bytes",
            COPY,
            "K is stored as V.",
        ),
        (
            "store_product_of_32_bits",
            ("store_kv", "store_kv/store_kv.c"),
            "k_cache + slot * k_cache_stride",
            "k_cache + (uint32_t)(slot * k_cache_stride)",
            COPY,
            "Slot times stride wraps at 4 GiB.",
        ),
        (
            "wrong_stride",
            ("store_kv", "store_kv/store_kv.c"),
            "v_cache + slot * v_cache_stride, v",
            "v_cache + slot * row_bytes, v",
            COPY,
            "V's slots are taken to lie side by side.",
        ),
        (
            "one_slot_too_many_allowed",
            ("store_kv", "store_kv/store_kv.c"),
            "slots[i] >= num_slots",
            "slots[i] > num_slots",
            REFUSES,
            "The slot after the last is written.",
        ),
        (
            "gather_reads_the_slot_before",
            ("gather_kv", "gather_kv/gather_kv.c"),
            "int64_t slot = slots[i];",
            "int64_t slot = slots[i] > 0 ? slots[i] - 1 : 0;",
            COPY,
            "Each slot is read one too early.",
        ),
        (
            "gather_stale_slot",
            ("gather_kv", "gather_kv/gather_kv.c"),
            "v_cache + slot * v_cache_stride",
            "v_cache + slots[0] * v_cache_stride",
            COPY,
            "V of every token is that of the first.",
        ),
        (
            "table_page_in_place_of_slot",
            ("write_page_table", "page_table/page_table.c"),
            "int64_t first = pages[i] * page_size;",
            "int64_t first = pages[i];",
            COPY,
            "The table names pages, not slots.",
        ),
        (
            "last_slot_of_a_page_left_out",
            ("write_page_table", "page_table/page_table.c"),
            "j < page_size; j++)",
            "j < page_size - 1; j++)",
            COPY,
            "The last slot of a page keeps what it named.",
        ),
        (
            "table_ignores_the_row",
            ("read_page_table", "page_table/page_table.c"),
            "page_table[rows[i] * row_stride + positions[i]]",
            "page_table[rows[0] * row_stride + positions[i]]",
            COPY,
            "All tokens are looked up in the first row.",
        ),
        # sample, C
        (
            "tie_goes_up",
            _SAMPLE,
            "a->token < b->token ? -1 : a->token > b->token",
            "a->token > b->token ? -1 : a->token < b->token",
            COPY,
            "Of equal weights the higher token comes first.",
        ),
        (
            "top_p_excludes_equality",
            _SAMPLE,
            "running[i] >= top_p * total",
            "running[i] > top_p * total",
            COPY,
            "A mass that is just reached is not enough.",
        ),
        (
            "top_k_one_short",
            _SAMPLE,
            "vocab_size : top_k, kept",
            "vocab_size : top_k - (top_k > 1), kept",
            COPY,
            "top_k keeps one token too few.",
        ),
        (
            "uniform_includes_equality",
            _SAMPLE,
            "!(running[i] > uniform",
            "!(running[i] >= uniform",
            COPY,
            "A boundary belongs to the token before it.",
        ),
        # Triton
        (
            "triton_causal_mask",
            _ATTENTION_TRITON,
            "key[None, :] <= position[:, None]",
            "key[None, :] <= position[:, None] + 1",
            BOUND,
            "A query sees the token after it.",
        ),
        (
            "triton_window",
            _ATTENTION_TRITON,
            "tl.maximum(position - window + 1, 0)",
            "tl.maximum(position - window, 0)",
            BOUND,
            "A sliding window holds one token too many.",
        ),
        (
            "triton_sums_not_shrunk",
            _ATTENTION_TRITON,
            "sums * shrink[:, None]",
            "sums",
            BOUND,
            "A new maximum does not scale down what was summed before.",
        ),
        (
            "triton_heads",
            _ATTENTION_TRITON,
            "kv_head * group + flat % group",
            "flat % group",
            BOUND,
            "Every KV head serves the first group of query heads.",
        ),
        (
            "triton_tail_left_out",
            ("linear", "linear/triton_kernel.py"),
            "range(0, num_inputs, INPUTS)",
            "range(0, num_inputs // INPUTS * INPUTS, INPUTS)",
            BOUND,
            "Inputs after the last whole block are left out.",
        ),
        (
            "triton_missing_bias",
            ("linear", "linear/triton_kernel.py"),
            "    if BIAS:",
            "    if BIAS and WIDEN and ROWS == 0:",
            BOUND,
            "The bias is not added.",
        ),
        (
            "triton_rope_off_by_one",
            ("rope", "rope/triton_kernel.py"),
            "tl.load(positions + token).to(tl.float64)",
            "(tl.load(positions + token) + 1).to(tl.float64)",
            BOUND,
            "Every token stands one position too far.",
        ),
        (
            "triton_missing_residual",
            ("add_rms_norm", "rms_norm/triton_kernel.py"),
            "value += tl.load(residual",
            "value += 0 * tl.load(residual",
            BOUND,
            "The residual is not added.",
        ),
        (
            "triton_store_in_order",
            ("store_kv", "store_kv/triton_kernel.py"),
            "cache + slot * cache_stride",
            "cache + token * cache_stride",
            COPY,
            "Tokens are stored in order, not in their slots.",
        ),
        # torch
        (
            "torch_causal_mask",
            _ATTENTION_TORCH,
            "hidden = keys > queries",
            "hidden = keys >= queries + 2",
            BOUND,
            "A query sees the token after it.",
        ),
        (
            "torch_queries_from_the_chunk",
            _ATTENTION_TORCH,
            "offset = request.first_query - first_block * QUERIES_PER_BLOCK\n    padded",
            "offset = 0\n    padded",
            BOUND,
            "Queries are put at the start of their block, whatever their position.",
        ),
    )
)
