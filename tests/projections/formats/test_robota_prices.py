"""Robota's price table: exact ids, families, and models without a price."""

import pytest

from projections.formats.robota_prices import find_price, model_cost


@pytest.mark.parametrize(
    "model_id", ["", "llama", "claude", "o1-preview", "constructor", "gpt-\u212a4", "deep\u017feek"]
)
def test_a_model_outside_the_table_has_no_cost(model_id: str) -> None:
    assert model_cost(model_id, 100, 50) == {"costStatus": "unknown"}


def test_the_first_family_that_an_id_names_prices_it_whatever_its_case() -> None:
    mini, other = find_price("Vendor/GPT-4o-MINI-x"), find_price("GPT-4-turbo")
    assert mini is not None
    assert other is not None
    assert (mini.input_usd, mini.exact) == (0.15, False)
    assert (other.input_usd, other.exact) == (2.5, False)


def test_an_exact_id_beats_its_family() -> None:
    price = find_price("gemini-1.5-flash")
    assert price is not None
    assert (price.input_usd, price.output_usd, price.exact) == (0.075, 0.3, True)
