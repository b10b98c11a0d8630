"""`docs/configuration.md` is the table of settings, not a copy that ages."""

from docs.configuration import PAGE, page


def test_the_page_of_settings_is_current():
    assert PAGE.read_text() == page(), "run: python docs/configuration.py"


def test_its_example_is_a_valid_configuration(tmp_path):
    from evenstep.agent.settings import config

    file = tmp_path / "evenstep.toml"
    file.write_text(page().partition("```toml\n")[2].partition("```")[0])
    settings = config.load(environ={"EVENSTEP_CONFIG": str(file)})
    assert (settings.ring_bytes, settings.pace_max_delay) == (64_000_000, 0.05)
