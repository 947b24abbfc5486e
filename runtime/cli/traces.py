"""``kvalet traces``: generate, validate and convert traces.

Errors leave as TraceError; the caller of the commands turns them into an exit status.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from ..traces.errors import TraceError
from ..traces.generate import generate
from ..traces.read import Progress as ReadProgress
from ..traces.read import read_traces
from ..traces.settings import GeneratorSettings
from ..traces.trace import Trace
from ..traces.write import encode_trace, write_trace

app = typer.Typer(no_args_is_help=True, help="Make, check and convert traces.")

Paths = Annotated[
    list[Path], typer.Argument(help="Trace files, recordings, or folders of them.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write; else stdout.")
]

_DEFAULTS = GeneratorSettings()


@app.command(name="generate")
def generate_command(
    output: Output = None,
    seed: int = _DEFAULTS.seed,
    sessions: Annotated[
        int, typer.Option(help="Sessions; subagents come on top.")
    ] = _DEFAULTS.sessions,
    arrivals_per_s: Annotated[
        float, typer.Option(help="Mean rate at which sessions arrive.")
    ] = _DEFAULTS.arrivals_per_s,
    mean_steps: Annotated[
        float, typer.Option(help="Mean model calls of a session.")
    ] = _DEFAULTS.mean_steps,
    subagent_mean_steps: Annotated[
        float, typer.Option(help="Mean model calls of a subagent.")
    ] = _DEFAULTS.subagent_mean_steps,
    subagent_probability: Annotated[
        float, typer.Option(help="That a step spawns a subagent.")
    ] = _DEFAULTS.subagent_probability,
    user_turn_probability: Annotated[
        float, typer.Option(help="That a step waits for the user.")
    ] = _DEFAULTS.user_turn_probability,
    user_wait_s: Annotated[
        float, typer.Option(help="Median wait for the user, in seconds.")
    ] = _DEFAULTS.user_wait_s,
    parallel_share: Annotated[
        float, typer.Option(help="Share of steps that call several tools.")
    ] = _DEFAULTS.parallel_share,
    error_share: Annotated[
        float, typer.Option(help="Share of tool calls that fail.")
    ] = _DEFAULTS.error_share,
    timeout_share: Annotated[
        float, typer.Option(help="Share of shell calls that hang.")
    ] = _DEFAULTS.timeout_share,
    timeout_s: Annotated[
        float, typer.Option(help="Time limit of shell calls, in seconds.")
    ] = _DEFAULTS.timeout_s,
    system_tokens: Annotated[
        int, typer.Option(help="System prompt that all sessions share.")
    ] = _DEFAULTS.system_tokens,
    first_message_tokens: Annotated[
        float, typer.Option(help="Median of the rest of the first input.")
    ] = _DEFAULTS.first_message_tokens,
    append_tokens: Annotated[
        float, typer.Option(help="Median of new tokens in later inputs.")
    ] = _DEFAULTS.append_tokens,
    output_tokens: Annotated[
        float, typer.Option(help="Median of output tokens.")
    ] = _DEFAULTS.output_tokens,
    token_spread: Annotated[
        float, typer.Option(help="Multiplies the measured spread of token counts.")
    ] = _DEFAULTS.token_spread,
    token_scale: Annotated[
        float, typer.Option(help="Multiplies all token counts at the end.")
    ] = _DEFAULTS.token_scale,
    time_scale: Annotated[
        float, typer.Option(help="Multiplies all times at the end.")
    ] = _DEFAULTS.time_scale,
) -> None:
    """Generate a trace shaped like measured agents; same settings, same bytes."""
    settings = GeneratorSettings(
        seed=seed,
        sessions=sessions,
        arrivals_per_s=arrivals_per_s,
        mean_steps=mean_steps,
        subagent_mean_steps=subagent_mean_steps,
        subagent_probability=subagent_probability,
        user_turn_probability=user_turn_probability,
        user_wait_s=user_wait_s,
        parallel_share=parallel_share,
        error_share=error_share,
        timeout_share=timeout_share,
        timeout_s=timeout_s,
        system_tokens=system_tokens,
        first_message_tokens=first_message_tokens,
        append_tokens=append_tokens,
        output_tokens=output_tokens,
        token_spread=token_spread,
        token_scale=token_scale,
        time_scale=time_scale,
    )
    _deliver(generate(settings), output)


@app.command()
def validate(
    paths: Paths,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check every path by itself; say what is in it, or what is wrong with it.

    All paths are looked at before the first error is raised again.
    """
    counts: list[dict[str, Any]] = []
    first_error: TraceError | None = None
    for path in paths:
        try:
            with _progress() as progress:
                found = _counts(read_traces([path], progress=progress))
        except TraceError as error:
            found = {"error": str(error)}
            first_error = first_error or error
        counts.append({"path": str(path), **found})
    if json:
        typer.echo(msgspec.json.encode({"files": counts}).decode())
    else:
        _print_counts(counts, first_error)
    if first_error is not None:
        raise first_error


@app.command()
def convert(paths: Paths, output: Output = None) -> None:
    """Turn anything readable into one kvalet.trace/1 file."""
    with _progress() as progress:
        trace = read_traces(paths, progress=progress)
    _deliver(trace, output)


def _deliver(trace: Trace, output: Path | None) -> None:
    if output is None:
        for line in encode_trace(trace):
            typer.echo(line.decode(), nl=False)
        return
    length_bytes = write_trace(trace, output)
    typer.echo(
        f"{output}: {len(trace.sessions)} sessions, {trace.step_count} steps, "
        f"{length_bytes} bytes",
        err=True,
    )


def _counts(trace: Trace) -> dict[str, Any]:
    return {
        "format": trace.header.source.format,
        "note": trace.header.source.note,
        "sessions": len(trace.sessions),
        "subagents": sum(session.parent is not None for session in trace.sessions),
        "steps": trace.step_count,
        "tools": trace.tool_count,
        "input_tokens": trace.input_tokens,
        "new_tokens": trace.new_tokens,
        "output_tokens": trace.output_tokens,
        "longest_context_tokens": trace.longest_context_tokens,
        "flags": trace.flags(),
    }


def _print_counts(counts: list[dict[str, Any]], first_error: TraceError | None) -> None:
    for found in counts:
        if "error" not in found:
            flags = ", ".join(f"{flag} {n}" for flag, n in found["flags"].items())
            typer.echo(
                f"{found['path']}: {found['format']}, {found['sessions']} sessions "
                f"({found['subagents']} subagents), {found['steps']} steps, "
                f"{found['tools']} tool calls, longest context "
                f"{found['longest_context_tokens']} tokens, flags: {flags or 'none'}"
            )
        elif found["error"] != str(first_error):
            # The first error is printed by whoever catches it.
            typer.echo(found["error"], err=True)


@contextmanager
def _progress() -> Generator[ReadProgress | None, None, None]:
    """Show a bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
