"""Questions from files of every kind: found by position, told apart by split, refused with every bad row at once."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from engine.environments.jsonl import Jsonl
from engine.environments.port import Prompt, Split
from engine.environments.questions.asked import NUMBERED, TOLD, HeldOut, Questions
from engine.environments.questions.lines import MAX_LINE_BYTES
from engine.environments.questions.question import Columns
from engine.environments.tools import Tools

SPLITS: tuple[Split, Split] = ("train", "held_out")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "Be short."}


def rows(num: int = 900) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {i} + 1?", "answer": i + 1, "level": i % 5, "topic": f"t{i % 3}"} for i in range(num)]


def as_lines(path: Path, given: list[Any]) -> Path:
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in given))
    return path


def as_parquet(path: Path, given: list[Any]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(given), path, row_group_size=400)
    return path


def as_arrow_file(path: Path, given: list[Any]) -> Path:
    table = pyarrow.Table.from_pylist(given)
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, max_chunksize=300)
    return path


def as_arrow_stream(path: Path, given: list[Any]) -> Path:
    """As the package datasets keeps them."""
    table = pyarrow.Table.from_pylist(given)
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return path


KINDS = {
    "jsonl": (as_lines, "a.jsonl"),
    "parquet": (as_parquet, "a.parquet"),
    "arrow file": (as_arrow_file, "a.arrow"),
    "arrow stream": (as_arrow_stream, "a.arrow"),
}


def told(asked: Questions, split: Split) -> list[tuple[str, object]]:
    questions = [asked.question(split, ordinal) for ordinal in range(asked.num(split))]
    return [(question.prompt, question.facts) for question in questions]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_asks_the_same_questions_in_the_same_order(tmp_path: Path, kind: str) -> None:
    write, name = KINDS[kind]
    plain = Questions(as_lines(tmp_path / "plain.jsonl", rows()), seed=4)
    other = Questions(write(tmp_path / name, rows()), seed=4)
    for split in SPLITS:
        assert sorted(map(str, told(plain, split))) == sorted(map(str, told(other, split)))
        assert told(plain, split) == told(other, split)
    assert not {prompt for prompt, _ in told(other, "train")} & {prompt for prompt, _ in told(other, "held_out")}
    assert len(told(other, "train")) + len(told(other, "held_out")) == 900


def test_a_folder_is_read_file_by_file_whatever_their_kinds(tmp_path: Path) -> None:
    folder, all_rows = tmp_path / "data", rows()
    folder.mkdir()
    as_lines(folder / "1.jsonl", all_rows[:300])
    as_parquet(folder / "2.parquet", all_rows[300:600])
    as_arrow_stream(folder / "3.arrow", all_rows[600:])
    (folder / "README.md").write_text("not a file of rows")
    assert told(Questions(folder, seed=4), "train") == told(
        Questions(as_lines(tmp_path / "a.jsonl", all_rows), seed=4), "train"
    )
    with pytest.raises(ValueError, match=r"empty: a folder with files of rows .* and it has none"):
        (tmp_path / "empty").mkdir()
        Questions(tmp_path / "empty", seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_may_be_messages_with_tools(tmp_path: Path, kind: str) -> None:
    write, name = KINDS[kind]
    given = [
        {
            "prompt": [SYSTEM, {"role": "user", "content": f"What is {i} + 1?"}],
            "tools": json.dumps([TOOL]),
            "answer": str(i + 1),
            "meta": {"level": i},
        }
        for i in range(40)
    ]
    asked = Questions(write(tmp_path / name, given), seed=0)
    prompt = asked.prompt("train", 0)
    assert prompt.messages[0] == SYSTEM and prompt.messages[1]["content"].startswith("What is ")
    assert prompt.tools == (TOOL,)
    assert prompt.text == f"system: Be short.\n\nuser: {prompt.messages[1]['content']}"
    number = int(str(prompt.facts["answer"])) - 1
    assert prompt.facts == {"answer": str(number + 1)}
    to_judge = Questions(tmp_path / name, seed=0, columns=Columns(all_to_judge=True)).prompt("train", 0)
    assert to_judge.facts == {**prompt.facts, "meta": json.dumps({"level": number})}


BAD: list[tuple[object, str]] = [
    ("{", "not a line of JSON"),
    ('"text"', "an object by column, got str"),
    ({"prompt": " ", "answer": "x"}, "prompt: a text that is not empty, or a list of messages, got ' '"),
    ({"prompt": "p"}, "answer: a text, a number, a list or an object, got None"),
    ({"prompt": [], "answer": "x"}, "prompt: at least one message, got an empty list"),
    ({"prompt": [{"content": "x"}], "answer": "x"}, 'prompt: message 1: an object with "role"'),
    ({"prompt": [SYSTEM, {"role": "king", "content": "x"}], "answer": "x"}, 'message 2: an object with "role"'),
    ({"prompt": [{"role": "user", "content": 7}], "answer": "x"}, "message 1: content: a text or a list of parts"),
    (
        {"prompt": [{"role": "user", "content": [{"type": "image", "url": "x"}]}], "answer": "x"},
        "message 1: content: a text or a list of parts with text",
    ),
    (
        {"prompt": [{"role": "assistant", "content": "x"}], "answer": "x"},
        "the last message must be a user's or a tool's",
    ),
    ({"prompt": "p", "answer": "x", "tools": "["}, "tools: a list of objects, or one as JSON"),
    ({"prompt": "p", "answer": "x", "tools": [1]}, "tools: a list of objects"),
]


def test_every_bad_row_is_named_at_once_with_its_number(tmp_path: Path) -> None:
    good = {"prompt": "p", "answer": "a"}
    path = as_lines(tmp_path / "bad.jsonl", [good, "", *(row for row, _ in BAD), good])
    with pytest.raises(ValueError) as caught:
        Questions(path, seed=0)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(BAD)
    for number, (line, (_, wrong)) in enumerate(zip(lines, BAD, strict=True), start=3):
        assert line.startswith(f"bad.jsonl:{number}: ") and wrong in line


def test_of_many_bad_rows_the_first_are_explained_and_all_are_numbered(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "bad.parquet", [{"prompt": "", "answer": "a"}] * 60)
    with pytest.raises(ValueError) as caught:
        Questions(path, seed=0)
    *explained, others = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in explained] == [f"bad.parquet:{at}" for at in range(1, TOLD + 1)]
    expected = ", ".join(f"bad.parquet:{at}" for at in range(TOLD + 1, 61))
    assert others == f"and {60 - TOLD} more: {expected}"


def test_a_file_of_nothing_but_bad_rows_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = as_lines(tmp_path / "bad.jsonl", [{"prompt": ""}] * (TOLD + NUMBERED + 5))
    read: list[Prompt] = []
    with pytest.raises(ValueError, match=rf"bad\.jsonl:{TOLD + NUMBERED}, and perhaps more behind them$"):
        Questions(path, seed=0)

    def refuse(asked: Prompt) -> None:
        read.append(asked)
        raise ValueError("too long")

    as_lines(path, rows(TOLD + NUMBERED + 5))
    with pytest.raises(ValueError, match=r"^bad\.jsonl:1: too long"):
        Questions(path, seed=0, accept=refuse)
    assert len(read) == TOLD + NUMBERED


def test_parts_of_a_message_are_one_text_as_templates_take_it(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "6 times 7?"}]
    given = [{"prompt": [{"role": "user", "content": [*parts, {"text": str(i)}]}], "answer": 42} for i in range(40)]
    [message] = Questions(as_lines(tmp_path / "a.jsonl", given), seed=0).prompt("train", 0).messages
    assert message["content"].startswith("What is\n6 times 7?\n")


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_row_of_a_small_file_that_is_too_long_is_named_and_its_neighbours_are_read(
    tmp_path: Path, compression: str
) -> None:
    long = "x" * (MAX_LINE_BYTES + 1)
    given = [row | {"more": long if at in (3, 300) else ""} for at, row in enumerate(rows(400))]
    parquet.write_table(pyarrow.Table.from_pylist(given), tmp_path / "a.parquet", compression=compression)
    with pytest.raises(ValueError) as caught:
        Questions(tmp_path / "a.parquet", seed=0)
    wrong = f"longer than {MAX_LINE_BYTES} bytes"
    assert str(caught.value).splitlines() == [f"a.parquet:4: {wrong}", f"a.parquet:301: {wrong}"]


@pytest.mark.long
def test_a_column_of_few_values_may_have_more_bytes_than_a_row(tmp_path: Path) -> None:
    values = [str(at) * (MAX_LINE_BYTES // 4) for at in range(8)]
    table = pyarrow.Table.from_pylist(rows(400))
    topics = pyarrow.DictionaryArray.from_arrays(pyarrow.array([at % 8 for at in range(400)]), pyarrow.array(values))
    parquet.write_table(table.append_column("long", topics), tmp_path / "a.parquet")
    asked = Questions(tmp_path / "a.parquet", seed=0)
    assert asked.num("train") + asked.num("held_out") == 400


def test_rows_that_would_fill_the_disk_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_parquet(tmp_path / "a.parquet", [row | {"more": "x" * 10_000} for row in rows(900)])
    assert path.stat().st_size < 1 << 20
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=16 << 20))
    with pytest.raises(ValueError, match=r"data: a\.parquet: its rows must take less than half of what is free in"):
        Questions(path, seed=0)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_text("no table")
        with pytest.raises(ValueError, match=rf"data: {name} cannot be read"):
            Questions(tmp_path / name, seed=0)


# Splits ---------------------------------------------------------------------------------------------------------------


def test_rows_are_held_out_by_a_column(tmp_path: Path) -> None:
    given = [row | {"split": "test" if row["level"] == 0 else "train"} for row in rows()]
    all_of_them = Columns(all_to_judge=True)
    path = as_parquet(tmp_path / "a.parquet", given)
    asked = Questions(path, seed=0, held_out=HeldOut(column="split"), columns=all_of_them)
    assert (asked.num("train"), asked.num("held_out")) == (720, 180)
    assert all(asked.question("held_out", at).others["level"] == 0 for at in range(180))
    numbers = Questions(path, seed=0, held_out=HeldOut(column="level", value="3"), columns=all_of_them)
    assert all(numbers.question("held_out", at).others["level"] == 3 for at in range(numbers.num("held_out")))
    with pytest.raises(ValueError, match=r"a\.parquet:1: part: the column that says which rows are held out"):
        Questions(tmp_path / "a.parquet", seed=0, held_out=HeldOut(column="part"))
    with pytest.raises(ValueError, match="held out are rows whose split is 'exam'"):
        Questions(tmp_path / "a.parquet", seed=0, held_out=HeldOut(column="split", value="exam"))


def test_rows_are_held_out_by_a_file_of_their_own(tmp_path: Path) -> None:
    train, exam = as_lines(tmp_path / "train.jsonl", rows()[:500]), as_parquet(tmp_path / "exam.parquet", rows()[500:])
    asked = Questions(train, seed=0, held_out=HeldOut(data=exam))
    assert (asked.num("train"), asked.num("held_out")) == (500, 400)
    assert all(int(str(asked.question("held_out", at).answer)) > 500 for at in range(400))


def test_a_prompt_that_is_held_out_and_trained_on_is_refused_with_its_rows(tmp_path: Path) -> None:
    train, exam = as_lines(tmp_path / "train.jsonl", rows(20)), as_lines(tmp_path / "exam.jsonl", rows()[18:30])
    with pytest.raises(ValueError) as caught:
        Questions(train, seed=0, held_out=HeldOut(data=exam))
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == ["train.jsonl:19", "train.jsonl:20"]


# In environments ------------------------------------------------------------------------------------------------------


def test_columns_go_by_the_names_that_the_job_gives_them(tmp_path: Path) -> None:
    given = [{"question": row["prompt"], "solution": row["answer"]} for row in rows(50)]
    path = as_lines(tmp_path / "a.jsonl", given)
    params: dict[str, Any] = {"data": str(path), "prompt_column": "question", "answer_column": "solution"}
    prompt = Jsonl.from_params(0, params, 10.0).prompt("train", 0)
    assert prompt.text.startswith("What is ") and set(prompt.facts) == {"answer"}
    named = Questions(path, seed=0, columns=Columns(prompt="question", answer="solution"))
    assert prompt == named.prompt("train", 0)


@pytest.mark.parametrize(
    ("params", "wrong"),
    [
        ({"held_out_column": "split", "held_out_share": 0.5}, "held_out_column: rows are held out in one way, got"),
        ({"held_out_column": "split", "held_out_data": "b"}, "held_out_data: rows are held out in one way, got"),
        ({"held_out_value": "exam"}, "held_out_value: only with held_out_column"),
    ],
)
def test_what_would_do_nothing_is_refused(params: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Jsonl.from_params(0, {"data": "a", **params}, 10.0)


def test_tools_are_explained_in_the_one_system_message(tmp_path: Path) -> None:
    given = [{"prompt": [SYSTEM, {"role": "user", "content": f"{i}?"}], "answer": str(i)} for i in range(40)]
    params: dict[str, Any] = {"data": str(as_lines(tmp_path / "a.jsonl", given)), "calls": "tool_call"}
    prompt = Tools.from_params(0, params, 10.0).prompt("train", 0)
    first, last = prompt.messages
    assert first["role"] == "system" and first["content"].endswith("Be short.") and "<answer>" in first["content"]
    assert last["content"].endswith("?") and [tool["function"]["name"] for tool in prompt.tools] == ["calculator"]
