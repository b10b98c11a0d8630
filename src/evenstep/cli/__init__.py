"""The command line: one small module per command, imported only when it runs."""
