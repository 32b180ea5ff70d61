"""The settings `field` and `where`: paths to the numbers of a record, and conditions that a record must meet.

In `field`, such as `payload.embedding` or `temp,hum`, commas separate paths, and dots the parts of a path. A name with
a dot or a comma stands in backticks. A part may choose an element of an array: `values[id=temp].v`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

# These two patterns have only possessive quantifiers, so that they are matched in a time linear in the text's length.
# Names and words that are not in backticks may therefore have spaces at their end, which are removed after the match.
_PARTS_AND_SEPARATOR = re.compile(
    r"""\s*+
    (?: `(?P<quoted_name>[^`]++)`\s*+ | (?P<plain_name>(?: [^`.,\[] | \[(?![^`\[\]=]*+=) )++) )?+
    (?: \[\s*+ (?P<key>[^`\[\]=]++) =\s*+ (?: `(?P<quoted_word>[^`]*+)`\s*+ | (?P<plain_word>[^`\]]*+) ) \]\s*+ )?+
    (?P<separator>[.,])""",
    re.VERBOSE,
)
_PLAIN_NAME = re.compile(r"[^`.,\s](?:[^`.,]*[^`.,\s])?")
_PLAIN_WORD = re.compile(r"[^`\]\s](?:[^`\]]*[^`\]\s])?|")
# A path, = or !=, and a word. In the path, = and commas may stand in backticks and between brackets.
_CONDITION = re.compile(
    r"""(?P<path>(?: `[^`]*+` | \[(?:`[^`]*+`|[^`\]])*+\] | [^`\[=!,] | !(?!=) )++)
    (?P<sign>!?=)\s*+
    (?: `(?P<quoted_word>[^`]*+)`\s*+ | (?P<plain_word>[^`,]++) ),""",
    re.VERBOSE,
)


class PathPart(NamedTuple):
    """A name in a path."""

    name: str
    quoted: bool = False  # in backticks, so that it is never a pattern


class Choice(NamedTuple):
    """A condition in a path. It chooses the element of an array whose entry `key` is `word`."""

    key: str
    word: str


Path: TypeAlias = tuple[PathPart | Choice, ...]

Step: TypeAlias = str | Choice
"""One step into a value: the name of an entry, or the choice of an element."""


class Condition(NamedTuple):
    """A condition of `where`, path=word or path!=word."""

    steps: tuple[Step, ...]  # of the path
    is_equal: bool  # True: the value at the path must be the word; False: it must not be the word
    word: str

    def accepts(self, value: Any) -> bool:
        """Return whether this value at the end of the path meets the condition."""
        return is_word(value, self.word) == self.is_equal


def is_word(value: Any, word: str) -> bool:
    """Return whether a value is this word. A value that is not text is compared as JSON writes it."""
    if isinstance(value, bytes):  # some writers of Avro and Parquet store texts as bytes
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return value == word
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, default=str) == word
    return value is not None and str(value) == word  # such as a decimal


def parse_paths(field: str) -> tuple[Path, ...]:
    """Return the paths in the text of the setting `field`; none if it is empty. Raises `ValueError`."""
    if not field.strip():
        return ()
    paths: list[Path] = []
    current_path: Path = ()  # the parts so far, each a name or a choice, of the path that is being read
    # A match is one or two parts and a separator, such as `values[id=temp].` or `hum,`. The added comma ends the last
    # path.
    for match in _split_into_matches(_PARTS_AND_SEPARATOR, f"{field},"):
        if match is None:  # the rest of the text does not match
            raise _make_paths_error(field)
        new_parts = _make_parts(match)
        if not new_parts:  # what has matched is not valid
            raise _make_paths_error(field)
        current_path += new_parts
        if match["separator"] == ",":
            paths.append(current_path)
            current_path = ()
    # Steps are parts without backticks: a and `a` are the same path.
    distinct_paths = {get_steps(path) for path in paths}
    if len(distinct_paths) < len(paths):
        raise ValueError("it names a path twice")
    return tuple(paths)


def _make_paths_error(field: str) -> ValueError:
    """Return the error for a setting `field` that is not a list of paths."""
    return ValueError(
        f"{field!r} is not a path or a list of paths: write names like temp,hum or payload.embedding, choose "
        "an element as in values[id=temp].v, and put a name with [ and = in backticks"
    )


def _make_parts(match: re.Match[str]) -> Path:
    """Return the parts in a match of `_PARTS_AND_SEPARATOR`: a name, a choice in brackets, or a name with a choice.

    For example, `values[id=temp].` gives PathPart("values") and Choice("id", "temp"). If the match is not valid,
    returns ().
    """
    plain_name = (match["plain_name"] or "").rstrip()
    if _looks_like_choice(plain_name):  # probably a misspelt values[id=temp]
        return ()
    name: Path = ()
    if match["quoted_name"]:
        name = (PathPart(match["quoted_name"], quoted=True),)
    elif plain_name:
        name = (PathPart(plain_name),)
    has_choice = match["key"] is not None
    if not has_choice:
        return name
    key = match["key"].rstrip()
    if key.endswith("!"):  # the text is like [id!=temp], which is not valid, since it may choose several elements
        return ()
    return (*name, Choice(key, _read_word(match)))


def _looks_like_choice(name: str) -> bool:
    return "[" in name and "=" in name


def _read_word(match: re.Match[str]) -> str:
    """Return the word after the = in a match, from its backticks or without the spaces at its end."""
    return match["quoted_word"] or (match["plain_word"] or "").rstrip()


def parse_conditions(where: str) -> tuple[Condition, ...]:
    """Return the conditions in the text of the setting `where`; none if it is empty. Raises `ValueError`."""
    if not where.strip():
        return ()
    conditions = []
    for match in _split_into_matches(_CONDITION, f"{where},"):  # the comma ends the last condition
        if match is None:  # the rest of the text is not a condition
            raise ValueError(
                f"where={where!r} is not a condition or a list of conditions: write path=word or path!=word"
            )
        [path] = parse_paths(match["path"])
        conditions.append(Condition(get_steps(path), is_equal=match["sign"] == "=", word=_read_word(match)))
    return tuple(conditions)


def _split_into_matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str] | None]:
    """Yield the matches of which the text consists, one after the other; then None if the rest does not match."""
    position = 0
    while position < len(text):
        match = pattern.match(text, position)
        yield match
        if match is None:
            return
        position = match.end()


def name_paths(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return a name for each path: the first of its possible names that is not a possible name of another path.

    For example, a.x and b.y are named x and y, but a.x and b.x keep these names. If a path has no such name, its name
    is the whole path.
    """
    possible_names_of_paths = [_list_possible_names(get_steps(path)) for path in paths]
    path_count_by_name = Counter(chain.from_iterable(possible_names_of_paths))  # how many paths could have each name
    names = []
    for possible_names in possible_names_of_paths:
        unique_names = [name for name in possible_names if path_count_by_name[name] == 1]
        whole_path = possible_names[-1]
        names.append(unique_names[0] if unique_names else whole_path)
    return tuple(names)


