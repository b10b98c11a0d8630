"""Findings to what people look at: a terminal, a page, Markdown, and the schemas of the JSON.

    brief      fifteen lines                                              terminal/brief.py
    full text  all that is known                                          terminal/terminal.py
    page       one HTML file that asks no network                         page/html.py
    Markdown   for a chat or an issue                                     markdown.py
    schemas    of everything `--json` prints                              schema.py, schema/

Limits. Nothing is measured or concluded here. Text of a trace is made printable before it is shown.
"""
