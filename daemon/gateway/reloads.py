# SPDX-License-Identifier: Apache-2.0
"""Reading the gateway's file, at the start and again: one reload at a time, and those who ask
while one waits for its turn get what becomes of that one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.config_file import ConfigFile
from xdp_router.daemon.tasks import Tasks

from .certificates import read_certificates
from .generation import Document

_log = structlog.get_logger()


class NothingToServe(XdpRouterError):
    """A configuration without listeners."""


class CannotReload(XdpRouterError):
    """Not now; nothing has changed."""


def load(file: ConfigFile) -> Document:
    """Read the file. Raises ConfigError, CertificateError, NothingToServe."""
    return document_of(file, file.load())


def document_of(file: ConfigFile, config: RouterConfig) -> Document:
    """What was read from the file, as workers get it."""
    if not config.gateway.listeners:
        raise NothingToServe(
            f"{file.shown}: there is no [[listener]]: the gateway would have nothing to serve "
            "('xdp-routerd attach' is what serves [[service]])"
        )
    return Document(config.gateway, file.text, file.shown, read_certificates(config.gateway))


class Reloads:
    """``lock``: whoever has it, nothing else is served meanwhile than what was before."""

    def __init__(
        self,
        file: ConfigFile,
        tasks: Tasks,
        require_serving: Callable[[], None],
        bring: Callable[[Document], Awaitable[None]],
    ) -> None:
        """``require_serving`` raises CannotReload; ``bring`` has what was read served, or raises
        XdpRouterError and changes nothing."""
        self.lock = asyncio.Lock()
        self.done = self.refused = 0
        self._file = file
        self._tasks = tasks
        self._require_serving = require_serving
        self._bring = bring
        self._next: asyncio.Task[None] | None = None
        self._hung_up: asyncio.Task[None] | None = None

    def hang_up(self) -> None:
        """SIGHUP has come: the log says what becomes of it."""
        turn = self._turn()
        if turn is not self._hung_up:
            self._hung_up = turn
            self._tasks.spawn(self._say(turn), "reload")

    async def _say(self, turn: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(turn)
        except XdpRouterError as error:
            _log.error("reload_refused", reason=str(error), consequence="nothing has changed")

    async def reload(self) -> None:
        """Read the file again, and do what it says. Raises XdpRouterError: nothing was done."""
        await asyncio.shield(self._turn())

    def _turn(self) -> asyncio.Task[None]:
        """The one that has not begun yet."""
        if self._next is None:
            self._next = asyncio.create_task(self._reload(), name="reload")
            self._next.add_done_callback(_heard)
        return self._next

    async def _reload(self) -> None:
        async with self.lock:
            self._next = None  # the file is read from here on
            try:
                await self._read(self._bring)
            except XdpRouterError:
                self.refused += 1
                raise
            self.done += 1

    async def check(self) -> Document:
        """What would be served. Raises XdpRouterError: nothing would be done."""
        async with self.lock:
            text = self._file.text
            try:
                return await self._read(None)
            finally:
                self._file.text = text

    async def _read(self, bring: Callable[[Document], Awaitable[None]] | None) -> Document:
        self._require_serving()
        file = self._file
        text = await asyncio.to_thread(file.read)
        config = await asyncio.to_thread(file.parse, text)
        former, file.text = file.text, text
        try:
            document = document_of(file, config)
            if bring is not None:
                await bring(document)
        except BaseException:
            file.text = former
            raise
        return document


def _heard(turn: asyncio.Task[None]) -> None:
    """Whoever asked for it may have gone."""
    if not turn.cancelled():
        turn.exception()
