"""Check that text in messages is printable, short and on one line."""

import pytest

from dynskip_jax.data.messages import MAX_MESSAGE, bad_file, bad_line, printable, quoted, shortened, shown

SAME = ["", "PER", "naïve", "आधुनिक मानक हिन्दी", "مُحَمَّد", "👨\u200d👩\u200d👧", "a\u00a0b", "[bold]$x^2$"]


@pytest.mark.parametrize("text", SAME)
def test_letters_of_every_script_stay(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\x1b[31mPER", "\\x1b[31mPER"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
        ("abc\u202egpj", "abc\\u202egpj"),
        ("\ufeffa\u200b", "\\ufeffa\\u200b"),
        ("x\u2028y\x85", "x\\u2028y\\x85"),
        ("\udcff.txt", "\\udcff.txt"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text, escaped):
    assert printable(text) == escaped
    assert "\x1b" not in quoted(text) and "\u202e" not in quoted(text)


def test_long_texts_keep_their_beginning_and_end():
    assert shortened("abcdefgh", 8) == "abcdefgh"
    assert shortened("abcdefghi", 8) == "abcd…ghi"
    assert len(shown("\x00" * 5_000_000)) == 40
    assert len(quoted("x" * 5_000_000)) < 50 and quoted("a'b") == '"a\'b"'
    assert quoted({"a": [1, [2, [3]]]}) == "{'a': [1, [...]]}"
    assert len(quoted([["x" * 1000] * 1000] * 1000)) <= 80


@pytest.mark.parametrize("name", ["short.txt", "a" * 5000, "\x1b" * 5000, "\n"])
@pytest.mark.parametrize("problem", ["is empty", "b" * 5000, "\x1b" * 5000])
def test_messages_are_below_300_characters(name, problem):
    for error in (bad_file(name, problem), bad_line(name, 10**9, problem)):
        assert len(str(error)) <= MAX_MESSAGE and printable(error) == str(error)
    assert str(bad_line("x.txt", 3, "no word")) == "x.txt, line 3: no word"
