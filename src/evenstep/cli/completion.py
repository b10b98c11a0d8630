"""`evenstep completion`: shell scripts that complete commands, options and paths."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from evenstep.cli.syntax import COMMANDS
from evenstep.cli.terminal import show
from evenstep.documents import Document


@dataclass(frozen=True, slots=True)
class Completions(Document):
    """Every command with its long options."""

    schema: ClassVar[str] = "evenstep.completion/1"

    commands: Mapping[str, list[str]]


def main(args: argparse.Namespace) -> int:
    options = _options()
    lines = _fish(options) if args.shell == "fish" else _bash(options, zsh=args.shell == "zsh")
    show(Completions(options).to_json(), lambda: "\n".join(lines), as_json=args.json)
    return 0


def _options() -> dict[str, list[str]]:
    return {
        command.name: sorted(
            option
            for action in command.parser()._actions
            for option in action.option_strings
            if option.startswith("--")
        )
        for command in COMMANDS
    }


def _bash(options: Mapping[str, Sequence[str]], *, zsh: bool) -> Iterator[str]:
    if zsh:
        yield "autoload -U +X bashcompinit && bashcompinit"
    yield "_evenstep() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" words=""'
    yield f'  if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(options)}"; else'
    yield '  case "${COMP_WORDS[1]}" in'
    yield from (f'    {name}) words="{" ".join(found)}" ;;' for name, found in options.items())
    yield "  esac; fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield '  [ "${#COMPREPLY[@]}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))'
    yield "}"
    yield "complete -o filenames -F _evenstep evenstep"


def _fish(options: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f'complete -c evenstep -n __fish_use_subcommand -a "{" ".join(options)}"'
    for name, found in options.items():
        seen = f'"__fish_seen_subcommand_from {name}"'
        yield from (f"complete -c evenstep -n {seen} -l {option[2:]}" for option in found)
