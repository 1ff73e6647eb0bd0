"""Wait for futures of others (an authorizer's, say) without blocking, and not for ever."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from purgatory.delayed_operation import DelayedOperation
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.timer import DrivenTimer
from purgatory.versions import LATEST, KafkaVersion


class DelayedFuture(DelayedOperation):
    """Calls back once all futures are done; after the timeout those that are not get a TimeoutError first."""

    def __init__(
        self,
        timeout_ms: int,
        futures: Sequence[Future[Any]],
        callback: Callable[[], None],
        *,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(timeout_ms, version=version)
        self.futures = tuple(futures)
        self._timeout_ms = timeout_ms
        self._callback = callback

    def try_complete(self) -> bool:
        """Are all done?"""
        return all(future.done() for future in self.futures) and self.force_complete()

    def on_complete(self) -> None:
        """Fail what is pending, then call back."""
        for future in self.futures:
            if not future.done():
                with suppress(InvalidStateError):  # done in this very moment: its own result stands
                    future.set_exception(TimeoutError(f"not done after {self._timeout_ms} ms"))
        self._callback()

    def on_expiration(self) -> None:
        """The futures say it."""


class DelayedFuturePurgatory:
    """Holds delayed futures. `submit` runs the completions of futures that were pending, so that the callback does not
    run in the thread that completes a future; it is not called for futures that are done at once."""

    def __init__(
        self,
        timer: DrivenTimer,
        submit: Callable[[Callable[[], object]], object],
        *,
        version: KafkaVersion = LATEST,
    ) -> None:
        self.purgatory: DelayedOperationPurgatory[DelayedFuture] = DelayedOperationPurgatory(
            "Future", timer, version=version
        )
        self._submit = submit
        self._version = version

    def try_complete_else_watch(
        self, timeout_ms: int, futures: Sequence[Future[Any]], callback: Callable[[], None]
    ) -> DelayedFuture:
        """Call back at once if all are done, otherwise when the last one is, or after the timeout."""
        delayed = DelayedFuture(timeout_ms, futures, callback, version=self._version)
        # Watched under itself: no event but its own futures concerns it.
        if not self.purgatory.try_complete_else_watch(delayed, [delayed]):
            for future in delayed.futures:  # those done since are called back at once
                future.add_done_callback(lambda _: self._submit(lambda: self.purgatory.check_and_complete(delayed)))
        return delayed

    def shutdown(self) -> None:
        """Expire nothing any more."""
        self.purgatory.shutdown()
