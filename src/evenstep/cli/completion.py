"""`evenstep completion`: shell scripts that complete commands, options and paths."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from evenstep.cli.arguments import add_json
from evenstep.cli.terminal import show
from evenstep.documents import Document

HELP = """Print the script with which a shell completes commands, options and paths.

  eval "$(evenstep completion bash)"        in ~/.bashrc
  eval "$(evenstep completion zsh)"         in ~/.zshrc
  evenstep completion fish | source         in ~/.config/fish/config.fish"""

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Completions(Document):
    """Every command with its long options."""

    schema: ClassVar[str] = "evenstep.completion/1"

    commands: Mapping[str, list[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=SHELLS, metavar="SHELL", nargs="?", default="bash", help=", ".join(SHELLS)
    )
    add_json(parser, "commands and options")


def main(args: argparse.Namespace) -> int:
    options = _options()
    lines = _fish(options) if args.shell == "fish" else _bash(options, zsh=args.shell == "zsh")
    show(Completions(options).to_json(), lambda: "\n".join(lines), as_json=args.json)
    return 0


def _options() -> dict[str, list[str]]:
    from evenstep.cli.main import COMMANDS, module_of, parser_of

    return {
        command.name: sorted(
            option
            for action in parser_of(module_of(command), command.name)._actions
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
