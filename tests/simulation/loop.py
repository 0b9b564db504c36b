"""A deterministic event loop: virtual time, no IO, and processes that pause or die between any two steps.

All processes share the loop and its clock and nothing else; what they exchange goes through the network, which takes
virtual time. So the order in which callbacks of different processes run at one instant means nothing, and every
callback of one process runs in the order that asyncio promises.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

STEPS_MAX = 5_000_000

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")


class Process:
    """What stands for a process of an operating system: callbacks that run as long as it does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.is_dead = False
        # The network reaches it again at this time.
        self.cut_until = 0.0
        self.steps = 0
        # Called when so many steps have run.
        self.step_hook: tuple[int, Callable[[], None]] | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.parked: list[asyncio.Handle] = []
        self.on_death: list[Callable[[], None]] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"Process({self.name!r})"


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process:
    """Give the process whose code runs now."""
    process = PROCESS.get()
    assert process is not None, "this is to be called from within a simulated process"
    return process


class SimulatedLoop(asyncio.AbstractEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else is left to do.

    It has what pure code needs; everything else of asyncio's port (sockets, threads, signals) raises.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.steps = 0
        self._now = 0.0
        self._serial = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []

    # ------------------------------------------------------------------------------------------------- processes

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of a process."""
        task: asyncio.Task[Any] = process.context.run(self.create_task, coroutine)
        return task

    def pause(self, process: Process) -> None:
        """Stop a process as SIGSTOP does: its code stands still while the world goes on."""
        process.is_paused = True

    def resume(self, process: Process) -> None:
        """Let a paused process go on, with everything that came in meanwhile."""
        process.is_paused = False
        # They came before anything of this process that is waiting already.
        self._ready.extendleft(reversed(process.parked))
        process.parked.clear()

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does.

        From here on nothing that its code does reaches anybody; what is left of it only unwinds, so that no coroutine
        is left hanging.
        """
        if process.is_dead:
            return
        process.is_dead = True
        for hook in process.on_death:
            hook()
        self.resume(process)
        for task in list(process.tasks):
            task.cancel()

    # ------------------------------------------------------------------------------------------------ what runs

    def run_until_complete(self, future: Any) -> Any:
        """Run until a future or coroutine is done, and give its result."""
        asyncio._set_running_loop(self)
        try:
            task = asyncio.ensure_future(future, loop=self)
            while not task.done():
                self._step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def bury(self) -> None:
        """Cancel whatever is left and let it unwind."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(100):
                left = [task for task in asyncio.all_tasks(self) if not task.done()]
                if not left:
                    break
                for task in left:
                    task.cancel()
                for _ in range(1_000):
                    if not self._ready:
                        break
                    self._step()
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        while not self._ready:
            assert self._timers, "everything waits for something that never comes"
            when, _serial, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                self._ready.append(timer)
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        process: Process | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None:
            if process.is_paused:
                process.parked.append(handle)
                return
            process.steps += 1
            if process.step_hook is not None and process.steps >= process.step_hook[0]:
                _count, hook = process.step_hook
                process.step_hook = None
                hook()
                self._ready.appendleft(handle)
                return
        self.steps += 1
        assert self.steps < STEPS_MAX, "the simulation does not come to rest"
        handle._run()

    # -------------------------------------------------------------------------------------------- asyncio's port

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*_Arguments], object], *args: *_Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Arguments], object], *args: *_Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard)
            if process.is_dead:
                task.cancel()
        return task

    def run_in_executor(
        self, executor: object, func: Callable[[*_Arguments], _Result], *args: *_Arguments
    ) -> asyncio.Future[_Result]:
        """Work for a thread is done at once: threads would bring their own order."""
        del executor
        done: asyncio.Future[_Result] = self.create_future()
        done.set_result(func(*args))
        return done

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what asyncio has to complain about: an exception that nobody looked at is a fault."""
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")


def new_loop() -> SimulatedLoop:
    """Make a loop; to type checkers asyncio's port is abstract in every method, at run time it is not."""
    return SimulatedLoop()  # type: ignore[abstract]
