"""The command line: one small module per command, imported only when it runs.

`main.py` finds the module of a command and turns what happens into an exit code. A command's module
has `HELP`, `add_arguments(parser)` and `main(args)`; what several share is beside them:
arguments.py, files.py, progress.py, traces.py, terminal.py, child.py.

To add a command: a module, and its row in `main.COMMANDS`.
"""
