import pytest

from evenstep.doctor.check import Severity
from tests.doctor.fake_machine import machine


@pytest.fixture
def host(tmp_path):
    """A healthy machine; arguments change it."""
    return lambda **options: machine(tmp_path, **options)


@pytest.fixture
def severities():
    """The worst severity of each name among some checks, skipped ones left out."""

    def by_name(checks):
        found = {}
        for check in checks:
            if check.severity is not Severity.SKIPPED:
                found[check.name] = max(found.get(check.name, Severity.OK), check.severity)
        return found

    return by_name
