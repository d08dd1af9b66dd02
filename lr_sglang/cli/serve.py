"""``lr-sglang serve``: the OpenAI-compatible endpoint over a deployment."""

from __future__ import annotations

from typing import Any

import click

from lr_sglang.cli import options
from lr_sglang.serve.settings import ServeSettings


@click.command()
@click.option("--host", default="127.0.0.1", help="Address to listen on; others need a key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0: any that is free.")
@click.option(
    "--api-keys-file",
    type=options.FILE,
    metavar="FILE",
    help="Keys, one a line; LR_SGLANG_API_KEYS may hold more, with commas.",
)
@options.modes(
    "How to answer; again for more that a request may ask for.  [default: auto, and all others "
    "that "
    "these runtimes can do]"
)
@click.option("--concurrency", type=options.AT_LEAST_1, default=8, help="Answers at a time.")
@click.option(
    "--queue", type=options.AT_LEAST_0, default=64, help="Requests that may wait; others get 429."
)
@click.option(
    "--reasoning",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    help="Whether answers begin within <think>: on, always; auto, as prompt and text say; off, "
    "leave markers alone.",
)
@click.option(
    "--allow-origin",
    metavar="URL",
    multiple=True,
    help="Of web pages that may use the endpoint, such as https://chat.example; * is any.",
)
@options.logs
@options.program
@options.method
@options.token_layer
@options.sampling
@options.runtimes
@options.assign(serve=ServeSettings)
@click.option("--json", is_flag=True, help="Say as JSON where it listens.")
@click.option("--quiet", is_flag=True, help="Only where it listens, and warnings.")
def serve(**given: Any) -> None:
    """Answers over HTTP as OpenAI's API does, with lookahead reasoning behind it, and has a page to
    watch it at /.

    With no other options it starts three small models that come with the package, on this machine's
    CPU. --attach uses what 'lr-sglang launch' keeps up, --target URL and so on
    any SGLang servers. --max-tokens is the most that a request may ask for. A request may choose
    within what is allowed here (docs/serving.md).

    \b
    Examples:
      lr-sglang serve
      lr-sglang serve --attach qwen3-4gpu --concurrency 16
      lr-sglang serve --deployment qwen3.toml --host 0.0.0.0 --api-keys-file keys.txt
      lr-sglang serve --target http://localhost:30000 --mode autoregressive --port 8080
      curl localhost:8000/v1/models
    """
    from lr_sglang.cli import endpoint
    from lr_sglang.cli.display import Display

    endpoint.serve(given, Display(as_json=given["json"], quiet=given["quiet"]))
