"""Questions from files of every format: access by position, splits, and the refusal that names every bad row."""

import json
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from engine.environments.jsonl import Jsonl
from engine.environments.port import Prompt, Split
from engine.environments.questions import tables
from engine.environments.questions.data_set import NUM_EXPLAINED, NUM_LISTED, HeldOut, Questions
from engine.environments.questions.lines import MAX_LINE_BYTES
from engine.environments.questions.question import Columns
from engine.environments.tools.tools import Tools

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
    """The format in which the package datasets stores tables."""
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


def all_of(questions: Questions, split: Split) -> list[tuple[str, object]]:
    in_order = [questions.question(split, ordinal) for ordinal in range(questions.num(split))]
    return [(question.prompt, question.facts) for question in in_order]


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_format_yields_same_questions_in_same_order(tmp_path: Path, kind: str) -> None:
    write, name = KINDS[kind]
    plain = Questions(as_lines(tmp_path / "plain.jsonl", rows()), seed=4)
    other = Questions(write(tmp_path / name, rows()), seed=4)
    for split in SPLITS:
        assert sorted(map(str, all_of(plain, split))) == sorted(map(str, all_of(other, split)))
        assert all_of(plain, split) == all_of(other, split)
    assert not {prompt for prompt, _ in all_of(other, "train")} & {prompt for prompt, _ in all_of(other, "held_out")}
    assert len(all_of(other, "train")) + len(all_of(other, "held_out")) == 900


def test_folder_of_mixed_formats_is_read_file_by_file(tmp_path: Path) -> None:
    folder, all_rows = tmp_path / "data", rows()
    folder.mkdir()
    as_lines(folder / "1.jsonl", all_rows[:300])
    as_parquet(folder / "2.parquet", all_rows[300:600])
    as_arrow_stream(folder / "3.arrow", all_rows[600:])
    (folder / "README.md").write_text("not a file of rows")
    assert all_of(Questions(folder, seed=4), "train") == all_of(
        Questions(as_lines(tmp_path / "a.jsonl", all_rows), seed=4), "train"
    )
    with pytest.raises(ValueError, match=r"empty: no data files in this folder; add files named \*\.jsonl, "):
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
    prompt = Questions(write(tmp_path / name, given), seed=0).prompt("train", 0)
    assert prompt.messages[0] == SYSTEM and prompt.messages[1]["content"].startswith("What is ")
    assert prompt.tools == (TOOL,)
    assert prompt.text == f"system: Be short.\n\nuser: {prompt.messages[1]['content']}"
    number = int(str(prompt.facts["answer"])) - 1
    assert prompt.facts == {"answer": str(number + 1)}
    to_judge = Questions(tmp_path / name, seed=0, columns=Columns(all_to_judge=True)).prompt("train", 0)
    assert to_judge.facts == {**prompt.facts, "meta": json.dumps({"level": number})}


