"""The project's own files: workflows and forms are what their service reads."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"
FORMS = sorted(path for path in TEMPLATES.glob("*.yml") if path.name != "config.yml")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_jobs_whose_steps_do_one_thing(path):
    read = yaml.safe_load(path.read_text("utf-8"))
    assert read["permissions"]
    assert read[True]  # `on`, as YAML 1.1 reads it
    for job in read["jobs"].values():
        assert job["runs-on"]
        assert set(job.get("needs", "").split()) <= set(read["jobs"])
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)


def test_workflows_ask_for_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path in WORKFLOWS:
        asked = set(re.findall(r"\bmake ([\w-]+)", path.read_text("utf-8")))
        assert asked <= targets


def test_workflows_run_every_python_that_is_supported():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    said = re.findall(r"Python :: (3\.\d+)", text)
    checks = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text("utf-8"))
    assert checks["jobs"]["test"]["strategy"]["matrix"]["python"] == said


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_a_name_and_questions(path):
    read = yaml.safe_load(path.read_text("utf-8"))
    assert read["name"]
    assert read["description"]
    assert all(part["type"] for part in read["body"])


@pytest.mark.parametrize("home", ["https://example.org/team/evenstep", ""])
def test_the_page_of_an_index_has_no_link_that_only_a_checkout_resolves(home):
    pytest.importorskip("hatchling", reason="the build's own library is not installed")
    from docs import package_page

    text = (ROOT / "README.md").read_text("utf-8")
    shown = package_page.page(text, home, "v1.0.0")
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert all(link.startswith("https://") for link in links)
    assert ("![The top of the page" in shown) == bool(home)
    paths = [link.partition("/v1.0.0/")[2].partition("#")[0] for link in links]
    assert all((ROOT / path).is_file() for path in paths)
    assert bool(paths) == bool(home)
    assert re.sub(r"\W", "", shown.split("```")[1]) == re.sub(r"\W", "", text.split("```")[1])


def test_a_package_has_the_urls_of_the_project_that_builds_it():
    pytest.importorskip("hatchling", reason="the build's own library is not installed")
    from docs import package_page

    built = {
        "GITHUB_SERVER_URL": "https://example.org",
        "GITHUB_REPOSITORY": "team/evenstep",
        "GITHUB_REF_NAME": "v1.0.0",
    }
    home, ref = package_page.address(built)
    assert package_page.urls(home, ref)["Issues"] == "https://example.org/team/evenstep/issues"
    for url in package_page.urls(home, ref).values():
        path = url.removeprefix(f"{home}/blob/v1.0.0/")
        assert url in (home, f"{home}/issues") or (ROOT / path).is_file()
    assert package_page.urls(*package_page.address({})) == {}
