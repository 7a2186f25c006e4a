"""The command line of the proxy, for `python -m proxy` and for a larger command to take in."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from proxy.errors import ProxyError
from proxy.serve import serve
from proxy.settings import Mode, Settings

DEFAULTS = Settings(prefill=("http://prefill",), decode=("http://decode",))


class Deadline(click.ParamType):  # type: ignore[type-arg]
    """Seconds, or `none` for no limit."""

    name = "seconds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if value is None or isinstance(value, int | float):
            return value
        if value == "none":
            return None
        try:
            return float(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither a number of seconds nor 'none'", param, ctx)


def _deadline(name: str, default: float | None, text: str) -> click.Option:
    shown = "none" if default is None else f"{default:g}"
    return click.Option([name], type=Deadline(), default=shown, show_default=True, help=text)


@click.command("proxy", context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.option("--prefill", "prefill", multiple=True, required=True, metavar="URL", help="A prefill server; repeat it.")
@click.option("--decode", "decode", multiple=True, required=True, metavar="URL", help="A decode server; repeat it.")
@click.option("--host", default=DEFAULTS.host, show_default=True, help="Address to listen on.")
@click.option("--port", default=DEFAULTS.port, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--mode",
    type=click.Choice(["pull", "push"]),
    default=DEFAULTS.mode,
    show_default=True,
    help="pull: NixlConnector; push: NixlPushConnector.",
)
@click.option("--legs", type=click.Path(path_type=Path, dir_okay=False), help="File that gets one JSON line a leg.")
@click.option("--lenient", is_flag=True, help="Let a request through to decode when prefill gave no KV parameters.")
@click.option("--workers", default=DEFAULTS.workers, show_default=True, help="Processes that share the port.")
@click.option("--keep-alive", default=DEFAULTS.keep_alive, show_default=True, help="Reuse idle upstream connections.")
@click.option("--drain", default=DEFAULTS.drain, show_default=True, help="Seconds for requests in flight at a stop.")
@click.option("--health-timeout", default=DEFAULTS.health_timeout, show_default=True, help="Seconds for one probe.")
def proxy_command(mode: Mode, **options: object) -> None:
    """Route completions through a prefill leg and a decode leg, hiding nothing."""
    code = serve(Settings(mode=mode, **options))  # type: ignore[arg-type]
    if code:
        raise click.exceptions.Exit(code)


proxy_command.params.extend(
    [
        _deadline("--connect-timeout", DEFAULTS.connect_timeout, "Seconds to connect to a server."),
        _deadline(
            "--first-byte-timeout",
            DEFAULTS.first_byte_timeout,
            "Seconds from sending a leg to its first byte; without streaming that is the whole answer.",
        ),
        _deadline("--idle-timeout", DEFAULTS.idle_timeout, "Longest pause within an answer, in seconds."),
    ]
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; whatever the user can mend is one line on stderr. Returns the exit code."""
    try:
        result = proxy_command.main(arguments, prog_name="python -m proxy", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        print(f"error: {' '.join(error.format_message().split())}", file=sys.stderr)
        return error.exit_code
    except ProxyError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except click.Abort:
        return 130