BAD: list[tuple[object, str]] = [
    ("{", "not a line of JSON"),
    ('"text"', "expected a JSON object, got str"),
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


def test_many_bad_rows_are_explained_first_then_listed(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "bad.parquet", [{"prompt": "", "answer": "a"}] * 60)
    with pytest.raises(ValueError) as caught:
        Questions(path, seed=0)
    *explained, others = str(caught.value).splitlines()
    places = [f"bad.parquet:{at}" for at in range(1, 61)]
    assert [line.partition(": ")[0] for line in explained] == places[:NUM_EXPLAINED]
    assert others == f"and {60 - NUM_EXPLAINED} more: {', '.join(places[NUM_EXPLAINED:])}"


def test_file_of_bad_rows_is_not_read_to_its_end(tmp_path: Path) -> None:
    most = NUM_EXPLAINED + NUM_LISTED
    path = as_lines(tmp_path / "bad.jsonl", [{"prompt": ""}] * (most + 5))
    read: list[Prompt] = []
    with pytest.raises(ValueError, match=rf"bad\.jsonl:{most}, possibly more: the rest was not read$"):
        Questions(path, seed=0)

    def refuse(prompt: Prompt) -> None:
        read.append(prompt)
        raise ValueError("too long")

    as_lines(path, rows(most + 5))
    with pytest.raises(ValueError, match=r"^bad\.jsonl:1: too long"):
        Questions(path, seed=0, accept=refuse)
    assert len(read) == most


def test_text_parts_of_a_message_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "6 times 7?"}]
    given = [{"prompt": [{"role": "user", "content": [*parts, {"text": str(i)}]}], "answer": 42} for i in range(40)]
    [message] = Questions(as_lines(tmp_path / "a.jsonl", given), seed=0).prompt("train", 0).messages
    assert message["content"].startswith("What is\n6 times 7?\n")


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_too_long_row_is_named_and_others_are_read(tmp_path: Path, compression: str) -> None:
    long = "x" * (MAX_LINE_BYTES + 1)
    given = [row | {"prompt": long} if at in (3, 300) else row for at, row in enumerate(rows(400))]
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
    questions = Questions(tmp_path / "a.parquet", seed=0, columns=Columns(all_to_judge=True))
    assert questions.num("train") + questions.num("held_out") == 400


def test_rows_that_would_fill_the_disk_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_parquet(tmp_path / "a.parquet", [row | {"answer": "x" * 10_000} for row in rows(900)])
    assert path.stat().st_size < 1 << 20
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=16 << 20))
    with pytest.raises(ValueError, match=r"data: a\.parquet: its uncompressed rows exceed half of the free space in"):
        Questions(path, seed=0)


def test_rows_that_are_much_longer_than_their_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_parquet(tmp_path / "a.parquet", [row | {"answer": "x" * 10_000} for row in rows(900)])
    monkeypatch.setattr(tables, "ROOM_BYTES", 1 << 10)
    with pytest.raises(ValueError, match=r"data: a\.parquet: its uncompressed rows exceed 100 times its size"):
        Questions(path, seed=0)


def test_more_rows_than_bytes_are_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"prompt": pyarrow.nulls(200_000, pyarrow.string())})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=200_000)
    assert (tmp_path / "a.parquet").stat().st_size < 4_096
    with pytest.raises(ValueError, match=r"data: a\.parquet: cannot be read: more than 10\d\d\d\d rows"):
        Questions(tmp_path / "a.parquet", seed=0)


LONG_ROW = Path(__file__).parent / "long_row.parquet"
"""2 kB with 100 questions; the column `more` of the last one is a list of 400 million nulls."""
READS_A_TABLE = """
import sys
from pathlib import Path
from engine.environments.questions.data_set import Columns, Questions
try:
    Questions(Path(sys.argv[1]), seed=0, columns=Columns(all_to_judge=True))
except ValueError as error:
    print(error)
status = Path("/proc/self/status").read_text().split()
print("pyarrow" in sys.modules, int(status[status.index("VmHWM:") + 1]) >> 10)
"""


def test_table_is_read_by_another_process_with_bounded_memory() -> None:
    done = subprocess.run([sys.executable, "-c", READS_A_TABLE, LONG_ROW], capture_output=True, text=True, check=True)
    refusal, measured = done.stdout.splitlines()
    assert refusal.startswith(f"data: long_row.parquet: needs more than {1 << 30} bytes of memory at once")
    has_imported, peak_mib = measured.split()
    assert has_imported == "False"
    assert int(peak_mib) < 200


def test_columns_that_are_not_read_may_be_of_any_size() -> None:
    assert Questions(LONG_ROW, seed=0).num("train") > 80


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream"])
def test_values_without_json_are_text_for_a_judge_only(tmp_path: Path, kind: str) -> None:
    write, name = KINDS[kind]
    day = date(2026, 11, 30)
    path = write(tmp_path / name, [row | {"day": day, "days": [day]} for row in rows(40)])
    facts = Questions(path, seed=0, columns=Columns(all_to_judge=True)).question("train", 0).facts
    assert (facts["day"], facts["days"]) == ('"datetime.date(2026, 11, 30)"', '["2026-11-30"]')
    for columns in (Columns(prompt="day"), Columns(answer="day")):
        with pytest.raises(ValueError, match=r"a\.\w+:1: day: .*got datetime\.date\(2026, 11, 30\)"):
            Questions(path, seed=0, columns=columns)


