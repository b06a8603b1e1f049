"""Claims about shadow memory and the digest.

Guide: spec/08-numerics.md
"""

from __future__ import annotations

from minisgl_spec.shadow import DIGEST_PRIME, ShadowMemory, digest_codes, digest_logits, digest_read


def test_a_slot_remembers_the_prefix_that_was_written_to_it() -> None:
    """Prefixes are numbered exactly. (08-numerics.md#shadow-memory)"""
    shadow = ShadowMemory()

    shadow.write(3, shadow.prefix((1, 2)))

    assert (shadow.tokens(shadow.prefix((1, 2))), shadow.read(3)) == ((1, 2), shadow.prefix((1, 2)))


def test_equal_prefixes_have_one_number() -> None:
    """One token at a time or all at once. (08-numerics.md#shadow-memory)"""
    shadow = ShadowMemory()

    assert shadow.extend(shadow.prefix((1, 2)), 3) == shadow.prefix((1, 2, 3))


def test_the_same_token_after_another_prefix_is_another_prefix() -> None:
    """What a slot holds depends on everything before it. (08-numerics.md#shadow-memory)"""
    shadow = ShadowMemory()

    assert len({shadow.prefix(ids) for ids in ((3,), (1, 3), (2, 3), (1, 2, 3), ())}) == 5


def test_the_empty_prefix_has_a_number_too() -> None:
    """EMPTY is the prefix of no token. (08-numerics.md#shadow-memory)"""
    shadow = ShadowMemory()

    assert (shadow.prefix(()), shadow.tokens(ShadowMemory.EMPTY)) == (ShadowMemory.EMPTY, ())


def test_a_mismatch_is_told_in_words() -> None:
    """Found and expected, with their tokens. (08-numerics.md#shadow-memory)"""
    shadow = ShadowMemory()
    shadow.write(3, shadow.prefix((1, 2)))

    assert [shadow.describe_mismatch(slot, shadow.prefix((7,))) for slot in (3, 4)] == [
        "holds the KV of (1, 2), expected (7,)",
        "was never written, expected (7,)",
    ]


def test_a_code_depends_on_all_tokens_before_it() -> None:
    """A change at position 2 changes the codes from 2 on, and no earlier one. (08-numerics.md#the-digest)"""
    codes, changed = digest_codes((1, 2, 3, 4, 5)), digest_codes((1, 2, 9, 4, 5))

    assert [a == b for a, b in zip(codes, changed, strict=True)] == [True, True, False, False, False]


def test_a_code_depends_on_order() -> None:
    """Two tokens exchanged make other codes. (08-numerics.md#the-digest)"""
    assert digest_codes((1, 2, 3))[-1] != digest_codes((2, 1, 3))[-1]


def test_codes_can_be_continued_token_by_token() -> None:
    """A longer prompt begins with the codes of a shorter one. (08-numerics.md#the-digest)"""
    assert digest_codes((1, 2, 3, 4))[:2] == digest_codes((1, 2))


def test_a_code_fits_a_float() -> None:
    """Every code is below the prime, which is below 2 ** 24. (08-numerics.md#the-digest)"""
    assert max(digest_codes(tuple(range(60)))) < DIGEST_PRIME < 2**24


def test_reading_tells_two_codes_apart() -> None:
    """The read weights do not cancel. (08-numerics.md#the-digest)"""
    assert digest_read(1) % DIGEST_PRIME not in (0, digest_read(2) % DIGEST_PRIME)


def test_the_digest_of_a_prompt_is_pinned() -> None:
    """Engines in other languages compute the same numbers. (08-numerics.md#the-digest)"""
    assert digest_codes((1, 2, 3, 4)) == (139243, 8332023, 7854635, 11978502)
    assert digest_logits(11978502, 4) == (2.03125, 4.078125, 6.15625, 8.265625)
