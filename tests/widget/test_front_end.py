"""The front end's own tests, run by node's test runner: curves, messages, words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from node import find_node

import notebook_learner

JS = Path(notebook_learner.__file__).parent / "widget" / "js"


@pytest.fixture(scope="module")
def node() -> str:
    return find_node()


@pytest.mark.parametrize("tests", sorted(JS.glob("test/*.test.js")), ids=lambda path: path.name)
def test_the_tests_of_the_front_end_pass(tests: Path, node: str) -> None:
    done = subprocess.run(
        [node, "--test", "--test-reporter=tap", str(tests)], capture_output=True, text=True, check=False
    )
    counts = dict(re.findall(r"^# (\w+) (\d+)$", done.stdout, re.MULTILINE))
    assert done.returncode == 0 and counts["fail"] == "0", done.stdout + done.stderr
    assert int(counts["pass"]) > 5, "node found hardly any test"
    assert counts["skipped"] == counts["todo"] == counts["cancelled"] == "0"


def test_a_failing_test_of_the_front_end_fails_here(tmp_path: Path, node: str) -> None:
    wrong = tmp_path / "wrong.test.mjs"
    wrong.write_text('import test from "node:test"; test("no", () => { throw new Error("no"); });')
    with pytest.raises(AssertionError, match="not ok"):
        test_the_tests_of_the_front_end_pass(wrong, node)


def test_what_the_page_is_told_is_never_read_as_html() -> None:
    inserting = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    found = [path.name for path in JS.glob("src/*.js") if inserting.search(path.read_text("utf-8"))]
    assert found == []


def test_the_lock_file_names_no_registry_but_the_public_one() -> None:
    lock = (JS / "package-lock.json").read_text("utf-8")
    addresses = {address for address in re.findall(r"https?://[^/\"]+", re.sub(r'"url": "[^"]*"', "", lock))}
    assert addresses <= {"https://registry.npmjs.org"}
    assert lock.count('"integrity"') > 10, "packages are held by their content"
