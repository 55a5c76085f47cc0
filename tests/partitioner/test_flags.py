"""Numbers on a command line: plain digits, and nothing else that Python takes for a number."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from partitioner.flags import byte_count, real_number, real_numbers, seconds, whole_number, whole_numbers


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("16", 16), ("-3", -3), ("+7", 7), ("007", 7)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_0", "٣", "²", "1.0", "1e3", "0x10", "--1", "nan", "9" * 5000])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        whole_number(text)
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("1e-5", 1e-5), (".5", 0.5), ("-2.", -2), ("inf", np.inf)])
def test_real_numbers(text: str, number: float) -> None:
    assert real_number(text) == number


@pytest.mark.parametrize("text", ["", "1_0", "1e", "٣.٥", " 1", "1e1_0", "0x1p3", "one", "1" * 5000])
def test_what_is_no_number(text: str) -> None:
    for kind in (real_number, seconds, byte_count):
        with pytest.raises(argparse.ArgumentTypeError) as refused:
            kind(text)
        assert len(str(refused.value)) < 120


def test_numbers_between_commas() -> None:
    assert whole_numbers("0,12") == (0, 12)
    assert real_numbers("0.5,1e3,0") == (0.5, 1000.0, 0.0)
    for text in ("", ",", "1,", "1;2", "1, 2", "1,x"):
        for kind in (whole_numbers, real_numbers):
            with pytest.raises(argparse.ArgumentTypeError):
                kind(text)


def test_units_of_bytes() -> None:
    assert [byte_count(text) for text in ("1", "2k", "1.5M", "1GiB", "3e3")] == [1, 2048, 3 << 19, 1 << 30, 3000]
    for text in ("1_0G", "٣G", "0", "-1K", "nan", "infK", "G"):
        with pytest.raises(argparse.ArgumentTypeError):
            byte_count(text)
