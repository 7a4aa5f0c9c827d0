"""One sandboxed process tree: its pipes, its time, its end.

Invariants:
- a wait ends when the caller's patience is over, whatever the child does with its pipes;
- `end` leaves no process of the tree alive: it kills the outermost process, and the processes below die with it;
- output is kept up to its limit and discarded beyond it; a flood of output ends the child.
"""

# Over budget: pipes, time and end of one process tree share its state.

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from engine.environments.sandbox.bare import BareProcess
from engine.environments.sandbox.command import require_bubblewrap, sandbox_command
from engine.environments.sandbox.gvisor import Bundle, is_chosen
from engine.environments.sandbox.memory_group import MemoryGroup, parent_of_groups
from engine.environments.sandbox.outcome import (
    Finished,
    Killed,
    Limits,
    Outcome,
    OutOfMemory,
    Output,
    Refused,
    SandboxUnavailable,
    Starved,
    TimedOut,
)
from engine.environments.sandbox.own_time import Ending, OwnTime
from engine.environments.sandbox.process_times import Descendants, TreeTimes, times_of
from engine.environments.sandbox.python_tree import python_tree
from engine.environments.sandbox.seccomp import filter_program
from engine.environments.sandbox.starting import (
    NUM_ALONE,
    addresses_are_fixed,
    own_files,
    resource_limits,
    spawn,
)
from engine.environments.sandbox.watch import Deadline, Patience, Watch

FLOOD_FACTOR: Final = 128
"""A child that writes this many times the kept bytes of output (8 MiB by default) is ended."""
REAP_S: Final = 1.0
LAST_WORDS_S: Final = 0.1
_CHUNK: Final = 1 << 16


class Channel(Protocol):
    def __call__(self, name: str, *, writes: bool) -> tuple[int | str, int]:
        """The sandbox's end, as a descriptor or a path, and our end."""