def test_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_text("no table")
        with pytest.raises(ValueError, match=rf"data: {name}: cannot be read"):
            Questions(tmp_path / name, seed=0)


# Splits ---------------------------------------------------------------------------------------------------------------


def test_rows_are_held_out_by_a_column(tmp_path: Path) -> None:
    given = [row | {"split": "test" if row["level"] == 0 else "train"} for row in rows()]
    all_columns = Columns(all_to_judge=True)
    path = as_parquet(tmp_path / "a.parquet", given)
    by_text = Questions(path, seed=0, held_out=HeldOut(column="split"), columns=all_columns)
    assert (by_text.num("train"), by_text.num("held_out")) == (720, 180)
    assert all(by_text.question("held_out", at).others["level"] == 0 for at in range(180))
    by_number = Questions(path, seed=0, held_out=HeldOut(column="level", value="3"), columns=all_columns)
    assert all(by_number.question("held_out", at).others["level"] == 3 for at in range(by_number.num("held_out")))
    with pytest.raises(ValueError, match=r"a\.parquet:1: part: column is missing, which held_out_column names"):
        Questions(tmp_path / "a.parquet", seed=0, held_out=HeldOut(column="part"))
    with pytest.raises(ValueError, match="rows with 'exam' in the column split are held out"):
        Questions(tmp_path / "a.parquet", seed=0, held_out=HeldOut(column="split", value="exam"))


def test_rows_are_held_out_by_a_file_of_their_own(tmp_path: Path) -> None:
    train, exam = as_lines(tmp_path / "train.jsonl", rows()[:500]), as_parquet(tmp_path / "exam.parquet", rows()[500:])
    questions = Questions(train, seed=0, held_out=HeldOut(data=exam))
    assert (questions.num("train"), questions.num("held_out")) == (500, 400)
    assert all(int(str(questions.question("held_out", at).answer)) > 500 for at in range(400))


def test_prompt_in_both_splits_is_refused_with_its_rows(tmp_path: Path) -> None:
    train, exam = as_lines(tmp_path / "train.jsonl", rows(20)), as_lines(tmp_path / "exam.jsonl", rows()[18:30])
    with pytest.raises(ValueError) as caught:
        Questions(train, seed=0, held_out=HeldOut(data=exam))
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == ["train.jsonl:19", "train.jsonl:20"]


# In environments ------------------------------------------------------------------------------------------------------


def test_columns_have_the_names_given_in_the_job(tmp_path: Path) -> None:
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
        ({"held_out_column": "split", "held_out_share": 0.5}, "held_out_column: set only one way to hold out rows"),
        ({"held_out_column": "split", "held_out_data": "b"}, "held_out_data: set only one way to hold out rows"),
        ({"held_out_value": "exam"}, "held_out_value: requires held_out_column"),
    ],
)
def test_parameters_without_effect_are_refused(params: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Jsonl.from_params(0, {"data": "a", **params}, 10.0)


def test_tools_are_explained_in_the_one_system_message(tmp_path: Path) -> None:
    given = [{"prompt": [SYSTEM, {"role": "user", "content": f"{i}?"}], "answer": str(i)} for i in range(40)]
    params: dict[str, Any] = {"data": str(as_lines(tmp_path / "a.jsonl", given)), "calls": "tool_call"}
    prompt = Tools.from_params(0, params, 10.0).prompt("train", 0)
    first, last = prompt.messages
    assert first["role"] == "system" and first["content"].endswith("Be short.") and "<answer>" in first["content"]
    assert last["content"].endswith("?") and [tool["function"]["name"] for tool in prompt.tools] == ["calculator"]
