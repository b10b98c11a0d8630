"""The command line: one small module per command, imported only when it runs.

What can be typed is declared in syntax/, which imports nothing heavy: a command's help, summary and
arguments. `main.py` imports the module of a command, which has `main(args)`, and returns its exit
code. What commands share is in arguments.py, files.py, progress.py, traces.py, terminal.py and
child.py.

To add a command, declare it in the module of its group in syntax/ and add a module of its name.
"""
