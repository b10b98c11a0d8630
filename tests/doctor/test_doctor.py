import ast
import json
import re
from pathlib import Path
from string import Formatter

import pytest

from evenstep.cli.main import main
from evenstep.compiled import Library
from evenstep.doctor import examination
from evenstep.doctor.check import TEXTS, Severity
from evenstep.doctor.examination import examine
from evenstep.doctor.host import this_host
from tests.doctor.fake_machine import PORT

LOG = """\
gpu001:100:100 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
gpu001:100:100 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.
gpu001:100:120 [0] NCCL INFO Using network Socket
gpu001:100:120 [0] NCCL INFO comm 0x7f0 rank 0 nranks 2 cudaDev 0 busId 3000 commId 0xabc - Init
gpu001:100:120 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
gpu001:100:120 [0] NCCL WARN Call to ibv_reg_mr failed
"""


@pytest.fixture
def examined(host):
    return examine(host(files={f"{PORT}/state": "1: DOWN"}))


def test_a_healthy_machine_is_fine_throughout(host):
    found = examine(host())
    wrong = [check for check in found.checks if check.why]
    assert (wrong, found.severity) == ([], Severity.OK)


def test_what_is_wrong_says_why_and_how_to_mend_it(examined):
    for check in examined.checks:
        assert check.found
        assert bool(check.why) == bool(check.mend) == (check.severity >= Severity.ADVICE)


@pytest.mark.parametrize("width", [40, 80])
def test_the_page_keeps_to_its_width(examined, width):
    text = examination.render(examined, width=width, color=False)
    longest = max(text.splitlines(), key=len)
    assert len(longest) <= width or " " not in longest.strip()
    assert "\x1b" not in text


def test_the_page_says_the_worst_first(examined):
    text = examination.render(examined, width=80, color=False)
    assert text.startswith("gpu012: 1 warning; ")
    assert text.index("warning  network.links") < text.index("passed: ")


def test_colour_changes_no_word(examined):
    import re

    plain = examination.render(examined, width=80, color=False)
    assert re.sub(r"\x1b\[[\d;]*m", "", examination.render(examined, width=80, color=True)) == plain


def test_a_log_of_another_machine_is_judged(host, tmp_path):
    (tmp_path / "nccl.log").write_text(LOG)
    found = examine(host(), log=tmp_path / "nccl.log")
    wrong = {
        check.name for check in found.checks if check.name.startswith("nccl_log") and check.why
    }
    assert wrong == {
        "nccl_log.network", "nccl_log.within_node", "nccl_log.warnings", "nccl_log.whole",
        "nccl_log.variables.values",
    }  # fmt: skip


def test_a_copy_of_another_host_is_examined_without_its_drivers(host):
    copied = this_host(root=host().root)
    assert copied.name == "gpu012"
    assert copied.ranks == 1  # one GPU
    assert "is a copy of files" in copied.nvml_reason


def test_the_command_prints_json_and_exits_1_on_a_problem(host, capsys):
    given = host(files={"proc/modules": "", "proc/self/limits": "Max locked memory  1 1 bytes"})
    assert main(["doctor", "--json", "--root", str(given.root)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["severity"]) == ("evenstep.doctor/1", "problem")
    assert {check["severity"] for check in found["checks"]} <= {s.name.lower() for s in Severity}
    assert sum(found["counts"].values()) == len(found["checks"])


def test_the_command_examines_this_very_host_and_its_recorder(host, capsys, monkeypatch):
    library = "evenstep.hooks.torch.library"
    monkeypatch.setattr(f"{library}.installed_folder", lambda: "torch")
    monkeypatch.setattr(f"{library}.build_recorder", lambda _: Library(None, "no compiler here"))
    assert main(["doctor", "--all"]) in (0, 1)
    told = " ".join(capsys.readouterr().out.split())
    assert "versions.python: Python 3" in told
    assert "no compiler here" in told
    assert main(["doctor", "--all", "--root", str(host().root)]) in (0, 1)
    assert "no compiler here" not in " ".join(capsys.readouterr().out.split())


def test_a_folder_that_is_no_copy_of_a_host_is_refused(capsys, tmp_path):
    assert main(["doctor", "--root", str(tmp_path)]) == 2
    assert "holds neither proc nor sys" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--topology", "--lstopo", "--nccl-log"])
def test_a_file_that_is_not_there_is_named(option, capsys, tmp_path):
    assert main(["doctor", option, str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def texts():
    """Every text by its name, with the facts it has room for."""
    for room, questions in TEXTS.items():
        for question, table in questions.items():
            for case, row in table.items():
                if isinstance(row, list):
                    parts = [name for text in row[1:] for _, name, _, _ in Formatter().parse(text)]
                    yield f"{room}.{question}.{case}", {re.split(r"[.[]", n)[0] for n in parts if n}


def told():
    """Names, as patterns, that the checks ask for, and the facts they give; None where unseen."""
    for path in Path(examination.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ASKS:
                continue
            parts = getattr(node.args[0], "values", [node.args[0]])
            name = "".join(p.value if isinstance(p, ast.Constant) else "[a-z_]+" for p in parts)
            facts = {each.arg for each in node.keywords}
            yield ASKS[node.func.id] + name, None if None in facts else facts


ASKS = {"wrong": "", "_wrong": "variables.contradictions."}


def test_every_text_is_asked_for_with_the_facts_it_has_room_for():
    asked = [(name, facts) for name, facts in told() if "contradictions.[" not in name]
    for text, room in texts():
        exact = [given for name, given in asked if name == text]
        facts = exact or [given for name, given in asked if re.fullmatch(name, text)]
        assert facts, f"nobody asks for {text}"
        assert all(given is None or room <= given for given in facts), text


def test_of_a_copied_host_nothing_is_said_to_be_missing(host):
    said = {check.found for check in examine(host()).checks if check.name.startswith("versions.")}
    assert said == {"packages of a copied host are unknown"}