def _list_possible_names(steps: Sequence[Step]) -> list[str]:
    """Return the names that the dimension at a path may have, the best one first and the whole path last.

    For example, the names for `a.b` are b and a.b, and `wheels[side=left].sensors[id=temp].value` has these names:

        temp, temp.value
        left.temp, left.temp.value
        wheels[side=left].sensors[id=temp].value

    A choice, such as `[side=left]`, is named by its word, `left`. The other steps before the last choice, here `wheels`
    and `sensors`, are only in the whole path.
    """
    chosen_words: list[str] = []
    steps_after_last_choice: list[str] = []
    for step in steps:
        if isinstance(step, Choice):
            chosen_words.append(step.word)
            steps_after_last_choice = []
        else:
            steps_after_last_choice.append(step)
    if not chosen_words:
        return [".".join(steps_after_last_choice[start:]) for start in reversed(range(len(steps)))]
    names = []
    for start in reversed(range(len(chosen_words))):
        last_words = chosen_words[start:]
        names.append(".".join(last_words))
        names.append(".".join(last_words + steps_after_last_choice))
    distinct_names = dict.fromkeys(names)
    return [*distinct_names, spell_path(steps)]


def dimension_names(field: str, dimensions: int) -> list[str] | None:
    """Return the names that `field` gives the dimensions; None if it does not have a path for each dimension.

    With one dimension, there are no names: a single path may also hold a whole vector.
    """
    paths = parse_paths(field)
    if len(paths) != dimensions or dimensions < 2:
        return None
    return list(name_paths(paths))


def spell_path(steps: Sequence[Step]) -> str:
    """Return the text of a path, such as `items[kind=x].weights`.

    Names and words with special characters get backticks.
    """
    text = ""
    for step in steps:
        if isinstance(step, Choice):
            word = step.word if _PLAIN_WORD.fullmatch(step.word) else f"`{step.word}`"
            text += f"[{step.key}={word}]"
            continue
        is_plain = _PLAIN_NAME.fullmatch(step) and not _looks_like_choice(step)
        if text:
            text += "."
        text += step if is_plain else f"`{step}`"
    return text


def get_steps(path: Path) -> tuple[Step, ...]:
    """Return the steps of a path: the names of its parts, and its choices."""
    return tuple(part if isinstance(part, Choice) else part.name for part in path)


def collect_names(steps_of_paths: Iterable[Sequence[Step]]) -> set[str]:
    """Return the names of all entries on these paths, including those that choices compare."""
    return {step.key if isinstance(step, Choice) else step for steps in steps_of_paths for step in steps}
