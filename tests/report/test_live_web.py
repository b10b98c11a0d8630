"""The live page: who gets it, and what it shows in a real Chromium."""

import http.client
import json
from dataclasses import replace

import pytest

from evenstep.errors import UsageError
from evenstep.watch.findings import Journal, live_findings
from evenstep.watch.frame import frame
from evenstep.watch.run import LiveRun
from evenstep.watch.web import LiveServer, page_frame, tunnel_command
from tests.report.live_ranks import LiveRank, job
from tests.report.small_run import HOSTILE


@pytest.fixture
def server():
    with LiveServer() as running:
        yield running


def picture(run, /, **changes):
    live = LiveRun(run)
    live.refresh()
    seen = replace(frame(live, live_findings(live)), **changes)
    return page_frame(seen, Journal())


def get(server, path, host=None):
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    line.request("GET", path, headers={"Host": host} if host else {})
    return line.getresponse()


def test_the_page_is_had_with_its_token_only(server):
    assert get(server, f"/?token={server.token}").status == 200
    for path in ("/", "/?token=", "/?token=wrong", "/events", f"/?token={server.token}x"):
        assert get(server, path).status == 403


def test_another_name_for_this_machine_gets_nothing(server):
    assert get(server, f"/?token={server.token}", host="evil.example").status == 403


def test_there_is_nothing_else(server):
    assert get(server, f"/../live_web.py?token={server.token}").status == 404


def test_only_this_machine_is_listened_to(server):
    assert server._server.server_address[0] == "127.0.0.1"
    assert f"-L {server.port}:127.0.0.1:{server.port} " in tunnel_command(server.port)


def test_the_policy_allows_no_other_server(server):
    policy = get(server, f"/?token={server.token}").getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "http" not in policy


def test_a_listener_gets_the_latest_picture_at_once_and_then_the_next(server):
    server.publish({"step": 1})
    server.publish({"step": 2})
    events = get(server, f"/events?token={server.token}")
    assert json.loads(events.readline().removeprefix(b"data: ")) == {"step": 2}
    server.publish({"step": 3})
    assert events.readline() == b"\n"
    assert json.loads(events.readline().removeprefix(b"data: ")) == {"step": 3}


def test_the_last_message_arrives_where_the_server_ends_right_after_it():
    with LiveServer() as server:
        events = get(server, f"/events?token={server.token}")
        server.publish({"step": 9})
    assert not any(stream.is_alive() for stream in server._server.streams)  # nothing is cut off
    assert events.read() == b'data: {"step":9}\n\nevent: ended\ndata: {}\n\n'


def test_a_port_in_use_is_named(server):
    with pytest.raises(UsageError, match="choose another --port"):
        LiveServer(server.port)


class Opened:
    """The page, and everything it asked for or complained about."""

    def __init__(self, page, url):
        self.page, self.requests, self.complaints = page, [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.goto(url)


@pytest.fixture
def opened(browser, server):
    page = browser.new_page()
    yield Opened(page, server.url)
    page.close()


def wait_for(opened, text):
    opened.page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


def test_the_page_follows_the_run(opened, server, tmp_path):
    job(tmp_path / "run", late=3)
    first = picture(tmp_path / "run")
    server.publish(first)
    wait_for(opened, "Rank 3 is late")
    assert opened.page.inner_text("h1") == first["texts"]["verdict"]
    assert opened.page.locator("#ranks tr").count() == 4
    texts = first["texts"] | {"verdict": "all is well"}
    server.publish(first | {"texts": texts, "found": [], "past": ["was late"]})
    wait_for(opened, "all is well")
    assert opened.page.inner_text("#past") == "was late"


def test_the_page_shows_the_numbers_of_the_picture(opened, server, tmp_path):
    job(tmp_path / "run", late=3)
    server.publish(picture(tmp_path / "run"))
    wait_for(opened, "Rank 3 is late")
    assert opened.page.inner_text("#time").startswith(
        "latest 32 steps: 100 ms mean, 100 ms p99, CV 0 %"
    )
    worst = opened.page.locator("#ranks tr").first
    assert [worst.locator("td").nth(at).inner_text() for at in (0, 2, 3)] == ["3", "39", "30 ms"]
    shares = worst.locator(".bar").get_attribute("aria-label")
    assert shares == "compute 90 %, communication 10 %"  # no wait, input or other


def test_the_page_says_that_communication_includes_unknown_waits(opened, server, tmp_path):
    job(tmp_path / "run", late=3)
    server.publish(picture(tmp_path / "run"))
    wait_for(opened, "Rank 3 is late")
    assert opened.page.inner_text("#waits") == ""
    unknown = {"compute": 0.6, "exposed_communication": 0.4}
    server.publish(picture(tmp_path / "run", shares=unknown))
    wait_for(opened, "communication includes waits: not every rank can tell the two apart yet")


def test_the_page_asks_nobody_else_and_complains_of_nothing(opened, server, tmp_path):
    LiveRank(tmp_path / "run", 0, world=1, hostname=HOSTILE).steps(9)
    server.publish(picture(tmp_path / "run"))
    wait_for(opened, "on 1 node")
    assert opened.complaints == []
    assert {url.partition("?")[0] for url in opened.requests} <= {
        f"http://127.0.0.1:{server.port}/",
        f"http://127.0.0.1:{server.port}/events",
        "data:,",
    }
    assert opened.page.locator("img").count() == 0


def test_the_page_says_when_the_watching_has_ended(browser):
    with LiveServer() as server:
        page = browser.new_page()
        opened = Opened(page, server.url)
        page.wait_for_load_state("domcontentloaded")
    opened.page.wait_for_function("() => !document.getElementById('line').hidden")
    page.close()
