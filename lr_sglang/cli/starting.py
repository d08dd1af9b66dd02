"""Servers on their way up, as a terminal shows them."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from lr_sglang.runtimes import ProgressEvent

READY = ("ready", "attached")


class Starting:
    """One line per role with its stage and a clock; without a terminal, one line per event."""

    def __init__(self, console: Console, shown: bool) -> None:
        self.console, self.shown = console, shown
        self._began = time.monotonic()
        self._stages: dict[str, tuple[str, float]] = {}
        self._spinner = Spinner("dots")
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __call__(self, event: ProgressEvent) -> None:
        self._stages[event.role] = (event.stage, event.seconds)
        if self.shown and not self.console.is_terminal:
            self.console.print(f"{event.role}: {event.stage} ({event.seconds:.0f} s)")

    def __enter__(self) -> Starting:
        if self.shown and self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Leaves one line of what is there."""
        if self._live.is_started:
            self._live.stop()
            ready = [f"{role} {stage} {at:.0f} s" for role, (stage, at) in self._stages.items()]
            self.console.print(Text("runtimes: " + ", ".join(ready), style="dim"))

    def __rich__(self) -> Table:
        table = Table.grid(padding=(0, 2))
        now = time.monotonic() - self._began
        stages = list(self._stages.items())  # we are in the screen's own thread, and more may come meanwhile
        for role, (stage, at) in stages:
            ready = stage in READY
            sign: RenderableType = Text("+", style="bold green") if ready else self._spinner
            table.add_row(sign, role, Text(stage, style="green" if ready else ""), f"{at if ready else now:.0f} s")
        if stages and all(stage in READY for _, (stage, _) in stages):
            table.add_row(self._spinner, "SGLang", "importing", f"{now:.0f} s")
        return table
