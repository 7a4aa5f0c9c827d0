"""The set-up reports what is missing in one sentence, does its work once, and trusts only a finished environment."""

import ast
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import infra.setup
from infra.setup import __main__ as command
from infra.setup import environment
from infra.setup.environment import (
    FIRST_INSTALL_BYTES,
    NEEDS_CUDA,
    VLLM_ENGINE,
    VLLM_KERNELS,
    check_command,
    set_up,
)
from infra.setup.machine import GIB, check_compiler, check_disk, check_modules, check_python, lock_of_vllm
from infra.setup.paths import Paths
from infra.setup.stages import explain_failure, run_stage
from infra.setup.stamp import is_finished
from infra.setup.terminal import Refusal

SOURCES = sorted(Path(infra.setup.__file__).parent.glob("*.py"))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A copy of Laminar in a path with a space, with locks but without an environment."""
    root = tmp_path / "a copy"
    made = Paths(root)
    made.locks.mkdir(parents=True)
    for name in ("torch", "cuda", "local", "dev", "vllm", "vllm-cuda"):
        (made.locks / f"{name}.txt").write_text(f"{name}==1.0\n")
    return made


@pytest.fixture
def stages(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the stages that ran; instead of installing, each only leaves what the next one looks for."""
    ran: list[str] = []

    def pretend(of: Paths, title: str, command: Sequence[str]) -> None:
        ran.append(title)
        of.python.parent.mkdir(parents=True, exist_ok=True)
        of.python.touch()
        of.wheels.mkdir(exist_ok=True)

    monkeypatch.setattr(environment, "run_stage", pretend)
    monkeypatch.setattr(environment, "check_disk", lambda *_: None)
    monkeypatch.setattr(environment, "check_compiler", lambda _: None)
    return ran


ALL_STAGES = ["virtual environment", "torch, download", "torch", "packages", "check", "bytecode", "sandbox"]


def test_an_old_python_is_told_which_one_is_needed() -> None:
    with pytest.raises(Refusal, match=r"needs Python 3\.11 or newer; this is 3\.9\.2: "):
        check_python((3, 9, 2))


def test_an_old_python_is_pointed_at_a_newer_one_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/python3.12" if name == "python3.12" else None)
    with pytest.raises(Refusal, match=r"PYTHON=python3\.12"):
        check_python((3, 8, 0))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_an_old_python_can_parse_the_set_up(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 8))


def test_a_missing_venv_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(Refusal, match=r"no ensurepip module: install it .*-venv"):
        check_modules()


def test_a_missing_compiler_is_named_and_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"no C compiler .*apt-get install build-essential"):
        check_compiler(str(tmp_path))


def test_any_c_compiler_will_do(tmp_path: Path) -> None:
    compiler = tmp_path / "clang"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    check_compiler(str(tmp_path))


def test_a_small_disk_is_told_what_it_has_and_what_is_needed() -> None:
    with pytest.raises(Refusal, match=r"disk of /srv has 2\.5 GiB free and the set-up needs 6 GiB"):
        check_disk(int(2.5 * GIB), FIRST_INSTALL_BYTES, Path("/srv"))


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "does not match the hashes of the locks"),
        ("NewConnectionError(...)\nERROR: No matching distribution found for rich==15.0.0", "cannot be reached"),
        ("ERROR: No matching distribution found for torch==2.13.0", "Python 3.11 to 3.13"),
        ("error: command '/usr/bin/gcc' failed: No such file", "could not be compiled"),
        ("something new", "Read the log"),
    ],
)
def test_a_failed_stage_ends_with_its_last_lines_and_what_to_do(output: str, advice: str, tmp_path: Path) -> None:
    message = explain_failure("packages", output, tmp_path / "setup.log")
    assert advice in message and output.splitlines()[-1] in message and "setup.log" in message


def test_failing_command_is_refused_with_its_output_logged(paths: Paths) -> None:
    paths.log.parent.mkdir(parents=True)
    with pytest.raises(Refusal, match="disk is full"):
        script = "print('No space left on device'); raise SystemExit(1)"
        run_stage(paths, "packages", [sys.executable, "-c", script])
    assert "No space left on device" in paths.log.read_text()


def test_only_the_cuda_build_of_torch_asks_for_cuda() -> None:
    cuda = 'Requires-Dist: filelock\nRequires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == "Linux"\n'
    assert NEEDS_CUDA.search(cuda)
    assert not NEEDS_CUDA.search('Requires-Dist: filelock\nRequires-Dist: nvidia-x; extra == "gpu"\n')


def test_the_second_run_does_nothing(paths: Paths, stages: list[str]) -> None:
    set_up(paths, "local")
    assert stages == ALL_STAGES
    set_up(paths, "local")
    assert stages == ALL_STAGES


