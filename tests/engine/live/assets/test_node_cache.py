"""A node's cache: assets are fetched once, locked by the kernel, bounded, and never evicted while in use."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.live.assets import node_cache
from engine.live.assets.node_cache import NodeCache, NoRoom

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture(autouse=True)
def _forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(node_cache, "_held", {})


def filling(content: bytes = b"1234", *, calls: list[str] | None = None) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        if calls is not None:
            calls.append(folder.name)
        (folder / "file").write_bytes(content)

    return fill


def let_go() -> None:
    """Releases all locks, as the end of the process would."""
    for handle in node_cache._held.values():
        os.close(handle)
    node_cache._held.clear()


def hold(cache: NodeCache, sha256: str, fill: Callable[[Path], None] | None = None) -> Path:
    return cache.hold(sha256, num_bytes=4, fill=fill or filling())


def in_another_process(root: Path, sha256: str, then: str) -> "subprocess.Popen[str]":
    """Holds the asset, prints that, and runs `then`, during the fetch if it prints."""
    script = (
        "import sys, time; from pathlib import Path; from engine.live.assets.node_cache import NodeCache\n"
        "def fill(folder):\n    (folder / 'file').write_bytes(b'12')\n"
        f"    {then if then.startswith('print') else 'pass'}\n    (folder / 'file').write_bytes(b'1234')\n"
        f"NodeCache(root=Path({str(root)!r}), max_bytes=8).hold({sha256!r}, num_bytes=4, fill=fill)\n"
        "print('held', flush=True)\n"
        f"{'pass' if then.startswith('print') else then}\n"
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


WAITS = "print('filling', flush=True); time.sleep(600)"
STAYS = "time.sleep(600)"


def test_processes_share_one_fetch(tmp_path: Path) -> None:
    calls: list[str] = []
    others = [in_another_process(tmp_path, A, STAYS)]
    assert others[0].stdout is not None and others[0].stdout.readline() == "held\n"
    cache = NodeCache(root=tmp_path, max_bytes=8)
    threads = [threading.Thread(target=hold, args=(cache, A, filling(calls=calls))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [] and (tmp_path / A / "file").read_bytes() == b"1234"
    others[0].kill()
    others[0].wait()


def test_waiting_process_takes_over_a_killed_fetch(tmp_path: Path) -> None:
    doomed = in_another_process(tmp_path, A, WAITS)
    assert doomed.stdout is not None and doomed.stdout.readline() == "filling\n"
    looked = threading.Event()
    calls: list[str] = []
    folders: list[Path] = []
    waiter = threading.Thread(
        target=lambda: folders.append(
            NodeCache(root=tmp_path).hold(A, num_bytes=4, fill=filling(calls=calls), waiting=looked.set)
        )
    )
    waiter.start()
    assert looked.wait(60), "the waiter does not wait for the fetch"
    doomed.send_signal(signal.SIGKILL)
    doomed.wait()
    waiter.join(60)
    assert folders == [tmp_path / A] and calls == [f"{A}.coming"] and not (tmp_path / f"{A}.coming").exists()


def test_least_recently_used_asset_is_evicted_at_the_limit(tmp_path: Path) -> None:
    cache = NodeCache(root=tmp_path, max_bytes=8)
    for at, sha256 in enumerate((A, B)):
        hold(cache, sha256)
        let_go()
        os.utime(tmp_path / f"{sha256}.lock", (at, at))
    hold(cache, A)  # used again
    let_go()
    hold(cache, C)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [A, C]


def test_asset_in_use_is_not_evicted_and_refusal_gives_sizes(tmp_path: Path) -> None:
    user = in_another_process(tmp_path, A, STAYS)
    assert user.stdout is not None and user.stdout.readline() == "held\n"
    cache = NodeCache(root=tmp_path, max_bytes=4)
    with pytest.raises(
        NoRoom, match=r"no room: the job needs 4 bytes more.*may hold 4 .*LAMINAR_NODE_CACHE_GB.*in use"
    ):
        hold(cache, B)
    assert (tmp_path / A / "file").read_bytes() == b"1234"
    user.kill()
    user.wait()
    assert hold(cache, B).is_dir() and not (tmp_path / A).exists()


def test_asset_larger_than_free_disk_is_refused_before_fetch(tmp_path: Path) -> None:
    calls: list[str] = []
    with pytest.raises(NoRoom, match="the disk has"):
        NodeCache(root=tmp_path, max_bytes=2**62).hold(A, num_bytes=2**61, fill=filling(calls=calls))
    assert calls == []


def test_disk_full_in_fetch_is_reported_and_parts_are_kept(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        (folder / "file").write_bytes(b"12")
        raise OSError(28, "No space left on device")

    with pytest.raises(NoRoom, match="is full"):
        hold(NodeCache(root=tmp_path), A, full)
    kept: list[bytes] = []

    def resume(folder: Path) -> None:
        kept.append((folder / "file").read_bytes())

    assert hold(NodeCache(root=tmp_path), A, resume) == tmp_path / A and kept == [b"12"]
