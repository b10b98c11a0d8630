"""Rendering of findings: terminal, HTML page, Markdown, and the published JSON schemas.

    brief      fifteen lines                                              terminal/brief.py
    full text  the whole diagnosis (--verbose)                            terminal/terminal.py
    page       one HTML file without network access                       page/html.py
    Markdown   for a chat or an issue                                     terminal/brief.py
    schemas    of everything `--json` prints                              schema.py, schema/

Limits. Nothing is measured or concluded here. Text from a trace is made printable first.
"""
