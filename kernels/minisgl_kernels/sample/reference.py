"""sample: tokens[r] = the first token, by falling probability, at which the running sum exceeds uniform[r].

logits       [n, vocab_size] F, no NaN and the largest of each row finite; -inf is never drawn
temperature  [n] float, finite and >= 0      top_k [n] int
top_p        [n] float in (0, 1]             uniform [n] float in [0, 1)
tokens       [n] i64, new; no argument is changed

Each row on its own. At temperature 0: the token with the largest logit, of equal ones the lowest. Else:
  weight   of token t: exp((logits[t] - max(logits)) / temperature) in float64
  order    by falling weight, equal weights by rising token
  top_k    keep the first top_k of that order; all of them if top_k <= 0
  top_p    of those keep the shortest beginning whose weights sum to at least top_p * (the sum of all
           weights, those that top_k dropped included); all of them if none does
  token    of those kept, the first at which the running sum of weights exceeds uniform * (their sum)
Sums run in that order, one addition after the other.
Exact but for exp, which may differ in its last bit: another token only where uniform meets a boundary.
Moves vocab_size elements per row.
Versions: sample.c (one thread per row). Run: pytest tests/kernels -k sample
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import Contract
from minisgl_spec.errors import ContractError

CONTRACT = Contract(
    "sample",
    logits="[num_reqs, vocab_size] F",
    temperature="[num_reqs] float",
    top_k="[num_reqs] int",
    top_p="[num_reqs] float",
    uniform="[num_reqs] float",
)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Choose one token per row.

    Raises: ContractError for a shape, dtype, device or a value out of range, with the row.
    """
    CONTRACT.check(logits, temperature, top_k, top_p, uniform)
    check_logits(logits)
    settings = [tensor.tolist() for tensor in (temperature, top_k, top_p, uniform)]
    tokens = logits.argmax(dim=-1)
    for row, (heat, limit, mass, draw) in enumerate(zip(*settings, strict=True)):
        check_settings(row, heat, mass, draw)
        if heat > 0:
            tokens[row] = sample_row(logits[row], heat, limit, mass, draw)
    return tokens


def sample_row(logits: Tensor, temperature: float, top_k: int, top_p: float, uniform: float) -> int:
    """Choose one token of one row [vocab_size] at a temperature above 0."""
    wide = logits.double()
    weights = torch.exp((wide - wide.max()) / temperature)
    order = torch.sort(weights, descending=True, stable=True).indices
    running = weights[order].cumsum(0)
    kept = logits.shape[0] if top_k <= 0 else min(top_k, logits.shape[0])
    reached = (running[:kept] >= top_p * running[-1]).nonzero()
    if reached.shape[0]:
        kept = int(reached[0].item()) + 1
    exceeded = running[:kept] > uniform * running[kept - 1]
    return int(order[int(exceeded.nonzero()[0].item())].item())


def check_logits(logits: Tensor) -> None:
    """Refuse logits from which nothing can be drawn."""
    if logits.shape[1] == 0:
        raise ContractError("sample", "vocab_size >= 1", {"vocab_size": 0})
    largest = logits.amax(dim=-1)
    broken = (~largest.isfinite()).nonzero()
    if broken.shape[0]:
        row = int(broken[0].item())
        num_nan = int(logits[row].isnan().sum().item())
        raise ContractError(
            "sample",
            "the largest logit of each row finite, and none NaN",
            {"row": row, "largest": largest[row].item(), "num_nan": num_nan},
            "NaN comes from a slot that was read before it was written, or from the weights.",
        )


def check_all_settings(temperature: Tensor, top_p: Tensor, uniform: Tensor) -> None:
    """Refuse the first row whose settings are out of range."""
    settings = zip(temperature.tolist(), top_p.tolist(), uniform.tolist(), strict=True)
    for row, (heat, mass, draw) in enumerate(settings):
        check_settings(row, heat, mass, draw)


def check_settings(row: int, temperature: float, top_p: float, uniform: float) -> None:
    """Refuse settings out of range; NaN is in no range."""
    if not (0 <= temperature < float("inf") and 0 < top_p <= 1 and 0 <= uniform < 1):
        raise ContractError(
            "sample",
            "temperature >= 0 and finite, 0 < top_p <= 1, 0 <= uniform < 1",
            {"row": row, "temperature": temperature, "top_p": top_p, "uniform": uniform},
        )
