"""A typed number is read as intended, or refused."""

import pytest

from backend.pages.typed_numbers import TwoReadings, plain_number

READ_AS = {
    "0.05": "0.05",
    "1e-6": "1e-6",
    "\N{MINUS SIGN}2": "-2",
    " 12 ": "12",
    "16 384": "16384",
    "16\N{NARROW NO-BREAK SPACE}384.5": "16384.5",
    "16_384": "16384",
    "1,000,000": "1000000",
    "1.000.000": "1000000",
}
AS_IT_STANDS = ("1,2,3", "1 2", "0,05x", "1,000.5.5", "many", "1.234,5")


@pytest.mark.parametrize("typed", READ_AS)
@pytest.mark.parametrize("whole", [True, False])
def test_what_has_one_reading_is_read_so(typed: str, whole: bool) -> None:
    assert plain_number(typed, whole=whole) == READ_AS[typed]


@pytest.mark.parametrize(
    ("typed", "one", "other"),
    [("0,05", "0.05", "5"), ("1,5", "1.5", "15"), ("-1,000", "-1", "-1000"), (",5", "0.5", "5")],
)
def test_what_has_two_is_refused_with_both(typed: str, one: str, other: str) -> None:
    with pytest.raises(TwoReadings) as refusal:
        plain_number(typed, whole=False)
    assert str(refusal.value) == f"{typed} is ambiguous: enter {one} or {other}."


def test_whole_number_may_have_thousands_separators() -> None:
    assert plain_number("4,096", whole=True) == "4096"
    with pytest.raises(TwoReadings, match="enter 4 or 4000"):
        plain_number("4.000", whole=True)


@pytest.mark.parametrize("typed", AS_IT_STANDS)
def test_what_is_no_number_is_left_to_the_model_to_refuse(typed: str) -> None:
    assert plain_number(typed, whole=False) == typed