def test_an_interrupted_environment_is_made_anew(
    paths: Paths, stages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> list[str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "pip_install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            set_up(paths, "local")
    assert paths.python.exists() and not is_finished(paths, "local")
    stages.clear()
    set_up(paths, "local")
    assert stages == ALL_STAGES


def test_an_environment_whose_interpreter_is_gone_is_made_anew(paths: Paths, stages: list[str]) -> None:
    set_up(paths, "local")
    paths.python.unlink()
    paths.python.symlink_to("/nowhere/python3.11")
    assert not is_finished(paths, "local")


@pytest.mark.parametrize("stamp", ["", "not json", "[]", '{"python": "3.10.1"}'])
def test_a_stamp_that_says_nothing_counts_as_none(paths: Paths, stages: list[str], stamp: str) -> None:
    set_up(paths, "local")
    paths.stamp.write_text(stamp)
    assert not is_finished(paths, "local")


def test_a_changed_lock_makes_the_environment_anew(paths: Paths, stages: list[str]) -> None:
    set_up(paths, "local")
    stages.clear()
    (paths.locks / "local.txt").write_text("local==2.0\n")
    set_up(paths, "local")
    assert stages == ALL_STAGES


def test_dev_tools_are_added_to_a_finished_environment(paths: Paths, stages: list[str]) -> None:
    set_up(paths, "local")
    stages.clear()
    set_up(paths, "dev")
    assert stages == ["packages and tools", "check", "bytecode", "sandbox"]
    set_up(paths, "local")
    assert stages == ["packages and tools", "check", "bytecode", "sandbox"]
    assert json.loads(paths.stamp.read_text()).keys() == {"python", "torch", "cuda", "local", "dev"}


def test_vllm_has_its_own_environment_and_lock(paths: Paths, stages: list[str]) -> None:
    own = Paths(paths.state.parent, "vllm")
    set_up(own, "vllm")
    assert stages == ["virtual environment", "torch, download", "torch", "vLLM and packages", "check"]
    assert not is_finished(paths, "local")
    set_up(paths, "local")
    (paths.locks / "local.txt").write_text("local==2.0\n")
    assert is_finished(own, "vllm") and not is_finished(paths, "local")
    (paths.locks / "vllm.txt").write_text("vllm==2.0\n")
    assert not is_finished(own, "vllm")
    assert own.log != paths.log


@pytest.mark.parametrize(("driver", "build"), [("version", "vllm-cuda"), ("nowhere", "vllm")])
def test_vllm_comes_in_the_build_that_the_machine_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, build: str
) -> None:
    (tmp_path / "version").touch()
    monkeypatch.setattr("infra.setup.machine.NVIDIA_DRIVER", (tmp_path / "absent", tmp_path / driver))
    assert lock_of_vllm("") == build
    assert (lock_of_vllm("cpu"), lock_of_vllm("cuda")) == ("vllm", "vllm-cuda")


@pytest.mark.parametrize("build", ["gpu", "1", "CUDA"])
def test_a_build_of_vllm_that_there_is_not_is_refused(build: str) -> None:
    with pytest.raises(Refusal, match=rf"VLLM must be one of cpu, cuda, 0 to leave .* got '{build}'"):
        lock_of_vllm(build)


def test_other_build_of_vllm_replaces_the_installed_one(
    paths: Paths, stages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Paths(paths.state.parent, "vllm")
    set_up(own, "vllm")
    assert not is_finished(own, "vllm-cuda")
    stages.clear()
    monkeypatch.setattr(environment, "torch_metadata", lambda _: "Requires-Dist: nvidia-nccl-cu13==2.29.7\n")
    set_up(own, "vllm-cuda")
    last = ["CUDA libraries", "vLLM for CUDA, packages", "check"]
    assert stages == ["virtual environment", "torch, download", "torch", *last]
    assert is_finished(own, "vllm-cuda") and not is_finished(own, "vllm")


def test_vllm_for_cuda_is_not_put_beside_torchs_cpu_build(paths: Paths, stages: list[str]) -> None:
    own = Paths(paths.state.parent, "vllm")
    with pytest.raises(Refusal, match=r"torch's CUDA build, .*PIP_FIND_LINKS.*make vllm VLLM=cpu"):
        set_up(own, "vllm-cuda")
    assert not is_finished(own, "vllm-cuda")


def test_the_word_for_the_build_reaches_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(command, "set_up", lambda paths, lock: calls.append(f"{paths.venv.name} {lock}"))
    assert [command.main(words) for words in (["--vllm", "cuda"], ["--vllm", "cpu"], ["--vllm", "gpu"])] == [0, 0, 1]
    assert calls == ["vllm vllm-cuda", "vllm vllm"]


def test_vllms_environment_is_checked_by_import_not_pip(paths: Paths) -> None:
    """`pip check` would report torchvision as missing, but on a CPU torchvision breaks vLLM."""
    for lock in ("vllm", "vllm-cuda"):
        assert check_command(Paths(paths.state.parent, "vllm"), lock)[1] == "-c"
    assert check_command(paths, "vllm")[2].endswith(VLLM_KERNELS), "on a CPU it may warn of those, and be imported"
    dockerfile = Path(infra.setup.__file__).parents[1] / "images" / "engine" / "Dockerfile"
    assert VLLM_ENGINE in dockerfile.read_text() and VLLM_KERNELS in dockerfile.read_text(), "the image checks no less"
    assert check_command(paths, "dev")[1:] == ["-m", "pip", "check"]


def test_who_cannot_have_vllm_is_told_how_to_leave_it_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise Refusal("no room")

    monkeypatch.setattr(command, "set_up", refuse)
    assert command.main(["--vllm"]) == 1
    assert "no room" in (printed := capsys.readouterr().out) and "make test VLLM=0" in printed
    assert command.main([]) == 1
    assert "VLLM=0" not in capsys.readouterr().out


def test_two_at_once_do_the_work_once(paths: Paths, stages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend = vars(environment)["run_stage"]

    def slowly(paths: Paths, title: str, command: Sequence[str]) -> None:
        time.sleep(0.02)
        pretend(paths, title, command)

    monkeypatch.setattr(environment, "run_stage", slowly)
    runs = [threading.Thread(target=set_up, args=(paths, "local")) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert stages == ALL_STAGES