class Child:
    def __init__(
        self,
        *,
        files: Mapping[str, str],
        limits: Limits,
        stdin: bytes = b"",
        serves: bool = False,
        forks: bool = False,
        packages: Sequence[str] | None = (),
    ) -> None:
        """`packages`: None: with the sandbox's limits only (`bare.py`)."""
        self.limits = limits
        self.answers = bytearray()
        self.flooded = False
        self._group: MemoryGroup | None = None
        self._bundle: Bundle | None = None
        self._bare: BareProcess | None = None
        self._is_out_of_memory = False
        self._status = bytearray()
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._seen = {"stdout": 0, "stderr": 0}
        self._selector = selectors.DefaultSelector()
        self._unsent: dict[int, memoryview] = {}
        try:
            with ExitStack() as theirs:
                self._spawn(theirs, files, serves, forks, packages)
        except BaseException:
            self._forget()
            raise
        self._send(self._stdin, stdin, then_close=True)

    def _spawn(
        self, theirs: ExitStack, files: Mapping[str, str], serves: bool, forks: bool, packages: Sequence[str] | None
    ) -> None:
        def pipe(name: str, *, writes: bool) -> tuple[int, int]:
            """The sandbox's end, which is closed here after the start, and our end."""
            ends = os.pipe()
            their_end, our_end = (ends[1], ends[0]) if writes else ends
            theirs.callback(os.close, their_end)
            os.set_blocking(our_end, False)
            return their_end, our_end

        def content(text: bytes) -> int:
            fd = os.memfd_create("sandbox")
            theirs.callback(os.close, fd)
            os.write(fd, text)
            os.lseek(fd, 0, os.SEEK_SET)
            return fd

        files = {**own_files(), **files}
        if packages is None:
            tree, self._bare = None, BareProcess(files)
        else:
            require_bubblewrap()  # before any other resource of this machine is used
            tree = python_tree(tuple(packages))
        self._bundle = bundle = Bundle(tree, self.limits, files) if tree is not None and is_chosen() else None
        parent = None if tree is None else parent_of_groups()
        if parent is not None:
            try:
                self._group = MemoryGroup(parent, limit_bytes=self.limits.memory_bytes)
            except OSError as error:
                raise SandboxUnavailable(f"no control group could be made in {parent.folder}: {error}") from error
        is_alone = self._group is None
        channel: Channel = pipe if bundle is None else bundle.channel
        stdin, self._stdin = pipe("stdin", writes=False)
        stdout, ours_out = pipe("stdout", writes=True)
        stderr, ours_err = pipe("stderr", writes=True)
        status, ours_status = channel("status", writes=True)
        requests, self.requests_fd = channel("requests", writes=False) if serves else (None, -1)
        answers, ours_answers = channel("answers", writes=True) if serves else (None, -1)
        resources = resource_limits(self.limits, NUM_ALONE if is_alone and forks else self.limits.num_processes)
        pipes = {"status": status, "requests": requests, "answers": answers}
        setup = {"limits": resources, "forks": forks, **pipes}
        inherited = [fd for fd in pipes.values() if isinstance(fd, int)]
        if self._bare is not None:
            command = self._bare.command(setup, resources)
        elif bundle is not None:
            command = bundle.command(setup, self._group, resources)
        else:
            assert tree is not None
            boxed = {name: content(text.encode()) for name, text in files.items()}
            allowed = filter_program(is_alone=is_alone and not forks, addresses_are_fixed=addresses_are_fixed())
            filter_fd = content(allowed)
            inherited += [*boxed.values(), filter_fd]
            command = sandbox_command(
                tree=tree,
                limits=self.limits,
                files=boxed,
                filter_fd=filter_fd,
                arguments=[json.dumps(setup)],
                group=self._group,
            )
        self._process = spawn(command, stdin=stdin, stdout=stdout, stderr=stderr, inherited=inherited)
        self._descendants = Descendants(self._process.pid)
        self._listen({"stdout": ours_out, "stderr": ours_err, "status": ours_status, "answers": ours_answers})

    def _listen(self, ours: Mapping[str, int]) -> None:
        alarm = self._group.alarm() if self._group is not None else None
        for name, fd in {**ours, "alarm": -1 if alarm is None else alarm}.items():
            if fd >= 0:
                self._selector.register(fd, selectors.EVENT_READ, name)

    def watch(self, own: OwnTime, *, before: TreeTimes | None = None) -> Watch:
        self._descendants.expect_growth()
        return Watch(own, self._times, before=before)

    def _times(self) -> TreeTimes:
        return times_of(self._descendants() if self._group is None else self._group.pids())

    @property
    def has_ended(self) -> bool:
        """All pipes of the child are closed. Named pipes do not count: they never close if the child opened none."""
        counted = {"stdout", "stderr"} if self._bundle is not None else {"stdout", "stderr", "status", "answers"}
        return not any(key.data in counted for key in self._selector.get_map().values())

    @property
    def has_printed(self) -> bool:
        return self._seen["stdout"] > 0

    def send(self, message: bytes) -> None:
        self._send(self.requests_fd, message)

    def forget_output(self) -> None:
        """Resets the limits of output for a new call."""
        for name in self._kept:
            self._kept[name].clear()
            self._seen[name] = 0

    def pump(self, until: Callable[[], bool], patience: Patience) -> bool:
        """Moves bytes until `until` holds (true), or patience is over or the child has ended or floods (false)."""
        while not until():
            if self.flooded or self._is_out_of_memory or self.has_ended or patience.is_over():
                return False
            for key, _ in self._selector.select(max(patience.wait_s(), 0.0)):
                if key.data == "write":
                    self._write(key.fd)
                else:
                    self._read(key.fd, key.data)
        return True

    def end(self, watch: Watch | None = None) -> Outcome:
        """Waits for the process to end while its watch lasts, then kills it, and returns the outcome."""
        code = self._reap(watch if watch and not (self.flooded or self._is_out_of_memory) else Deadline(0.0))
        ended_by_us = code is None
        if ended_by_us:
            self._process.kill()
            code = self._reap(Deadline(REAP_S))
        self.pump(lambda: False, Deadline(LAST_WORDS_S))
        output = self._output()
        self._close()
        if self._group is not None:
            self._is_out_of_memory |= self._group.was_exceeded()
        self._forget()
        return self._outcome(None if ended_by_us else code, output, watch.ending if watch is not None else None)

    # ── pipes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, fd: int, message: bytes, *, then_close: bool = False) -> None:
        if fd in self._unsent:
            self._unsent[fd] = memoryview(bytes(self._unsent[fd]) + message)
        elif message:
            self._unsent[fd] = memoryview(message)
            self._selector.register(fd, selectors.EVENT_WRITE, "write")
        elif then_close:
            os.close(fd)

    def _write(self, fd: int) -> None:
        try:
            rest = self._unsent[fd][os.write(fd, self._unsent[fd][:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            rest = memoryview(b"")
        self._unsent[fd] = rest
        if not rest:
            del self._unsent[fd]
            self._selector.unregister(fd)
            if fd == self._stdin:
                os.close(fd)

    def _read(self, fd: int, name: str) -> None:
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if name == "alarm":
            self._is_out_of_memory = True
        elif not chunk:
            self._selector.unregister(fd)
            os.close(fd)
        elif name == "status":
            self._status += chunk[: 64 - len(self._status)]
        elif name == "answers":
            self.answers += chunk
        else:
            self._seen[name] += len(chunk)
            self._kept[name] += chunk[: max(self.limits.output_bytes - len(self._kept[name]), 0)]
            self.flooded = self._seen[name] > FLOOD_FACTOR * self.limits.output_bytes

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _forget(self) -> None:
        for kept in (self._group, self._bundle, self._bare):
            if kept is not None:
                kept.remove()

    def _reap(self, patience: Patience) -> int | None:
        while True:
            try:
                return self._process.wait(max(patience.wait_s(), 0.0))
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    return None

    def _close(self) -> None:
        open_ends = {key.fd for key in self._selector.get_map().values()}
        if self.requests_fd >= 0:
            open_ends.add(self.requests_fd)
        for fd in open_ends:
            os.close(fd)
        self._selector.close()

    def _output(self) -> Output:
        return Output(
            stdout=self._kept["stdout"].decode(errors="replace"),
            stderr=self._kept["stderr"].decode(errors="replace"),
            stdout_truncated=self._seen["stdout"] > len(self._kept["stdout"]),
            stderr_truncated=self._seen["stderr"] > len(self._kept["stderr"]),
        )

    def _outcome(self, code: int | None, output: Output, ending: Ending | None) -> Outcome:
        """`code`: None if we had to kill the process, mostly for `ending`."""
        limits = self.limits
        if self._is_out_of_memory or (b"m" in self._status and code not in (0, None)):
            return OutOfMemory(limit_bytes=limits.memory_bytes, output=output)
        if self.flooded:
            return Killed(reason=f"it wrote more than {FLOOD_FACTOR * limits.output_bytes} bytes", output=output)
        if code is None and ending == "starved":
            return Starved(output=output)
        if code is None:
            is_cpu = ending == "cpu"
            limit_s = limits.cpu_s if is_cpu else limits.wall_s
            return TimedOut(clock="cpu" if is_cpu else "wall", limit_s=limit_s, output=output)
        if not self._status.startswith(b"r"):
            return Refused(reason=output.stderr.strip()[-500:] or f"exit code {code}")
        if code == 128 + signal.SIGXCPU:
            return TimedOut(clock="cpu", limit_s=limits.cpu_s, output=output)
        number = code - 128 if code > 128 else -code  # bubblewrap passes a signal on as 128 and its number
        if number in signal.valid_signals() and number > 0:
            return Killed(reason=f"signal {signal.Signals(number).name}", output=output)
        return Finished(exit_code=code, output=output)
