"""A test whose program is missing is left out and says what to install; where it is required, it fails."""

from __future__ import annotations

import pytest
from programs import OF_FIXTURES, PACKAGES, find_program, require_programs


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("NOTEBOOK_LEARNER_PROGRAMS", raising=False)
    return tmp_path


def install(program):
    program.parent.mkdir(exist_ok=True)
    program.touch(0o755)
    return str(program)


def test_a_missing_program_leaves_the_test_out_and_names_its_package(bare_machine):
    with pytest.raises(pytest.skip.Exception, match="needs ip, h5dump: sudo apt install hdf5-tools iproute2"):
        require_programs("ip", "h5dump")


def test_a_missing_program_fails_the_test_where_programs_are_required(bare_machine, monkeypatch):
    monkeypatch.setenv("NOTEBOOK_LEARNER_PROGRAMS", "required")
    with pytest.raises(pytest.fail.Exception, match="sudo apt install hdf5-tools"):
        require_programs("h5dump")


@pytest.mark.parametrize("folder", ["bin", "sbin"])
def test_a_program_is_found_on_the_path_and_in_the_sbin_next_to_it(bare_machine, folder):
    there = install(bare_machine / folder / "ip")
    assert find_program("ip") == there
    require_programs("ip")


def test_every_program_of_a_fixture_has_a_package():
    assert {name for names in OF_FIXTURES.values() for name in names} - PACKAGES.keys() == set()
