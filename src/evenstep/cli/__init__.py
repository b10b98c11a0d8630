"""The command line: one small module per command, imported only when it runs.

`main.py` imports the module of a command, runs it and returns its exit code. A command's module has
`HELP`, `add_arguments(parser)` and `main(args)`; code that several commands share is in
arguments.py, files.py, progress.py, traces.py, terminal.py and child.py.

To add a command, add its module and a row in `main.COMMANDS`.
"""
