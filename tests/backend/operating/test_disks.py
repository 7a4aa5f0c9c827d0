"""A hanging disk (a mount whose server is gone) delays no page, no scrape and no examination."""

import errno
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from backend import disks, site_notices
from backend.background_call import BackgroundCall, CallResult
from backend.disks import Room, room_at
from backend.operating.checks import nodes
from backend.operating.checks import store as store_check
from backend.operating.checks.disks import check_disks
from backend.operating.checks.findings import Finding
from backend.operating.checks.store import check_store
from backend.store.folder import FolderStore
from tests.backend.monitoring.scraped import scrape


class DeadMount:
    """Simulates the kernel of a host whose file server is gone: callers block until it is back."""

    def __init__(self) -> None:
        self.num_held = 0
        self.is_back, self.is_asked = threading.Event(), threading.Event()

    def holds(self, real: Callable[..., Any], below: Path | None = None) -> Callable[..., Any]:
        def asked(*asked: Any) -> Any:
            if below is None or Path(asked[0]).is_relative_to(below):
                self.num_held += 1
                self.is_asked.set()
                assert self.is_back.wait(timeout=60)
            return real(*asked)

        return asked


@pytest.fixture
def store_dir(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that was not probed yet."""
    monkeypatch.setattr(disks, "_asides", defaultdict(lambda: BackgroundCall(deadline_s=disks.PATIENCE_S)))
    monkeypatch.setattr(site_notices, "_looks", site_notices._Looks())
    folder: Path = settings.ENVIRONMENT.store_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadMount]:
    mount = DeadMount()
    yield mount
    mount.is_back.set()


@pytest.fixture
def dies(store_dir: Path, mount: DeadMount, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(os, "statvfs", mount.holds(os.statvfs, store_dir))


class TestAside:
    """A call in its own thread, in parallel with the next callers."""

    @pytest.fixture
    def clock(self) -> list[float]:
        return [100.0]

    @pytest.fixture
    def aside(self, clock: list[float]) -> BackgroundCall[int]:
        aside: BackgroundCall[int] = BackgroundCall(deadline_s=5, clock=lambda: clock[0])
        assert aside.newest(lambda: 1) == CallResult(last=1)
        return aside

    @pytest.fixture
    def hung(self, aside: BackgroundCall[int], clock: list[float], mount: DeadMount) -> Iterator[threading.Thread]:
        clock[0] += 60
        first = threading.Thread(target=lambda: aside.newest(mount.holds(lambda: 2)))
        first.start()
        assert mount.is_asked.wait(timeout=60)
        yield first
        mount.is_back.set()
        first.join()

    def test_silent_disk_is_reported_with_its_last_state_and_age(
        self, aside: BackgroundCall[int], clock: list[float], hung: threading.Thread
    ) -> None:
        clock[0] += 7
        assert aside.newest(lambda: 3) == CallResult(last=1, age_s=67, silent_s=7)
        clock[0] += 7
        assert aside.newest(lambda: 3) == CallResult(last=1, age_s=74, silent_s=14)

    def test_hanging_call_holds_one_thread(
        self, aside: BackgroundCall[int], clock: list[float], hung: threading.Thread, mount: DeadMount
    ) -> None:
        clock[0] += 7
        for _ in range(50):
            aside.newest(mount.holds(lambda: 3))
        assert mount.num_held == 1

    def test_returned_disk_is_probed_again(
        self, aside: BackgroundCall[int], hung: threading.Thread, mount: DeadMount
    ) -> None:
        mount.is_back.set()
        hung.join()
        assert aside.newest(lambda: 3) == CallResult(last=3)

    def test_call_that_never_returned_has_no_last_result(self, clock: list[float], mount: DeadMount) -> None:
        silent: BackgroundCall[int] = BackgroundCall(deadline_s=0)
        heard = silent.newest(mount.holds(lambda: 1))
        assert heard.last is None and heard.silent_s is not None

    def test_exception_is_passed_on_even_a_timeout(self, aside: BackgroundCall[int]) -> None:
        def gone() -> int:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

        with pytest.raises(TimeoutError, match="Connection timed out"):
            aside.newest(gone)
        assert aside.newest(lambda: 3) == CallResult(last=3)


@pytest.mark.django_db
class TestDeadMount:
    """Each of these would block for as long as the mount is dead, which is until the end of the test."""

    def test_pages_open_with_a_notice(
        self, client: Client, alice: Any, dies: Callable[[], None], mount: DeadMount, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(site_notices, "SILENT_AFTER_S", disks.PATIENCE_S / 2)
        dies()
        client.force_login(alice)
        page = client.get("/jobs/")
        assert page.status_code == 200 and "The disk of this site&#x27;s files has not responded for" in page.text
        assert mount.num_held == 1

    def test_briefly_silent_disk_shows_no_banner(self) -> None:
        last = Room(free_bytes=10**9, num_bytes=10**10, may_write=True)
        assert [*site_notices._of_the_disk(CallResult(last=last, age_s=3, silent_s=2))] == []
        texts = [*site_notices._of_the_disk(CallResult(last=last, age_s=190, silent_s=180))]
        assert len(texts) == 1 and texts[0].startswith("The disk of this site")

    @pytest.mark.long
    def test_scrape_has_last_state_and_its_time(self, dies: Callable[[], None], mount: DeadMount) -> None:
        def told(name: str) -> float:
            return scrape()[f"laminar_disk_{name}"][frozenset({("folder", "store")})]

        assert told("up") == 1
        before = told("free_bytes"), told("read_timestamp_seconds")
        dies()
        assert told("up") == 0
        assert told("free_bytes") == pytest.approx(before[0], rel=0.5)
        assert told("read_timestamp_seconds") <= before[1] + disks.PATIENCE_S
        assert mount.num_held == 1

    def test_examination_reports_since_when(self, dies: Callable[[], None], store_dir: Path) -> None:
        def of_the_store() -> Finding:
            return next(each for each in check_disks(settings.ENVIRONMENT) if f"={store_dir}" in each.observation)

        assert of_the_store().fault == ""
        dies()
        silent = of_the_store()
        assert silent.fault == "disk.silent"
        assert re.search(
            r"has not responded since 20\d\d-.* UTC; \d.* GB are free at 20\d\d-.* UTC$", silent.observation
        )

    def test_the_look_at_the_store_ends(self, mount: DeadMount, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_check, "_asides", defaultdict(lambda: BackgroundCall(deadline_s=0)))
        monkeypatch.setattr(FolderStore, "put", mount.holds(FolderStore.put))
        (finding,) = check_store(settings.ENVIRONMENT)
        assert finding.fault == "store.silent" and "has not responded for 0 s" in finding.observation

    def test_nothing_is_shown_to_nodes_by_a_disk_that_is_silent(
        self, dies: Callable[[], None], store_dir: Path
    ) -> None:
        dies()
        assert nodes._shown(store_dir, "token") is None


def test_missing_folder_or_broken_disk_is_an_error(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        room_at(tmp_path / "nowhere")

    def stale(_: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "statvfs", stale)
    messages = {each.observation for each in check_disks(settings.ENVIRONMENT) if each.fault == "disk.away"}
    assert f"LAMINAR_STORE_DIR={store_dir}: Stale file handle" in messages
