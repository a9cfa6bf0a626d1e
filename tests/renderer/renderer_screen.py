"""What a terminal would show: the few control codes that the live display uses, carried out."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|(\r\n|\n|\r)|([^\x1b\r\n]+)")


class Screen:
    """Lines of text and a cursor."""

    def __init__(self, output=""):
        self.lines = [""]
        self.row = self.column = 0
        self.cursor_hidden = False
        self.feed(output)

    def feed(self, output):
        for argument, command, newline, text in _TOKEN.findall(output):
            if command:
                self._control(argument, command)
            elif newline == "\r":
                self.column = 0
            elif newline:
                self.row, self.column = self.row + 1, 0
                if self.row == len(self.lines):
                    self.lines.append("")
            else:
                self._put(text)

    @property
    def text(self):
        """All lines without trailing spaces."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")

    def _put(self, text):
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
        self.column += len(text)

    def _control(self, argument, command):
        if command == "A":
            self.row = max(self.row - int(argument or 1), 0)
        elif command == "K":
            self.lines[self.row] = ""
        elif argument == "?25":
            self.cursor_hidden = command == "l"
        elif command != "m":
            raise AssertionError(f"a control code that this screen does not know: {argument}{command}")
