"""Locale order of Robota's reports."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.reports.robota_order import _collator, locale_key, locale_sort, utf16_key


@given(st.lists(st.text()), st.randoms(use_true_random=False))
def test_locale_order_does_not_depend_on_the_order_given(texts: list[str], random: object) -> None:
    shuffled = random.sample(texts, len(texts))  # type: ignore[attr-defined]
    assert list(map(locale_key, locale_sort(texts))) == list(map(locale_key, locale_sort(shuffled)))


def test_texts_beyond_ascii_sort_as_in_the_locale() -> None:
    assert locale_sort(["zebra", "éclair", "eclair", "가", "Éclair", "あ", "я", "\ud800"]) == [
        "eclair",
        "éclair",
        "Éclair",
        "zebra",
        "я",
        "가",
        "あ",
        "\ud800",
    ]


def test_texts_that_compare_equal_keep_their_order() -> None:
    assert locale_sort(["a\x00", "a"]) == ["a\x00", "a"]
    assert locale_sort(["a", "a\x00"]) == ["a", "a\x00"]


def test_session_ids_sort_by_utf16_unit_and_not_by_code_point() -> None:
    assert sorted(["\uffff", "\U00010000"], key=utf16_key) == ["\U00010000", "\uffff"]


def test_without_the_library_the_order_is_refused_rather_than_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    _collator.cache_clear()
    monkeypatch.setitem(sys.modules, "icu", None)
    try:
        with pytest.raises(ProjectionError, match="locale_order_unavailable"):
            locale_sort(["never seen before"])
    finally:
        _collator.cache_clear()
