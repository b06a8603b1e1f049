"""Faults of the streams and of what runs on them: orders that are missing, results read too early,
positions, sampling and stores.

What is wrong only when work runs late is found because a program decides how late it runs.

Nothing here is right. Chapter: spec/07-overlap.md#streams, spec/08-numerics.md
"""

from __future__ import annotations

from minisgl_ref.zoo.fault import Edit, Fault
from minisgl_spec.invariants import CONTENT

STREAM = "minisgl_ref.engine.stream"
ENGINE = "minisgl_ref.engine.engine"
SAMPLER = "minisgl_ref.engine.sampler"
POOL = "minisgl_ref.kvcache.mha_pool"
DIGEST = "minisgl_ref.models.digest"

ORDERS = (
    Fault(
        name="batch_does_not_wait_for_its_row",
        edits=(
            Edit(
                ENGINE,
                "        self.streams.wait(ENGINE, self.streams.record(SCHEDULER))\n",
                "        self.streams.record(SCHEDULER)\n",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="TR-1",
        sentence="A batch may run before the table writes that it depends on.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="result_is_not_awaited",
        edits=(Edit(ENGINE, "        self.streams.synchronize(result.event)\n", ""),),
        rule="steps_complete",
        undoes="family: missing order",
        sentence="The host reads a batch's tokens without waiting for them.",
        why="It raises before a state is wrong.",
    ),
    Fault(
        name="event_happens_an_item_early",
        edits=(
            Edit(STREAM, "return stream, self._handed[stream]", "return stream, self._handed[stream] - 1"),
        ),
        rule="steps_complete",
        undoes="family: missing order",
        sentence="An event happens before the last item that was handed over has run.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="staging_is_shared",
        edits=(
            Edit(
                ENGINE,
                "        self.streams.enqueue(ENGINE, partial(self._run, inputs, result))\n",
                "        self._staged = inputs\n"
                "        self.streams.enqueue(ENGINE, lambda: self._run(self._staged, result))\n",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="MS-15",
        sentence="A batch's lengths lie in a buffer that the next launch overwrites while this one waits.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="result_is_shared",
        edits=(
            Edit(
                ENGINE,
                "        result, inputs = Result(), _inputs_of(batch)\n",
                "        result, inputs = self.__dict__.setdefault('_result', Result()), _inputs_of(batch)\n",
            ),
        ),
        rule="tokens_are_the_models",
        undoes="SJ-1",
        sentence="There is one place for results: a later batch's tokens replace those that nobody has read.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
)

BATCHES = (
    Fault(
        name="chunk_writes_its_sample",
        edits=(
            Edit(
                ENGINE,
                "ends = [idx for idx, sampled in enumerate(inputs.sampled) if sampled]",
                "ends = list(range(len(inputs.sampled)))",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="MS-7",
        sentence="A chunk writes the token it sampled where the next chunk's first token belongs.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="sample_is_written_a_position_early",
        edits=(
            Edit(
                ENGINE,
                "np.asarray([inputs.device_lens[idx] for idx in ends])",
                "np.asarray([inputs.device_lens[idx] - 1 for idx in ends])",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="NV-10",
        sentence="A sampled token overwrites the token it follows.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="one_key_too_many",
        edits=(
            Edit(
                ENGINE,
                "kv_lens=self._to_device(np.asarray(inputs.device_lens, dtype=np.int32)),",
                "kv_lens=self._to_device(np.asarray(inputs.device_lens, dtype=np.int32) + 1),",
            ),
        ),
        rule="digest_is_the_models",
        undoes="NV-2",
        sentence="Attention is told a length that is one more than what was written.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="tokens_of_a_batch_change_places",
        edits=(
            Edit(
                ENGINE,
                "        tokens = sample(logits, inputs.choices, self.ops)\n",
                "        tokens = sample(logits, inputs.choices, self.ops).roll(1)\n",
            ),
        ),
        rule="tokens_are_the_models",
        undoes="MS-17",
        sentence="In a batch of several requests each is given its neighbour's token.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="one_sampling_for_the_batch",
        edits=(
            Edit(
                SAMPLER,
                "    device = logits.device\n",
                "    device = logits.device\n"
                "    hottest = max((own for own, _ in choices), key=lambda own: own.temperature)\n"
                "    choices = [(hottest, output_idx) for _, output_idx in choices]\n",
            ),
        ),
        rule="tokens_are_the_models",
        undoes="L19",
        sentence="Whoever shares a batch with a sampled request is sampled like it, greedy or not.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="random_numbers_by_the_batch",
        edits=(
            Edit(
                ENGINE,
                "(entry.req.sampling, max(0, entry.device_len - entry.req.prompt_len)) for entry in entries",
                "(entry.req.sampling, batch.number) for entry in entries",
            ),
        ),
        rule="tokens_are_the_models",
        undoes="MS-18",
        sentence="The random number of an output depends on when it is computed.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="values_do_not_follow_keys",
        edits=(
            Edit(
                POOL,
                "self._ops.store_kv(self._k_layers[layer], self._v_layers[layer], out_loc, k, v)",
                "self._ops.store_kv(self._k_layers[layer], self._v_layers[layer], out_loc, k, k)",
            ),
        ),
        rule="digest_is_the_models",
        undoes="SG-26",
        sentence="K is stored where it belongs, and in the place of V as well.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="warm_is_not_cold",
        edits=(
            Edit(
                DIGEST,
                "sums.append(int(weighted.sum()) % DIGEST_PRIME)",
                "sums.append((int(weighted.sum()) + (length > 4)) % DIGEST_PRIME)",
            ),
        ),
        rule="digest_is_the_models",
        undoes="SG-36",
        sentence="The sum over what is visible depends on how much of it was cached.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
)

FAULTS = (*ORDERS, *BATCHES)
