"""What can be typed: every command with its summary, help and arguments, one module a group.

Nothing here imports what a command needs to run, so that help and completion are quick and need no
extra. A command is run by the module of its name in `evenstep.cli`.
"""

from evenstep.cli.arguments import Command
from evenstep.cli.syntax import act, explain, predict, prove, see

#: The commands of each group, in the order of the root help.
GROUPS = {
    group.__name__.rpartition(".")[2]: [
        it for it in vars(group).values() if isinstance(it, Command)
    ]
    for group in (see, explain, predict, act, prove)
}
COMMANDS = [command for commands in GROUPS.values() for command in commands]
