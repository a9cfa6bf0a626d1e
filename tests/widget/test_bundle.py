"""What is built of the front end, and how it comes into an installed package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from node import build_hook

from notebook_learner.widget import notebook

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    return build_hook()


@pytest.fixture
def checkout(tmp_path: Path, hook: ModuleType) -> Path:
    """Sources and bundle without anything else."""
    for name in ("static", "js/src"):
        shutil.copytree(ROOT / hook.WIDGET / name, tmp_path / hook.WIDGET / name)
    for name in ("build.mjs", "package.json", "package-lock.json"):
        shutil.copy(ROOT / hook.WIDGET / "js" / name, tmp_path / hook.WIDGET / "js")
    return tmp_path


@pytest.fixture
def nothing_read_yet() -> None:
    notebook.script.cache_clear()
    notebook.style.cache_clear()


def test_the_bundle_is_of_these_sources(hook: ModuleType) -> None:
    assert hook.is_fresh(ROOT), "npm run build in notebook_learner/widget/js, or pip install -e ."


def test_the_script_is_a_module_with_a_default_export() -> None:
    assert re.search(r"export\s*\{\s*\w+ as default\s*\}", notebook.script())


def test_the_bundle_names_no_address() -> None:
    for text in (notebook.script(), notebook.style()):
        # That of SVG's names, which nobody loads: a saved picture needs it.
        text = text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//# source|@import|url\(", text)


def test_every_rule_of_the_style_sheet_is_about_the_panel() -> None:
    plain = re.sub(r"@keyframes [\w-]+\{(?:[^{}]*\{[^{}]*\})*\}", "", notebook.style())
    selectors = [found.strip() for found in re.findall(r"([^{};]+)\{", plain)]
    rules = [one for one in selectors if not one.startswith("@")]
    assert len(rules) > 50
    strange = [one for one in rules if not one.startswith((".nl-panel", ":is(.nl-panel"))]
    assert strange == []


def test_the_licence_of_the_plot_library_comes_along() -> None:
    text = (notebook.STATIC / "LICENSES.txt").read_text("utf-8")
    assert "uplot 1.6.32" in text and "The MIT License" in text and "Leon Sorokin" in text


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch, nothing_read_yet: None) -> None:
    first = notebook.script()
    monkeypatch.setattr(notebook, "STATIC", Path("/nowhere"))
    assert notebook.script() is first


def test_without_a_bundle_the_error_says_how_to_build_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nothing_read_yet: None
) -> None:
    monkeypatch.setattr(notebook, "STATIC", tmp_path / "static")
    for read in (notebook.script, notebook.style):
        with pytest.raises(notebook.BundleError, match=r"npm ci .* && npm run build") as caught:
            read()
        assert str(tmp_path / "js") in str(caught.value)


def test_importing_it_reads_nothing() -> None:
    code = (
        "import sys, notebook_learner\n"
        "read = lambda event, args: event == 'open' and 'static' in str(args[0])\n"
        "sys.addaudithook(lambda event, args: sys.exit('read') if read(event, args) else None)\n"
        "import notebook_learner.widget.notebook\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_bundle_of_these_sources_needs_no_node(
    hook: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "system_node", lambda: False)
    assert hook.is_fresh(checkout)
    assert _hook(hook, checkout).dependencies() == []


@pytest.mark.parametrize("change", ["edited", "added", "no bundle", "no licence"])
def test_an_old_or_missing_bundle_asks_for_node_where_there_is_none(
    hook: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    widget = checkout / hook.WIDGET
    if change == "edited":
        (widget / "js" / "src" / "main.js").write_text("export default () => ({});\n", "utf-8")
    elif change == "added":
        (widget / "js" / "src" / "new.js").touch()
    else:
        (widget / "static" / ("panel.js" if change == "no bundle" else "LICENSES.txt")).unlink()
    monkeypatch.setattr(hook, "system_node", lambda: False)
    assert _hook(hook, checkout).dependencies() == [hook.NODE_WHEEL]
    monkeypatch.setattr(hook, "system_node", lambda: True)
    assert _hook(hook, checkout).dependencies() == []


def test_wheel_and_sdist_take_the_bundle_although_git_ignores_it(hook: ModuleType, checkout: Path) -> None:
    data: dict[str, list[str]] = {"artifacts": []}
    _hook(hook, checkout).initialize("standard", data)
    named = {Path(name).name for name in data["artifacts"]}
    assert named >= {"panel.js", "panel.css", "LICENSES.txt"}
    assert all((checkout / name.lstrip("/")).is_file() for name in data["artifacts"])


def test_a_build_that_fails_says_what_npm_said(
    hook: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / hook.WIDGET / "static" / "panel.js").unlink()
    monkeypatch.setattr(
        hook, "node", lambda: ([sys.executable, "-c", "raise SystemExit('no such registry')"], [])
    )
    with pytest.raises(RuntimeError, match=r"(?s)npm ci .*no such registry"):
        _hook(hook, checkout).initialize("standard", {"artifacts": []})


def _hook(hook: ModuleType, root: Path) -> object:
    return hook.FrontEndHook(str(root), {}, None, None, str(root / "dist"), "wheel")
